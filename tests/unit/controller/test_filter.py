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


def test_a_score_of_zero_fits() -> None:
    assert filtering.decide([A], {A: 0}, frozenset()).fits == [A]


def test_a_node_where_memory_is_reserved_for_this_pod_fits() -> None:
    assert filtering.decide([A, B], ANSWERS, frozenset({B})).fits == [A, B]


def test_only_asked_nodes_are_answered_for() -> None:
    assert filtering.decide([], ANSWERS, frozenset()).fits == []


def test_scores_are_given_for_every_node() -> None:
    assert prioritize.decide([A, B, D], ANSWERS, frozenset()) == [7, 0, 0]


def test_a_node_where_memory_is_reserved_for_this_pod_is_the_best() -> None:
    assert prioritize.decide([A, B], ANSWERS, frozenset({B})) == [7, 10]
