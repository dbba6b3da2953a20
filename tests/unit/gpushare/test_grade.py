"""What kube-scheduler is told of costs."""

from gpushare.identity import NodeName
from gpushare.placement.grade import grades

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
