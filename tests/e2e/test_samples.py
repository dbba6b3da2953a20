"""What users wrote runs as they wrote it, and the table shows it: samples, and seeds that ask for whole GPUs.

This installation hands whole GPUs out (`GPUSHARE_WHOLE_GPUS`).
"""

import json
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
OF_GUIDES: Final = {
    "binpack-1": "binpack-1",
    "gpu-share-pod1": "gpu-share-pod1",
    "gpu-share-pod2": "gpu-share-pod2",
    "gpu-pod": "gpu-pod-percent",
}
"""Samples, and the seeds that they are."""
PODS: Final = 3 + 2 + 2 + 10  # the StatefulSets' replicas, and one of each other sample


@pytest.mark.parametrize("seed", ["gpu-pod-vectoradd", "gpu-pod-whole"])
def test_a_whole_gpu_beside_a_shared_one(system: System, namespace: str, seed: str) -> None:
    """As the guides ask NVIDIA's plugin: a GPU that no one else is on. It comes before the samples, which touch all."""
    for name in ("gpu-share-pod1", seed):
        system.cluster.kubectl("apply", "-n", namespace, "-f", str(SEEDS / f"{name}.yaml"))
    pods = system.running(namespace, "gpu-share-pod1", "gpu-pod")
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    [[shared], [whole]] = (gpus for pod in pods for gpus in allocated(pod).values())
    assert shared != whole
    assert sum(shown_by_inspect(system, namespace)["gpu-pod"].values()) == GPU_GIB * 1024
    checks.the_ledger_is_right(system)


@dataclass(frozen=True)
class Running:
    """All samples."""

    system: System
    namespace: str
    said: str
    """What kubectl said beside, when they were applied."""
    pods: Mapping[str, Json]

    def environment(self, pod: str) -> Mapping[str, str]:
        [found] = self.system.environments(self.namespace, pod).values()
        return found

    def mib(self, pod: str) -> int:
        """What `gpushare inspect` shows that it holds."""
        return sum(shown_by_inspect(self.system, self.namespace)[pod].values())


@pytest.fixture(scope="module")
def samples(system: System, shared_namespace: str) -> Running:
    said = system.cluster.kubectl("apply", "-n", shared_namespace, "-f", str(SAMPLES)).stderr
    pods = system.all_running(shared_namespace, PODS)
    return Running(system, shared_namespace, said, {pod["metadata"]["name"]: pod for pod in pods})


@pytest.mark.parametrize("sample", OF_GUIDES)
def test_a_sample_is_what_the_guide_has(sample: str) -> None:
    """But for an API version that servers no longer have."""
    written, guide = SAMPLES / f"{sample}.yaml", SEEDS / f"{OF_GUIDES[sample]}.yaml"
    found = guide.read_text(encoding="utf-8").replace("apps/v1beta1", "apps/v1")
    assert yaml.safe_load(written.read_text(encoding="utf-8")) == yaml.safe_load(found)


def test_every_sample_runs_and_sees_exactly_its_gpus(samples: Running) -> None:
    checks.every_container_sees_exactly_its_gpus(samples.system, samples.namespace, list(samples.pods.values()))
    checks.the_controllers_ledger_equals_the_pods(samples.system)
    environments = samples.system.environments(samples.namespace)
    four = environments["gpus-by-annotation", "main"]
    assert len(set(checks.seen_by(four).told.split(","))) == 4
    assert four[names.ENV_MPS_MEMORY_LIMIT] == "0=3072M,1=3072M,2=3072M,3=3072M"
    assert four[names.ALIYUN_CONTAINER] == "12"
    two = environments["gpus-by-label", "main"]
    assert len(set(checks.seen_by(two).told.split(","))) == 2
    assert two[names.ENV_MPS_MEMORY_LIMIT] == "0=4096M,1=4096M"
    told = {pod: checks.seen_by(variables).told for (pod, _), variables in environments.items()}
    assert told["same-gpu-0"] == told["same-gpu-1"]
    assert told["other-gpus-0"] != told["other-gpus-1"]


def test_three_replicas_with_3_gib_each(samples: Running) -> None:
    """Each on one GPU, and the variables say how much of it."""
    for name in (f"binpack-1-{i}" for i in range(3)):
        variables = samples.environment(name)
        assert (variables[names.ALIYUN_CONTAINER], variables[names.ALIYUN_DEV]) == ("3", str(GPU_GIB))
        assert samples.mib(name) == 3072


@pytest.mark.parametrize(("name", "gib"), [("gpu-share-pod1", 3), ("gpu-share-pod2", 5)])
def test_a_pod_that_says_all_gets_its_own_gpu_and_its_author_is_told(samples: Running, name: str, gib: int) -> None:
    """`NVIDIA_VISIBLE_DEVICES=all` would show every GPU of the node."""
    assert f"Warning: container {name}: {names.ENV_VISIBLE_DEVICES} is set by gpushare" in samples.said
    [gpus] = allocated(samples.pods[name]).values()
    assert len(gpus) == 1
    assert checks.seen_by(samples.environment(name)).told == gpus[0]
    assert samples.mib(name) == gib * 1024

    samples.system.wait_told(samples.namespace, name, names.ENV_VISIBLE_DEVICES)


def test_a_fifth_of_one_gpu(samples: Running) -> None:
    """As nano-gpu has it."""
    share = GPU_GIB * 1024 * 20 // 100
    assert samples.mib("gpu-pod") == share
    variables = samples.environment("gpu-pod")
    assert (variables[names.ENV_MEMORY_MIB], variables[names.ENV_MPS_THREAD_PERCENTAGE]) == (str(share), "20")
    metadata = samples.pods["gpu-pod"]["metadata"]
    annotations = metadata["annotations"]
    [entry] = json.loads(annotations[names.ANNOTATION_ALLOCATION])["containers"]
    assert annotations[names.PREFIX_NANO_CONTAINER + entry["name"]] == annotations[names.PREFIX_INDEX + entry["name"]]
    assert annotations[names.NANO_ASSUME] == metadata["labels"][names.NANO_ASSUME] == "true"


def test_kubectl_inspect_gpushare_shows_what_pods_hold(system: System, samples: Running) -> None:
    pods = samples.pods.values()
    mib = sum(
        entry["memoryMiB"] * len(entry["gpus"])
        for pod in pods
        for entry in json.loads(pod["metadata"]["annotations"][names.ANNOTATION_ALLOCATION])["containers"]
    )
    total = -(-mib // 1024)
    shown = inspect(system)
    capacity = sum(ledger.inventory.total_units for ledger in system.ledgers().values())
    assert f"\n{total}/{capacity} ({100 * total // capacity}%)" in shown
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
    system.cluster.kubectl("apply", "-n", namespace, "-f", str(SAMPLES / "binpack-1.yaml"))
    pods = system.all_running(namespace, 3)
    uids = {pod["metadata"]["uid"] for pod in pods}
    for _ in range(3):
        [first] = system.running(namespace, "binpack-1-0")
        disturb.sigkill(first)
        disturb.delete_now(system, first)

        def recreated(before: str = first["metadata"]["uid"]) -> bool:
            found = [pod for pod in system.pods(namespace) if pod["metadata"]["name"] == "binpack-1-0"]
            return any(pod["metadata"]["uid"] != before for pod in found)

        system.eventually("recreated", recreated)
    pods = system.all_running(namespace, 3)
    assert len(uids - {pod["metadata"]["uid"] for pod in pods}) == 1
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    checks.the_controllers_ledger_equals_the_pods(system)
