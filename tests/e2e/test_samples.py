"""What the users wrote runs as they wrote it, and the table shows it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare import names
from localcluster import installation
from tests.e2e import checks, seen
from tests.e2e.system import Json, System, is_ready

pytestmark = pytest.mark.e2e
SAMPLES = installation.ROOT / "manifests" / "samples"
PODS = 3 + 2 + 2 + 10  # the StatefulSets' replicas, and one of each other sample


@pytest.fixture(scope="module")
def samples(system: System, shared_namespace: str) -> list[Json]:
    """All samples, running."""
    system.cluster.kubectl("apply", "-n", shared_namespace, "-f", str(SAMPLES))
    return system.all_running(shared_namespace, PODS)


def test_every_sample_runs_and_sees_exactly_its_gpus(
    system: System, shared_namespace: str, samples: list[Json]
) -> None:
    checks.every_container_sees_exactly_its_gpus(system, shared_namespace, samples)
    environments = system.environments(shared_namespace)
    four = environments["gpus-by-annotation", "main"]
    assert len(set(seen.by(four).told.split(","))) == 4
    assert four[names.ENV_MPS_MEMORY_LIMIT] == "0=3072M,1=3072M,2=3072M,3=3072M"
    assert four[names.ALIYUN_CONTAINER] == "12"
    two = environments["gpus-by-label", "main"]
    assert (len(set(seen.by(two).told.split(","))), two[names.ENV_MPS_MEMORY_LIMIT]) == (
        2,
        "0=4096M,1=4096M",
    )
    part = environments["gpu-pod", "cuda-container"]
    assert part[names.ENV_MPS_THREAD_PERCENTAGE] == "20"
    told = {pod: seen.by(variables).told for (pod, _), variables in environments.items()}
    assert told["same-gpu-0"] == told["same-gpu-1"]
    assert told["other-gpus-0"] != told["other-gpus-1"]


def test_kubectl_inspect_gpushare_shows_what_pods_hold(system: System, samples: list[Json]) -> None:
    mib = sum(
        entry["memoryMiB"] * len(entry["gpus"])
        for pod in samples
        for entry in json.loads(pod["metadata"]["annotations"][names.ANNOTATION_ALLOCATION])["containers"]
    )
    total = -(-mib // 1024)
    shown = inspect(system)
    capacity = sum(ledger.inventory.total_units for ledger in system.ledgers().values())
    assert f"\n{total}/{capacity} ({100 * total // capacity}%)" in shown
    node = samples[0]["spec"]["nodeName"]  # binpack may put all of them on either node
    detail = inspect(system, "-d", node)
    on_node = [pod["metadata"]["name"] for pod in samples if pod["spec"]["nodeName"] == node]
    assert all(name in detail for name in on_node)


def inspect(system: System, *arguments: str) -> str:
    """`kubectl inspect gpushare`, found by kubectl as its plug-in."""
    scripts = str(Path(sys.executable).parent)
    environment = {"KUBECONFIG": str(system.cluster.kubeconfig), "PATH": f"{scripts}:{os.defpath}", "HOME": "/nowhere"}
    argv = [str(system.cluster.program("kubectl")), "inspect", "gpushare", *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_pod_that_is_deleted_and_recreated_gets_a_new_allocation(system: System, namespace: str) -> None:
    """StatefulSets reuse names: identity is the uid."""
    system.cluster.kubectl("apply", "-n", namespace, "-f", str(SAMPLES / "binpack-1.yaml"))
    system.all_running(namespace, 3)
    before = system.pod(namespace, "binpack-1-0")["metadata"]["uid"]
    for _ in range(3):
        system.cluster.kubectl("delete", "pod", "-n", namespace, "binpack-1-0", "--grace-period=1")

    def recreated() -> bool:
        found = [pod for pod in system.pods(namespace) if pod["metadata"]["name"] == "binpack-1-0"]
        return any(pod["metadata"]["uid"] != before and is_ready(pod) for pod in found)

    system.eventually("recreated", recreated)
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.all_running(namespace, 3))
    checks.the_controllers_ledger_equals_the_pods(system)
