"""What one node's ledger says of its GPUs; random ones are in `tests/property/test_ledger.py`."""

from dataclasses import replace

import pytest

from gpushare.identity import GpuUuid, PodUid, by_index
from gpushare.model.ledger import NodeLedger
from testing.builders import make_allocation, make_gpu, make_grant, make_inventory

GPU = GpuUuid("GPU-0")
UNKNOWN = GpuUuid("GPU-unknown")


def test_a_whole_gpu_has_nothing_left_also_if_no_compute_was_written_down() -> None:
    whole = replace(make_grant(0, gib=3), whole=True, compute_percent=0)
    ledger = NodeLedger.of(make_inventory(15, 15), [make_allocation("a", whole)])
    gpu = ledger.inventory.by_uuid[GPU]
    assert ledger.whole == {GPU}
    assert ledger.used_mib == {GPU: 15 * 1024}
    assert (ledger.free_mib(gpu), ledger.free_percent(gpu)) == (0, 0)


@pytest.mark.parametrize("whole", [(True, False), (False, True), (False, False)])
def test_a_gpu_by_its_index_is_the_same_as_by_its_uuid(whole: tuple[bool, bool]) -> None:
    grants = (
        replace(make_grant(gib=2, container="a"), gpus=(GPU,), whole=whole[0], memory_percent=10),
        replace(make_grant(gib=3, container="b"), gpus=(by_index(0),), whole=whole[1]),
    )
    ledger = NodeLedger.of(make_inventory(20), [make_allocation("a", *grants)])
    assert ledger.whole == ({GPU} if any(whole) else set())
    assert ledger.used_mib == {GPU: {(True, False): 23, (False, True): 24, (False, False): 7}[whole] * 1024}


def test_parts_of_a_gpu_that_is_not_listed_are_unknown() -> None:
    grant = replace(make_grant(gib=2), gpus=(UNKNOWN,), memory_percent=50)
    assert NodeLedger.of(make_inventory(15), [make_allocation("a", grant)]).used_mib == {UNKNOWN: 2 * 1024}


def test_the_least_excess_is_told() -> None:
    full = replace(make_grant(0), memory_mib=1000, compute_percent=100)
    inventory = replace(make_inventory(), gpus=(make_gpu(0, mib=1000),))
    assert not NodeLedger.of(inventory, [make_allocation("a", full)]).over_committed()
    assert not NodeLedger.of(inventory, [make_allocation("a", full)]).over_computed()
    more = make_allocation("b", replace(make_grant(0), memory_mib=1, compute_percent=1))
    ledger = NodeLedger.of(inventory, [make_allocation("a", full), more])
    assert ledger.over_committed() == {GPU: 1}
    assert ledger.over_computed() == {GPU: 1}


def test_a_ledger_cannot_be_changed() -> None:
    allocation = make_allocation("a", make_grant(0))
    empty = NodeLedger.of(make_inventory(15))
    for ledger in (empty, empty.with_allocation(allocation)):
        for mapping in (ledger.allocations, ledger.used_mib, ledger.used_percent):
            assert not hasattr(mapping, "__setitem__")
        assert not hasattr(ledger.whole, "add")
    assert empty.allocations == {}
    assert empty.with_allocation(allocation).allocations == {PodUid(allocation.pod.uid): allocation}
