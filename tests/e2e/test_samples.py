"""What users wrote runs as they wrote it, and the table shows it."""

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpushare import names
from localcluster import installation
from tests.e2e import checks, disturb
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Json, System, allocated, shown_by_inspect

SAMPLES: Final = installation.ROOT / "manifests" / "samples"
SEEDS: Final = installation.ROOT / "tests" / "seeds"
PODS: Final = 3 + 2 + 2 + 10  # the StatefulSets' replicas, and one of each other sample


@dataclass(frozen=True)
class Running:
    system: System
    namespace: str
    said: str
    """What kubectl said beside, when they were applied."""
    pods: Mapping[str, Json]
    environments: Mapping[str, Mapping[str, str]]
    """Of the only container of each."""


@pytest.fixture(scope="module")
def samples(system: System, shared_namespace: str) -> Running:
    said = system.cluster.kubectl("apply", "-n", shared_namespace, "-f", str(SAMPLES)).stderr
    pods = {pod["metadata"]["name"]: pod for pod in system.all_running(shared_namespace, PODS)}
    environments = {pod: variables for (pod, _), variables in system.environments(shared_namespace).items()}
    return Running(system, shared_namespace, said, pods, environments)


@pytest.mark.parametrize(
    ("sample", "seed"),
    [(name, name) for name in ("binpack-1", "gpu-share-pod1", "gpu-share-pod2")] + [("gpu-pod", "gpu-pod-percent")],
)
def test_a_sample_is_what_the_guide_has(sample: str, seed: str) -> None:
    """But for an API version that servers no longer have."""
    written, guide = SAMPLES / f"{sample}.yaml", SEEDS / f"{seed}.yaml"
    found = guide.read_text(encoding="utf-8").replace("apps/v1beta1", "apps/v1")
    assert yaml.safe_load(written.read_text(encoding="utf-8")) == yaml.safe_load(found)


def test_every_sample_runs_and_sees_exactly_its_gpus(samples: Running) -> None:
    checks.every_container_sees_exactly_its_gpus(samples.system, samples.namespace, list(samples.pods.values()))
    checks.the_controllers_ledger_equals_the_pods(samples.system)
    told = {pod: checks.seen_by(variables).told for pod, variables in samples.environments.items()}
    assert told["same-gpu-0"] == told["same-gpu-1"]
    assert told["other-gpus-0"] != told["other-gpus-1"]


FIFTH: Final = GPU_GIB * 1024 * 20 // 100
HELD: Final = [
    *((f"binpack-1-{i}", [3072], {names.ALIYUN_CONTAINER: "3", names.ALIYUN_DEV: str(GPU_GIB)}) for i in range(3)),
    ("gpu-share-pod1", [3072], {}),
    ("gpu-share-pod2", [5120], {}),
    ("gpu-pod", [FIFTH], {names.ENV_MEMORY_MIB: str(FIFTH), names.ENV_MPS_THREAD_PERCENTAGE: "20"}),
    (
        "gpus-by-annotation",
        [3072] * 4,
        {names.ENV_MPS_MEMORY_LIMIT: "0=3072M,1=3072M,2=3072M,3=3072M", names.ALIYUN_CONTAINER: "12"},
    ),
    ("gpus-by-label", [4096] * 2, {names.ENV_MPS_MEMORY_LIMIT: "0=4096M,1=4096M"}),
]
"""MiB on each GPU, and variables that say so."""


@pytest.mark.parametrize(("name", "held", "variables"), HELD)
def test_a_sample_holds_what_its_guide_says(
    samples: Running, name: str, held: list[int], variables: Mapping[str, str]
) -> None:
    assert samples.environments[name].items() >= variables.items()
    assert [*shown_by_inspect(samples.system, samples.namespace)[name].values()] == held


@pytest.mark.parametrize("name", ["gpu-share-pod1", "gpu-share-pod2"])
def test_a_pod_that_says_all_gets_its_own_gpu_and_its_author_is_told(samples: Running, name: str) -> None:
    """`NVIDIA_VISIBLE_DEVICES=all` would show every GPU of the node."""
    assert f"Warning: container {name}: {names.ENV_VISIBLE_DEVICES} is set by gpushare" in samples.said
    [[gpu]] = allocated(samples.pods[name]).values()
    assert checks.seen_by(samples.environments[name]).told == gpu
    samples.system.wait_told(samples.namespace, name, names.ENV_VISIBLE_DEVICES)


def test_kubectl_inspect_gpushare_shows_what_pods_hold(system: System, samples: Running) -> None:
    ledgers = system.ledgers().values()
    total = math.ceil(sum(mib for ledger in ledgers for mib in ledger.used_mib.values()) / 1024)
    capacity = sum(ledger.inventory.total_units for ledger in ledgers)
    assert f"\n{total}/{capacity} ({100 * total // capacity}%)" in inspect(system)
    node = samples.pods["binpack-1-0"]["spec"]["nodeName"]  # binpack may put all of them on either node
    detail = inspect(system, "-d", node)
    on_node = [name for name, pod in samples.pods.items() if pod["spec"]["nodeName"] == node]
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
    name = "binpack-1-0"
    system.cluster.kubectl("apply", "-n", namespace, "-f", str(SAMPLES / "binpack-1.yaml"))
    for _ in range(3):
        [before, *_] = [pod for pod in system.all_running(namespace, 3) if pod["metadata"]["name"] == name]
        disturb.kill(system, before)

        def recreated(uid: str = before["metadata"]["uid"]) -> bool:
            named = [pod["metadata"] for pod in system.pods(namespace) if pod["metadata"]["name"] == name]
            return any(metadata["uid"] != uid for metadata in named)

        system.eventually("recreated", recreated)
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.all_running(namespace, 3))
    checks.the_controllers_ledger_equals_the_pods(system)
