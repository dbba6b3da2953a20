"""The short way for simple pods gives the answers of `place`, word for word."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy, RequestShape
from gpushare.model.selector import ANY_GPU
from gpushare.model.verdict import Placed, Refused, Verdict
from gpushare.placement import room
from gpushare.placement.place import place
from testing.builders import make_shape
from tests.strategies import ledgers, shapes

UNIT_MIB = 1024


def short(mib: int, found: room.RoomOrRefused, ledger: NodeLedger) -> int | Refused:
    """As the extender judges: a score, or a refusal."""
    if isinstance(found, Refused):
        return found
    if found.free_mib >= mib:
        return room.scores(mib, Policy.BINPACK)(found)
    return found.refusal(mib, ledger.inventory.unit)


def long(verdict: Verdict) -> int | Refused:
    return verdict.score if isinstance(verdict, Placed) else verdict


@given(st.integers(1, 12 * UNIT_MIB), ledgers())
def test_a_simple_pod_is_judged_as_by_place(mib: int, ledger: NodeLedger) -> None:
    shape = make_shape(1)
    shape = replace(shape, containers=(replace(shape.containers[0], memory_mib=mib),))
    assert room.simple_mib(shape) == mib
    assert short(mib, room.of_ledger(ledger), ledger) == long(place(shape, ledger))


@given(shapes(), ledgers())
def test_whatever_counts_as_simple_is_judged_as_by_place(shape: RequestShape, ledger: NodeLedger) -> None:
    mib = room.simple_mib(shape)
    assume(mib)
    wanted = replace(shape, policy=Policy.BINPACK)
    assert short(mib, room.of_ledger(ledger), ledger) == long(place(wanted, ledger))


@given(shapes(), ledgers(), st.sampled_from(Policy))
def test_the_score_follows_the_policy(shape: RequestShape, ledger: NodeLedger, policy: Policy) -> None:
    mib, found = room.simple_mib(shape), room.of_ledger(ledger)
    verdict = place(replace(shape, policy=policy), ledger)
    assume(mib and isinstance(verdict, Placed))
    assert isinstance(found, room.Room)
    assert isinstance(verdict, Placed)
    assert room.scores(mib, policy)(found) == verdict.score


def test_nothing_else_counts_as_simple() -> None:
    simple = make_shape(3)
    [request] = simple.containers
    others = [
        replace(simple, containers=(request, request)),
        replace(simple, containers=(replace(request, gpu_count=2),)),
        replace(simple, containers=(replace(request, compute_percent=10),)),
        replace(simple, containers=(replace(request, memory_mib=0, memory_percent=50),)),
        replace(simple, containers=(replace(request, memory_mib=0, whole=True),)),
        replace(simple, gpus=replace(ANY_GPU, min_memory_mib=1)),
        replace(simple, only_cdi=True),
    ]
    assert [room.simple_mib(shape) for shape in [simple, *others]] == [3 * UNIT_MIB] + [0] * len(others)
