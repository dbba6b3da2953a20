"""The short way for simple pods gives the answers of `place`, word for word."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy, RequestShape
from gpushare.model.selector import ANY_GPU
from gpushare.model.verdict import Placed, Refused
from gpushare.placement import room
from gpushare.placement.place import place
from testing.builders import make_shape
from tests.strategies import ledgers, shapes

UNIT_MIB = 1024


def simple_pod(mib: int, percent: int) -> RequestShape:
    shape = make_shape(1)
    return replace(shape, containers=(replace(shape.containers[0], memory_mib=mib, compute_percent=percent),))


def agrees(shape: RequestShape, ledger: NodeLedger, policy: Policy) -> bool:
    (mib, percent), found = room.simple(shape), room.of_ledger(ledger)
    verdict = place(replace(shape, policy=policy), ledger)
    if isinstance(found, Refused):
        return found == verdict
    if isinstance(verdict, Placed):
        return found.fits(mib, percent)
    return not found.fits(mib, percent) and (percent > 0 or found.refusal(mib, ledger.inventory.unit) == verdict)


@given(
    st.integers(1, 12 * UNIT_MIB), st.sampled_from([0, 0, 1, 25, 26, 70, 71, 100]), ledgers(), st.sampled_from(Policy)
)
def test_a_simple_pod_is_judged_as_by_place(mib: int, percent: int, ledger: NodeLedger, policy: Policy) -> None:
    shape = simple_pod(mib, percent)
    assert room.simple(shape) == (mib, percent)
    assert agrees(shape, ledger, policy)


@given(shapes(), ledgers(), st.sampled_from(Policy))
def test_whatever_counts_as_simple_is_judged_as_by_place(
    shape: RequestShape, ledger: NodeLedger, policy: Policy
) -> None:
    assume(room.simple(shape)[0])
    assert agrees(shape, ledger, policy)


def test_nothing_else_counts_as_simple() -> None:
    simple = make_shape(3)
    [request] = simple.containers
    others = [
        replace(simple, containers=(request, request)),
        replace(simple, containers=(replace(request, gpu_count=2),)),
        replace(simple, containers=(replace(request, memory_mib=0, memory_percent=50),)),
        replace(simple, containers=(replace(request, memory_mib=0, whole=True),)),
        replace(simple, gpus=replace(ANY_GPU, min_memory_mib=1)),
        replace(simple, only_cdi=True),
    ]
    assert [room.simple(shape)[0] for shape in [simple, *others]] == [3 * UNIT_MIB] + [0] * len(others)
