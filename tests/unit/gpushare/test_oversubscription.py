"""GPUs of which more may be granted than they have: sums, pods that refuse that, whole GPUs, annotations."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import ContainerName, NodeName
from gpushare.model.capacity import Ask, FreeGpu
from gpushare.model.gpu import Gpu
from gpushare.model.ledger import NodeLedger, Placed, RefusalReason, Refused
from gpushare.model.request import ANY_GPU, ContainerRequest, RequestShape
from gpushare.placement.place import place
from gpushare.units import GIB, ResourceConfig
from gpushare.wire import allocations, inventory
from testing.builders import make_allocation, make_gpu, make_grant, make_inventory, make_pod, make_shape

HALF: Final = 8 * 1024


def gpu(extra_mib: int = HALF) -> Gpu:
    return replace(make_gpu(0, 16), extra_mib=extra_mib)


def ledger(*gib: int, extra_mib: int = HALF, **fields: Any) -> NodeLedger:
    """One GPU of 16 GiB, of which 24 may be granted, with so many GiB held."""
    known = replace(make_inventory(16), gpus=(gpu(extra_mib),))
    held = [make_allocation(f"p{i}", make_grant(0, gib=size, **fields)) for i, size in enumerate(gib)]
    return NodeLedger.of(known, held)


def refusing(shape: RequestShape) -> RequestShape:
    return replace(shape, gpus=replace(ANY_GPU, physical=True))


def whole() -> RequestShape:
    return RequestShape(containers=(ContainerRequest(container=ContainerName("c"), whole=True, compute_percent=100),))


def test_the_sum_may_exceed_what_the_gpu_has_but_one_pod_may_not() -> None:
    free = [ledger(*held).free_mib(gpu()) // 1024 for held in ((), (4,), (12,), (12, 10), (12, 12))]
    assert free == [16, 16, 12, 2, 0]
    too_large = place(make_shape(17), ledger())
    assert too_large == Refused(
        RefusalReason.INSUFFICIENT_GPU_MEMORY,
        "needs 17 GiB on one GPU; free per GPU on node-a: 16 GiB (its largest GPU has 16 GiB in all)",
        permanent=True,
    )


def test_what_was_granted_of_an_oversubscribed_gpu_says_so() -> None:
    verdict = place(make_shape(12), ledger(12))
    assert isinstance(verdict, Placed)
    assert [grant.extra_mib for grant in verdict.grants] == [HALF]
    alone = place(whole(), ledger())
    assert isinstance(alone, Placed)
    assert [(grant.memory_mib, grant.extra_mib) for grant in alone.grants] == [(16 * 1024, 0)]


def test_a_pod_that_refuses_goes_only_to_gpus_without_a_factor() -> None:
    assert place(refusing(make_shape(1)), ledger()) == Refused(
        RefusalReason.NO_MATCHING_GPU,
        "needs a GPU with no oversubscription; GPUs of node-a: 0: oversubscribed (Tesla T4, 16384 MiB)",
        permanent=True,
    )
    both = replace(make_inventory(16, 16), gpus=(gpu(), make_gpu(1, 16)))
    verdict = place(refusing(make_shape(16)), NodeLedger.of(both))
    assert isinstance(verdict, Placed)
    assert [(grant.gpus, grant.physical) for grant in verdict.grants] == [(("GPU-1",), True)]


def test_a_factor_that_comes_later_begins_when_such_a_pod_has_gone() -> None:
    beside = ledger(10, physical=True)
    assert (beside.grantable_mib(gpu()), beside.free_mib(gpu())) == (16 * 1024, 6 * 1024)
    assert isinstance(place(make_shape(7), beside), Refused)
    assert isinstance(place(make_shape(7), ledger(10)), Placed)
    grown = beside.with_allocation(make_allocation("new", make_grant(0, gib=6)))
    assert (grown.free_mib(gpu()), grown.over_committed()) == (0, {})
    assert grown.with_allocation(make_allocation("forged", make_grant(0, gib=1))).over_committed() == {"GPU-0": 1024}


def test_a_whole_gpu_is_never_oversubscribed() -> None:
    assert isinstance(place(whole(), ledger(1)), Refused)
    held = ledger(16, whole=True)
    assert (held.free_mib(gpu()), held.free_percent(gpu()), held.over_committed()) == (0, 0, {})
    assert isinstance(place(make_shape(1), held), Refused)
    assert held.with_allocation(make_allocation("forged", make_grant(0, gib=1))).over_committed() == {"GPU-0": 1024}


def test_a_refused_whole_gpu_is_told_what_is_left_of_its_own_memory() -> None:
    verdict = place(whole(), ledger(4))
    assert isinstance(verdict, Refused)
    assert "12 of 16 GiB" in verdict.message


def test_compute_and_parts_of_a_gpu_stay_as_they_are() -> None:
    part = ContainerRequest(container=ContainerName("c"), memory_percent=50, compute_percent=50)
    ask, found = Ask.of(RequestShape(containers=(part,))), FreeGpu.of(gpu(), ledger())
    assert (found.has_mib, ask.need(found).memory_mib) == (16 * 1024, HALF)
    assert found.without(ask.need(found)).extra_mib == HALF


def test_a_factor_that_falls_takes_nothing_back_and_lets_nothing_in() -> None:
    one, two = make_grant(0, gib=10, extra_mib=HALF), make_grant(0, gib=5, extra_mib=HALF)
    before = [make_allocation("p", one), make_allocation("q", two, replace(two, container=ContainerName("side")))]
    after = NodeLedger.of(make_inventory(16), before)
    assert (after.over_committed(), after.free_mib(make_gpu(0, 16))) == ({}, 0)
    assert isinstance(place(make_shape(1), after), Refused)
    assert after.with_allocation(make_allocation("forged", make_grant(0, gib=5))).over_committed() == {"GPU-0": 1024}


def test_a_gpu_cannot_be_granted_less_than_it_has() -> None:
    with pytest.raises(ValueError, match="GPU GPU-0: 16383 MiB to grant are less than its 16384"):
        gpu(-1)
    assert [gpu(extra).factor for extra in (0, HALF, 16 * 1024, 1024)] == ["1", "1.5", "2", "1.06"]


def test_an_inventory_without_a_factor_is_as_before_and_readers_of_before_see_what_gpus_have() -> None:
    plain, more = make_inventory(16), replace(make_inventory(16), gpus=(gpu(),))
    assert "grantable" not in inventory.encode(plain)
    entry = json.loads(inventory.encode(more))["gpus"][0]
    assert (entry["memoryMiB"], entry["grantableMiB"]) == (16 * 1024, 24 * 1024)
    del entry["grantableMiB"]
    assert entry == json.loads(inventory.encode(plain))["gpus"][0]
    assert inventory.decode(inventory.encode(more), NodeName("node-a")) == more
    less = inventory.encode(more).replace(str(24 * 1024), "1")
    with pytest.raises(WireError, match="1 MiB to grant are less than its 16384"):
        inventory.decode(less, NodeName("node-a"))


def test_an_allocation_says_what_else_counts_for_it_in_version_1() -> None:
    given = make_allocation("p", make_grant(0, gib=3, physical=True), make_grant(0, container="b", extra_mib=HALF))
    text = allocations.encode(given)
    assert json.loads(text)["version"] == 1
    assert allocations.decode(text, given.pod) == given
    assert "physical" not in allocations.encode(make_allocation("p", make_grant(0)))


def test_a_pod_whose_allocation_cannot_be_read_still_refuses() -> None:
    annotations = {
        names.ANNOTATION_OVERSUBSCRIPTION: "never",
        names.ANNOTATION_ALLOCATION: '{"version": 9, "minReader": 9}',
        names.PREFIX_DEVICES + "main": "GPU-0",
        names.PREFIX_MEMORY + "main": "3072",
    }
    found = allocations.held(make_pod(node="node-a", annotations=annotations), ResourceConfig(), GIB)
    assert found.allocation is not None
    assert [grant.physical for grant in found.allocation.grants] == [True]
