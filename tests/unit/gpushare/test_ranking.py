"""Costs by hand."""

import pytest

from gpushare.identity import NodeName
from gpushare.model.allocation import Placed
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Policy
from gpushare.model.selector import MigChoice
from gpushare.placement.grade import grades
from gpushare.placement.place import place
from gpushare.placement.policies import Policies, ranking
from gpushare.placement.ranking import ROOM, best, cost_of
from testing.builders import make_ledger, make_shape

SLICE = FreeGpu(10, 10, mig=True)
CARD = FreeGpu(10, 10)


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
def test_a_mig_instance_is_no_whole_gpu_and_no_part_of_several(ask: Ask, fits: list[FreeGpu]) -> None:
    assert [room for room in (SLICE, CARD) if ask.fits(room)] == fits


def test_a_node_without_gpus_is_the_best_for_a_pod_that_needs_none() -> None:
    none, full, idle = NodeCapacity("", ()), NodeCapacity("T4", (FreeGpu(10, 0),)), NodeCapacity("T4", (CARD,))
    for policy in (Policy.BINPACK, Policy.SPREAD):
        costs = [found.cost for room in (none, full, idle) if (found := best(Ask(), room, ranking(policy)))]
        assert min(costs) == costs[0]
        assert costs[2] != costs[1]


def test_the_cost_of_a_pod_of_several_containers_is_that_of_all_of_them() -> None:
    ledger, policies = make_ledger([10, 10]), Policies(Policy.BINPACK)
    verdict = place(make_shape(3, 4), ledger, policies)
    assert isinstance(verdict, Placed)
    assert cost_of(verdict.grants, ledger, policies.of(None)) == 650_000_000 * ROOM


def test_the_host_counts_for_policies_that_look_at_it() -> None:
    class Host(type(ranking(Policy.BINPACK))):  # type: ignore[misc] # a policy that looks at nothing else
        def first(self, before: NodeCapacity, after: NodeCapacity) -> int:
            assert before.host is not None
            assert after.host is not None
            return before.host.cpu_milli - 10 * after.host.memory_mib

    ledger = make_ledger([10])
    verdict = place(make_shape(3), ledger)
    assert isinstance(verdict, Placed)
    found = cost_of(verdict.grants, ledger, Host(), host=FreeHost(500, 50), takes=FreeHost(30, 3))
    assert found == (500 - 470) * ROOM


A, B, C, D = (NodeName(name) for name in "abcd")


def test_every_node_has_a_grade() -> None:
    assert grades([A, B, C], [7, None, None]) == [10, 0, 0]
    assert grades([B, D], [None, None]) == [0, 0]
    assert grades([], []) == []


def test_one_node_alone_is_the_best_by_a_distance_that_other_plugins_do_not_make_up_for() -> None:
    """Kube-scheduler would choose among equal ones by chance."""
    assert grades([A], [3]) == [10]
    assert grades([A, B, C, D], [2**90, -1, -2, 2**91]) == [4, 6, 10, 1]


def test_of_equal_nodes_the_first_by_name_is_the_best_in_whatever_order_they_are_asked_for() -> None:
    assert grades([D, C, A, B], [3, 3, 9, 3]) == [8, 8, 1, 10]
    assert grades([A, B, C, D], [9, 3, 3, 3]) == [1, 10, 8, 8]


def test_a_node_where_memory_is_reserved_for_this_pod_is_the_best() -> None:
    assert grades([A, B], [7, None], frozenset({B})) == [8, 10]
