"""Process lists and pods are joined to what each container uses of each GPU."""

from collections.abc import Mapping
from dataclasses import replace

from deviceplugin.usage import join
from deviceplugin.usage.join import Key, Pods
from gpushare.model.gpu import GpuHealth
from gpushare.model.request import ContainerKind
from testing.builders import Json, make_gpu, make_grant, make_inventory
from testing.deviceplugin.usage import MIB, holding, process, running_pod, sample

INVENTORY = make_inventory(16, 16)


def held(*pods: Json) -> Pods:
    """As the plugin sees them."""
    return holding(pods, INVENTORY)


TWO = running_pod(1, make_grant(0, 1, gib=2, container="a"), make_grant(1, container="b"), ids={"a": 11, "b": 12})


def test_without_a_sample_only_what_was_granted_is_known() -> None:
    rows = join.view(INVENTORY, held(TWO), None, {}).rows
    assert [(row.pod.name, row.container, row.gpu, row.granted_mib, row.used, row.peak) for row in rows] == [
        ("pod-1", "a", "GPU-0", 2048, None, None),
        ("pod-1", "a", "GPU-1", 2048, None, None),
        ("pod-1", "b", "GPU-1", 3072, None, None),
    ]


def test_the_peak_is_the_most_and_goes_with_its_pod() -> None:
    pods = held(TWO)
    peaks: Mapping[Key, int] = {}
    for used in (5, 9, 3):
        peaks = join.peaks(peaks, join.join(sample({"GPU-0": {100: used}}, process(100, 1, 11)), pods), pods)
    assert list(peaks.values()) == [9 * MIB]
    assert join.peaks(peaks, join.join(sample({"GPU-0": {}}), {}), {}) == {}


def test_a_whole_gpu_is_granted_with_all_that_it_has_and_init_containers_count_once() -> None:
    init, app = make_grant(0, gib=5, container="i", kind=ContainerKind.INIT), make_grant(0, gib=3, container="a")
    (pod,) = held(running_pod(1, init, app)).values()
    assert dict(pod.granted) == {("i", "GPU-0"): 5120, ("a", "GPU-0"): 3072}
    assert dict(pod.most) == {"GPU-0": 5120}


def test_ids_of_other_forms_are_ignored() -> None:
    pod = running_pod(1, make_grant(0), ids={"main": 11, "other": 12})
    pod["status"]["containerStatuses"] += [{"name": "main", "containerID": "x", "state": {}}, {"name": "main"}]
    (found,) = held(pod).values()
    assert list(found.containers.values()) == ["main"]


def test_of_a_gpu_it_is_known_what_is_granted_and_what_all_processes_use() -> None:
    one = running_pod(1, make_grant(0, gib=3, compute_percent=20), ids={"main": 1})
    whole = running_pod(2, make_grant(1, gib=15, whole=True), ids={"main": 2})
    processes = process(10, 1, 1), process(11, None)
    joined = join.join(sample({"GPU-0": {10: 5, 11: 7}, "GPU-1": None}, *processes), held(one, whole))
    totals = join.view(INVENTORY, held(one, whole), joined, {}).totals
    first, second = (totals[gpu.uuid] for gpu in INVENTORY.gpus[:2])
    assert (first.granted_mib, first.granted_percent, first.pods, first.used) == (3 * 1024, 20, 1, 12 * MIB)
    assert (second.granted_percent, second.pods, second.used) == (100, 1, None)
    silent = join.join(sample({"GPU-0": {10: None}}, *processes), held(one))
    assert join.view(INVENTORY, held(one), silent, {}).totals[INVENTORY.gpus[0].uuid].used is None


def test_nothing_can_be_granted_of_a_gpu_that_is_not_healthy() -> None:
    gpus = (make_gpu(0, mib=15 * 1024 + 700), make_gpu(1, 15, health=GpuHealth.UNHEALTHY))
    inventory = replace(INVENTORY, gpus=gpus)
    totals = join.view(inventory, {}, None, {}).totals
    assert [totals[gpu.uuid].usable_mib for gpu in gpus] == [15 * 1024, 0]
