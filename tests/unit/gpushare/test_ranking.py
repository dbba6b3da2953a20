"""Costs by hand."""

import pytest

from gpushare.model.request import Policy
from gpushare.model.room import Ask, GpuRoom, HostRoom, NodeRoom
from gpushare.model.selector import MigChoice
from gpushare.model.verdict import Placed
from gpushare.placement.place import place
from gpushare.placement.policies import Rankings, ranking
from gpushare.placement.ranking import ROOM, best, cost_of
from testing.builders import make_ledger, make_shape

SLICE = GpuRoom(10, 10, mig=True)
CARD = GpuRoom(10, 10)


@pytest.mark.parametrize(
    ("ask", "fits"),
    [
        (Ask(gpus=1, memory_mib=4), [SLICE, CARD]),
        (Ask(gpus=2, memory_mib=4), [CARD]),
        (Ask(gpus=1, whole=True), [CARD]),
        (Ask(gpus=1, whole=True, mig=MigChoice.ONLY), [SLICE]),
        (Ask(gpus=1, memory_mib=4, mig=MigChoice.ONLY), [SLICE]),
        (Ask(gpus=1, memory_mib=4, mig=MigChoice.NEVER), [CARD]),
    ],
)
def test_a_mig_instance_is_no_whole_gpu_and_no_part_of_several(ask: Ask, fits: list[GpuRoom]) -> None:
    assert [room for room in (SLICE, CARD) if ask.fits(room)] == fits


def test_a_node_without_gpus_is_the_best_for_a_pod_that_needs_none() -> None:
    none, full, idle = NodeRoom("", ()), NodeRoom("T4", (GpuRoom(10, 0),)), NodeRoom("T4", (CARD,))
    for policy in (Policy.BINPACK, Policy.SPREAD):
        costs = [found.cost for room in (none, full, idle) if (found := best(Ask(), room, ranking(policy)))]
        assert min(costs) == costs[0]
        assert costs[2] != costs[1]


def test_the_cost_of_a_pod_of_several_containers_is_that_of_all_of_them() -> None:
    ledger, rankings = make_ledger([10, 10]), Rankings(Policy.BINPACK)
    verdict = place(make_shape(3, 4), ledger, rankings)
    assert isinstance(verdict, Placed)
    assert cost_of(verdict.grants, ledger, rankings.of(None)) == 650_000_000 * ROOM


def test_the_host_counts_for_policies_that_look_at_it() -> None:
    class Host(type(ranking(Policy.BINPACK))):  # type: ignore[misc] # a policy that looks at nothing else
        def first(self, before: NodeRoom, after: NodeRoom) -> int:
            assert before.host is not None
            assert after.host is not None
            return before.host.cpu_milli - 10 * after.host.memory_mib

    ledger = make_ledger([10])
    verdict = place(make_shape(3), ledger)
    assert isinstance(verdict, Placed)
    found = cost_of(verdict.grants, ledger, Host(), host=HostRoom(500, 50), takes=HostRoom(30, 3))
    assert found == (500 - 470) * ROOM
