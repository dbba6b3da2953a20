from controller.extender import filter as filtering
from controller.extender import prioritize
from gpushare.identity import NodeName
from gpushare.model.verdict import RefusalReason, Refused

FULL = Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, "full")
NEVER = Refused(RefusalReason.TOO_FEW_GPUS, "never", permanent=True)
A, B, C, D = (NodeName(name) for name in "abcd")
ANSWERS: dict[NodeName, int | Refused] = {A: 7, B: FULL, C: NEVER}


def test_every_node_is_answered_for_in_one_place() -> None:
    result = filtering.decide([A, B, C, D], ANSWERS, frozenset())
    assert result.fits == [A]
    assert result.failed == {
        B: "full",
        D: "node d is unknown to the gpushare controller; it may have been added a moment ago",
    }
    assert result.unresolvable == {C: "never"}


def test_a_cost_of_zero_fits() -> None:
    assert filtering.decide([A], {A: 0}, frozenset()).fits == [A]


def test_a_node_where_memory_is_reserved_for_this_pod_fits() -> None:
    assert filtering.decide([A, B], ANSWERS, frozenset({B})).fits == [A, B]


def test_only_asked_nodes_are_answered_for() -> None:
    assert filtering.decide([], ANSWERS, frozenset()).fits == []


def test_scores_are_given_for_every_node() -> None:
    assert prioritize.decide([A, B, D], ANSWERS, frozenset()) == [10, 0, 0]
    assert prioritize.decide([B, D], ANSWERS, frozenset()) == [0, 0]
    assert prioritize.decide([], ANSWERS, frozenset()) == []


def test_one_node_alone_is_the_best_by_a_distance_that_other_plugins_do_not_make_up_for() -> None:
    """Kube-scheduler would choose among equal ones by chance."""
    answers = {A: 2**90, B: -1, C: -2, D: 2**91}
    assert prioritize.decide([A, B, C, D], answers, frozenset()) == [4, 6, 10, 1]


def test_of_equal_nodes_the_first_by_name_is_the_best_in_whatever_order_they_are_asked_for() -> None:
    answers = {A: 9, B: 3, C: 3, D: 3}
    assert prioritize.decide([D, C, A, B], answers, frozenset()) == [8, 8, 1, 10]
    assert prioritize.decide([A, B, C, D], answers, frozenset()) == [1, 10, 8, 8]


def test_a_node_where_memory_is_reserved_for_this_pod_is_the_best() -> None:
    assert prioritize.decide([A, B], ANSWERS, frozenset({B})) == [8, 10]
