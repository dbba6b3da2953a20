"""Point 10: the manifests of users' guides do what their authors meant."""

import json

import pytest

from testing import reviews
from tests.unit.compat.cluster import RULES, cluster, environment, pod_of, run, seed


def test_point_10_the_replicas_of_the_stateful_set_share_a_gpu() -> None:
    manifest = seed("binpack-1.yaml")
    world = cluster((15, 15))
    for _ in range(manifest["spec"]["replicas"]):
        run(world, pod_of(manifest))
    assert world.used() == {"GPU-0": 9}


@pytest.mark.parametrize(("name", "gib"), [("gpu-share-pod1", 3), ("gpu-share-pod2", 5)])
def test_point_10_a_pod_that_says_all_sees_its_own_gpu_and_its_author_is_warned(name: str, gib: int) -> None:
    """The note on the pod is for the Warning event, which also authors see who did not create the pod themselves."""
    pod = pod_of(seed(f"{name}.yaml"))
    decision = reviews.admitted(pod, RULES)
    assert decision.warnings == (
        f"container {name}: NVIDIA_VISIBLE_DEVICES is set by gpushare to the GPUs that it is granted;"
        " 'all' was removed",
    )
    assert decision.pod["metadata"]["annotations"] == {"gpushare.dev/overridden": name}
    world = cluster((16,))
    bound = run(world, pod)
    assert environment(bound, name)["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    assert world.used() == {"GPU-0": gib}


def test_point_10_a_fifth_of_one_gpu() -> None:
    bound = run(cluster((10,)), pod_of(seed("gpu-pod-percent.yaml")))
    [entry] = json.loads(bound["metadata"]["annotations"]["gpushare.dev/allocation"])["containers"]
    assert (entry["gpus"], entry["memoryMiB"], entry["computePercent"]) == (["GPU-0"], 2048, 20)
    variables = environment(bound, "cuda-container")
    assert variables["GPUSHARE_MEMORY_MIB"] == "2048"
    assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"


@pytest.mark.parametrize("name", ["gpu-pod-vectoradd", "gpu-pod-whole"])
def test_point_10_a_whole_gpu_is_one_that_no_one_else_is_on(name: str) -> None:
    world = cluster((10, 10))
    run(world, pod_of(seed("gpu-share-pod1.yaml")))
    bound = run(world, pod_of(seed(f"{name}.yaml")))
    assert environment(bound, "cuda-container")["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert world.ledger().whole == {"GPU-1"}
