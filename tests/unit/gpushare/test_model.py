from dataclasses import replace

import pytest

from gpushare.identity import ContainerName, GpuUuid, NodeName, PodUid, by_index
from gpushare.model.capacity import Ask, FreeHost
from gpushare.model.gpu import MAX_GPUS, MAX_INSTANCES, Gpu, GpuHealth, NodeInventory, label, mig_index
from gpushare.model.ledger import Held, NodeLedger, footprint
from gpushare.model.request import ContainerKind, ContainerRequest, Need, PodRequest, RequestShape
from gpushare.units import GIB
from testing.builders import make_allocation, make_gpu, make_grant, make_inventory, make_ledger, make_ref

GPU = GpuUuid("GPU-0")
INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


def test_a_gpu_refuses_impossible_values_and_shares_neither_uuid_nor_index() -> None:
    for index, mib in [(-1, 5), (5, -1)]:
        with pytest.raises(ValueError, match=f"index {index} and memory {mib} MiB must be 0 or more"):
            Gpu(uuid=GpuUuid("GPU-x"), index=index, model="T4", memory_mib=mib)
        assert make_gpu(0, mib=0).memory_mib == 0
    for twin in [replace(make_gpu(0), index=1), replace(make_gpu(1), index=0)]:
        with pytest.raises(ValueError, match="node a: two GPUs with the same UUID or index"):
            NodeInventory(node=NodeName("a"), gpus=(make_gpu(0), twin), unit=GIB)


def test_labels_are_no_part_of_what_was_decided_nor_of_a_pods_hash() -> None:
    allocation = make_allocation("pod", make_grant(0))
    assert replace(allocation, labels={"app": "web"}) == allocation
    shape = RequestShape(containers=(ContainerRequest(container=ContainerName("c"), memory_mib=1),))
    pod = PodRequest(pod=make_ref("pod"), shape=shape)
    assert pod.labels == {}
    assert hash(pod) == hash(replace(pod, labels={"app": "web"}))
    assert str(make_ref("web", "team-a")) == "team-a/web"


def test_a_footprint_is_of_each_gpu_and_whole_if_one_of_its_grants_is() -> None:
    inventory = make_inventory(15, 15)
    grants = [make_grant(0, 1, gib=2), make_grant(1, gib=3)]
    assert footprint(grants, inventory) == {"GPU-0": Held(2048), "GPU-1": Held(5120)}
    whole = replace(make_grant(0, gib=15, kind=INIT), whole=True)
    for grants in ([whole, make_grant(0)], [replace(make_grant(0), kind=SIDECAR), whole]):
        assert footprint(grants, inventory)[GPU].whole


def test_the_grant_of_a_container_is_found_by_name() -> None:
    allocation = make_allocation("pod", make_grant(0, container="a"), make_grant(1, container="b"))
    assert allocation.of(ContainerName("b")) == make_grant(1, container="b")
    assert allocation.of(ContainerName("c")) is None


def test_every_gpu_is_rounded_down_by_itself_and_one_known_by_number_resolved() -> None:
    gpus = (make_gpu(0, mib=15109), make_gpu(1, mib=15109))
    assert NodeInventory(node=NodeName("a"), gpus=gpus, unit=GIB).total_units == 28
    inventory = make_inventory(15, 15)
    assert inventory.resolve(by_index(1)) == "GPU-1"
    assert inventory.resolve(by_index(7)) == "index:7"


@pytest.mark.parametrize(
    "impossible",
    [
        {},
        {"memory_mib": -5},
        {"memory_mib": 1, "gpu_count": 0},
        {"memory_mib": 1, "memory_percent": 1},
        {"memory_mib": 1, "whole": True},
        {"memory_mib": -1, "whole": True},
        {"memory_percent": -1, "whole": True},
        {"memory_mib": 1, "compute_percent": -1},
        {"memory_percent": 101},
        {"memory_mib": 1, "compute_percent": 101},
    ],
    ids=str,
)
def test_a_container_request_is_of_one_way_and_possible(impossible: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="container c:"):
        ContainerRequest(container=ContainerName("c"), **impossible)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "possible", [{"memory_mib": 1}, {"memory_percent": 100}, {"memory_mib": 1, "compute_percent": 100}], ids=str
)
def test_a_container_request_may_be_the_least_and_the_most(possible: dict[str, int]) -> None:
    assert ContainerRequest(container=ContainerName("c"), **possible).gpu_count == 1  # type: ignore[arg-type]


def test_parts_of_a_gpu_are_rounded_down_but_never_to_nothing_and_a_whole_one_is_all_of_it() -> None:
    half = ContainerRequest(container=ContainerName("c"), memory_percent=50, compute_percent=20)
    assert half.need(make_gpu(0, mib=15)) == Need(7, 20)
    assert half.need(make_gpu(0, mib=1)) == Need(1, 20)
    whole = ContainerRequest(container=ContainerName("c"), whole=True)
    assert whole.need(make_gpu(0, mib=15)) == Need(15, 100)


@pytest.mark.parametrize(
    ("grants", "gib"),
    [
        ([make_grant(0, gib=3)], 3),
        ([make_grant(0, gib=3), make_grant(0, gib=4)], 7),
        ([make_grant(0, gib=5, kind=INIT), make_grant(0, gib=3)], 5),
        ([make_grant(0, gib=5, kind=INIT), make_grant(0, gib=6, kind=INIT)], 6),
        ([make_grant(0, gib=2, kind=SIDECAR), make_grant(0, gib=5, kind=INIT), make_grant(0, gib=3)], 7),
        ([make_grant(0, gib=5, kind=INIT), make_grant(0, gib=2, kind=SIDECAR), make_grant(0, gib=4)], 6),
        ([make_grant(0, gib=9, kind=INIT), make_grant(0, gib=2, kind=SIDECAR), make_grant(0, gib=4)], 9),
    ],
)
def test_a_pods_footprint_follows_kubernetes_formula(grants: list, gib: int) -> None:  # type: ignore[type-arg]  # parametrised literals
    assert footprint(grants, make_inventory(15)) == {"GPU-0": Held(gib * 1024)}


def test_a_ledger_cannot_be_changed_and_a_pod_added_twice_changes_nothing() -> None:
    allocation = make_allocation("a", make_grant(0))
    empty = NodeLedger.of(make_inventory(15))
    once = empty.with_allocation(allocation)
    assert once.with_allocation(allocation) == once
    assert once.free_mib(make_gpu(0)) == 12 * 1024
    for ledger in (empty, once):
        for mapping in (ledger.allocations, ledger.used_mib, ledger.used_percent):
            assert not hasattr(mapping, "__setitem__")
        assert not hasattr(ledger.whole, "add")
    assert empty.allocations == {}
    assert once.allocations == {PodUid(allocation.pod.uid): allocation}


def test_what_was_known_of_a_node_counts_only_for_the_same_gpus_and_the_same_allocation() -> None:
    half = make_allocation("pod", make_grant(0, gib=0, memory_percent=50))
    before = NodeLedger.of(make_inventory(10), [half])
    assert NodeLedger.of(before.inventory, [half], before).used_mib == {GPU: 5 * 1024}
    assert NodeLedger.of(make_inventory(20), [half], before).used_mib == {GPU: 10 * 1024}
    more = replace(half, grants=(make_grant(0, gib=6),))
    assert NodeLedger.of(before.inventory, [more], before).used_mib == {GPU: 6 * 1024}
    assert before.held(more) == {GPU: Held(6 * 1024)}


def test_a_gpu_that_shrank_or_vanished_is_over_committed_and_has_nothing_free() -> None:
    ledger = replace(make_ledger([15, 15], {0: 9}), inventory=make_inventory(8, 15))
    assert ledger.free_mib(make_gpu(0, 8)) == 0
    assert ledger.over_committed() == {"GPU-0": 1024}
    assert replace(make_ledger([15, 15], {1: 9}), inventory=make_inventory(15)).over_committed() == {"GPU-1": 9 * 1024}
    whole = replace(make_grant(0, gib=15), whole=True, compute_percent=100)
    ledger = NodeLedger.of(make_inventory(10), [make_allocation("a", whole)])
    assert ledger.used_mib == {"GPU-0": 15 * 1024}
    assert ledger.over_committed() == {"GPU-0": 5 * 1024}


def test_a_part_written_in_per_cent_is_rounded_down_and_unknown_on_a_gpu_that_is_not_listed() -> None:
    part = replace(make_grant(0, gib=0), memory_percent=33)
    inventory = replace(make_inventory(15), gpus=(make_gpu(0, mib=15109),))
    assert NodeLedger.of(inventory, [make_allocation("nano", part)]).used_mib == {"GPU-0": 4985}
    grant = replace(make_grant(gib=2), gpus=(GpuUuid("GPU-unknown"),), memory_percent=50)
    assert NodeLedger.of(make_inventory(15), [make_allocation("a", grant)]).used_mib == {
        GpuUuid("GPU-unknown"): 2 * 1024
    }


@pytest.mark.parametrize("health", [GpuHealth.CORDONED, GpuHealth.UNHEALTHY])
def test_a_gpu_that_takes_no_new_work_has_nothing_free(health: GpuHealth) -> None:
    sick = make_gpu(0, health=health)
    ledger = NodeLedger.of(NodeInventory(node=NodeName("node-a"), gpus=(sick,), unit=GIB))
    assert (ledger.free_mib(sick), ledger.free_percent(sick), ledger.untouched(sick)) == (0, 0, False)


def test_the_least_excess_is_told_of_memory_and_of_compute() -> None:
    full = replace(make_grant(0), memory_mib=1000, compute_percent=100)
    inventory = replace(make_inventory(), gpus=(make_gpu(0, mib=1000),))
    assert not NodeLedger.of(inventory, [make_allocation("a", full)]).over_committed()
    assert not NodeLedger.of(inventory, [make_allocation("a", full)]).over_computed()
    more = make_allocation("b", replace(make_grant(0), memory_mib=1, compute_percent=1))
    ledger = NodeLedger.of(inventory, [make_allocation("a", full), more])
    assert ledger.over_committed() == {GPU: 1}
    assert ledger.over_computed() == {GPU: 1}


def test_every_mig_instance_of_a_node_has_a_number_and_a_label_of_its_own() -> None:
    instances = {(gpu, number): mig_index(gpu, number) for gpu in range(MAX_GPUS) for number in range(MAX_INSTANCES)}
    assert len(set(instances.values())) == len(instances)
    assert min(instances.values()) == MAX_GPUS
    assert all(label(index) == f"{gpu}:{number}" for (gpu, number), index in instances.items())
    assert [label(index) for index in range(MAX_GPUS)] == list(map(str, range(MAX_GPUS)))


def test_what_a_pod_of_several_containers_asks_for_is_what_the_largest_does() -> None:
    containers = (
        ContainerRequest(container=ContainerName("a"), memory_mib=5, gpu_count=2),
        ContainerRequest(container=ContainerName("b"), memory_mib=7, compute_percent=20),
    )
    found = Ask.of(RequestShape(containers=containers), FreeHost(300, 40))
    assert found == Ask(gpus=2, memory_mib=7, compute_percent=20, cpu_milli=300, host_mib=40)


@pytest.mark.parametrize("whole", [(True, False), (False, True), (False, False)])
def test_a_gpu_by_its_index_is_the_same_as_by_its_uuid(whole: tuple[bool, bool]) -> None:
    grants = (
        replace(make_grant(gib=2, container="a"), gpus=(GPU,), whole=whole[0], memory_percent=10),
        replace(make_grant(gib=3, container="b"), gpus=(by_index(0),), whole=whole[1]),
    )
    ledger = NodeLedger.of(make_inventory(20), [make_allocation("a", *grants)])
    assert ledger.whole == ({GPU} if any(whole) else set())
    assert ledger.used_mib == {GPU: (20 if any(whole) else 7) * 1024}
