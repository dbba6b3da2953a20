"""When a cluster is looked at again: the controller and `gpushare simulate` have one rule."""

from collections.abc import Callable

import pytest

from gpushare.model.capacity import Ask
from gpushare.placement.demand import EVERY, due_after
from gpushare_cli.simulate.cluster import Learner

ASK = Ask(gpus=1, memory_mib=1024)


@pytest.mark.parametrize(("known", "pods"), [(0, 1), (1, 1), (7, 1), (8, 2), (400, 100), (512, EVERY), (9000, EVERY)])
def test_the_next_look_is_due_after_a_quarter_of_the_known_pods(known: int, pods: int) -> None:
    assert due_after(known) == pods


def looks(known: int, chance: Callable[[int], int] | None, number: int = 24) -> list[int]:
    """After which pods a simulation looks at its cluster."""
    learner = Learner([ASK] * known, draw=chance)
    return [pod for pod in range(1, number + 1) if learner.came(ASK)]


def test_a_simulation_looks_when_it_is_due() -> None:
    assert looks(0, None) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22]
    assert looks(20, None) == [5, 11, 18]


def test_by_chance_it_looks_after_any_pod_or_nearly_twice_as_many_as_are_due() -> None:
    assert looks(20, lambda _: 0) == list(range(1, 25))
    assert looks(20, lambda number: number - 1) == [9, 22]
