"""The search for GPUs of several containers against trying everything, where there is hardly room."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.identity import ContainerName
from gpushare.model.allocation import Placed
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerKind, ContainerRequest, RequestShape
from gpushare.placement.place import place
from testing.builders import make_allocation, make_inventory
from tests.property.brute_force import brute_force


@st.composite
def pods(draw: st.DrawFn) -> RequestShape:
    """Two to five containers, most of them early, because their order counts."""
    kinds = draw(st.lists(st.sampled_from(list(ContainerKind)), min_size=2, max_size=5))
    return RequestShape(
        containers=tuple(
            ContainerRequest(
                container=ContainerName(f"c{i}"),
                kind=kind,
                memory_mib=draw(st.integers(1, 4)) * 1024,
                compute_percent=draw(st.sampled_from([0, 0, 30, 40, 60])),
                gpu_count=draw(st.sampled_from([1, 1, 1, 2])),
            )
            for i, kind in enumerate(sorted(kinds, key=lambda kind: kind is ContainerKind.APP))
        )
    )


@given(pods(), st.lists(st.integers(3, 7), min_size=1, max_size=3))
def test_a_fit_of_several_containers_is_found_exactly_when_there_is_one(shape: RequestShape, sizes: list[int]) -> None:
    ledger = NodeLedger.of(make_inventory(*sizes))
    verdict = place(shape, ledger)
    assert isinstance(verdict, Placed) == brute_force(shape, ledger), verdict
    if isinstance(verdict, Placed):
        after = ledger.with_allocation(make_allocation("new", *verdict.grants))
        assert after.over_committed() == after.over_computed() == {}
