"""The manifests of users' guides in `tests/seeds`, applied as they are, but for API versions that are gone.

The last two ask for whole GPUs, which this installation hands out (`GPUSHARE_WHOLE_GPUS`).
"""

import json
from collections.abc import Mapping

import pytest

from gpushare import names
from localcluster import installation
from tests.e2e import checks, seen
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Json, System, allocated, is_ready, shown_by_inspect

pytestmark = pytest.mark.e2e
SEEDS = installation.ROOT / "tests" / "seeds"
GONE = {"apps/v1beta1": "apps/v1"}


def apply(system: System, namespace: str, seed: str) -> str:
    """Apply a seed; what kubectl says beside."""
    text = (SEEDS / f"{seed}.yaml").read_text(encoding="utf-8")
    for gone, now in GONE.items():
        text = text.replace(gone, now)
    return system.cluster.kubectl("apply", "-n", namespace, "-f", "-", input=text).stderr


def running(system: System, namespace: str, name: str) -> Json:
    """The pod, once it runs and sees what it was given."""
    system.eventually(f"{name} runs", lambda: is_ready(system.pod(namespace, name)))
    pod = system.pod(namespace, name)
    checks.every_container_sees_exactly_its_gpus(system, namespace, [pod])
    return pod


def environment(system: System, namespace: str, pod: str) -> Mapping[str, str]:
    [found] = system.environments(namespace, pod).values()
    return found


def mib(system: System, namespace: str, pod: str) -> int:
    """What `gpushare inspect` shows that it holds."""
    return sum(shown_by_inspect(system, namespace)[pod].values())


def test_three_replicas_with_3_gib_each(system: System, namespace: str) -> None:
    """Seed 000: each on one GPU, and the variables say how much of it."""
    apply(system, namespace, "binpack-1")
    pods = system.all_running(namespace, 3)
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    for pod in pods:
        name = pod["metadata"]["name"]
        variables = environment(system, namespace, name)
        assert (variables[names.ALIYUN_CONTAINER], variables[names.ALIYUN_DEV]) == ("3", str(GPU_GIB))
        assert mib(system, namespace, name) == 3072
    checks.the_controllers_ledger_equals_the_pods(system)


@pytest.mark.parametrize(("seed", "gib"), [("gpu-share-pod1", 3), ("gpu-share-pod2", 5)])
def test_a_pod_that_says_all_gets_its_own_gpu_and_its_author_is_told(
    system: System, namespace: str, seed: str, gib: int
) -> None:
    """Seed 001: `NVIDIA_VISIBLE_DEVICES=all` would show every GPU of the node."""
    said = apply(system, namespace, seed)
    assert f"Warning: container {seed}: {names.ENV_VISIBLE_DEVICES} is set by gpushare" in said
    pod = running(system, namespace, seed)
    [gpus] = allocated(pod).values()
    assert len(gpus) == 1
    assert seen.by(environment(system, namespace, seed)).told == gpus[0]
    assert mib(system, namespace, seed) == gib * 1024

    def warnings() -> list[str]:
        events = system.api.get(f"/api/v1/namespaces/{namespace}/events", timeout_s=30)["items"]
        told = [event for event in events if event["involvedObject"].get("name") == seed]
        return [event["message"] for event in told if event["type"] == "Warning"]

    system.eventually("a Warning event", lambda: any(names.ENV_VISIBLE_DEVICES in message for message in warnings()))


def test_a_fifth_of_one_gpu(system: System, namespace: str) -> None:
    """Seed 003, nano-gpu."""
    apply(system, namespace, "gpu-pod-percent")
    pod = running(system, namespace, "gpu-pod")
    share = GPU_GIB * 1024 * 20 // 100
    assert mib(system, namespace, "gpu-pod") == share
    variables = environment(system, namespace, "gpu-pod")
    assert (variables[names.ENV_MEMORY_MIB], variables[names.ENV_MPS_THREAD_PERCENTAGE]) == (str(share), "20")
    annotations = pod["metadata"]["annotations"]
    [entry] = json.loads(annotations[names.ANNOTATION_ALLOCATION])["containers"]
    assert annotations[names.PREFIX_NANO_CONTAINER + entry["name"]] == annotations[names.PREFIX_INDEX + entry["name"]]
    assert annotations[names.NANO_ASSUME] == pod["metadata"]["labels"][names.NANO_ASSUME] == "true"


@pytest.mark.parametrize("seed", ["gpu-pod-vectoradd", "gpu-pod-whole"])
def test_a_whole_gpu_beside_shared_ones(system: System, namespace: str, seed: str) -> None:
    """Seeds 001 and 003, as they ask NVIDIA's plugin: a GPU that no one else is on, while others are shared."""
    for shared in ("gpu-share-pod1", "gpu-share-pod2"):
        apply(system, namespace, shared)
    system.all_running(namespace, 2)
    shares = [running(system, namespace, name) for name in ("gpu-share-pod1", "gpu-share-pod2")]
    apply(system, namespace, seed)
    pod = running(system, namespace, "gpu-pod")
    [gpus] = allocated(pod).values()
    assert len(gpus) == 1
    assert not set(gpus) & {gpu for share in shares for listed in allocated(share).values() for gpu in listed}
    assert mib(system, namespace, "gpu-pod") == GPU_GIB * 1024
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)
