"""Grades by kept ranks say the same of every two nodes as grades of sorted costs, and name the same best one."""

import operator
import random

import pytest

from controller.ranks import Ranks
from gpushare.identity import NodeName
from gpushare.placement import grade

COSTS = [None, *range(-3, 30), 2**90, 2**90 + 1]


@pytest.mark.parametrize("seed", range(30))
def test_ranks_agree_with_sorted_costs_whatever_came_later(seed: int) -> None:
    chance = random.Random(seed)
    costs: dict[int | None, int | None] = {number: chance.choice(COSTS) for number in range(chance.randrange(20))}
    ranks = Ranks(costs)
    costs.update({number: chance.choice(COSTS) for number in range(20, 20 + chance.randrange(1, 10))})
    names = [NodeName(f"node-{i}") for i in range(40)]
    numbers = [chance.choice([None, *costs]) for _ in names]
    ranks.add(numbers)
    found = ranks.grades(names, numbers, ())
    here = [None if number is None else costs[number] for number in numbers]
    expected = grade.grades(names, here)
    assert [value == 10 for value in found] == [value == 10 for value in expected]
    assert [value == 0 for value in found] == [value == 0 for value in expected]
    assert all(value in range(9) or value == 10 for value in found)
    in_order = sorted(zip(names, numbers, strict=True), key=operator.itemgetter(0))
    ordered = [number for _, number in in_order]
    first = ranks.first(ordered, ranks.of(ordered))
    assert [in_order[place][0] for place in [first] if place is not None] == [
        name for name, value in zip(names, found, strict=True) if value == 10
    ]
    by_cost = sorted((cost, -value) for cost, value in zip(here, found, strict=True) if cost is not None and value < 10)
    assert [value for _, value in by_cost] == sorted(value for _, value in by_cost)


def test_a_room_that_came_since_is_not_passed_over() -> None:
    ranks = Ranks({1: 5})
    with pytest.raises(KeyError):
        ranks.grades([NodeName("a")], [2], ())


def test_reserved_nodes_are_the_best() -> None:
    a, b = NodeName("a"), NodeName("b")
    ranks = Ranks({1: 5, 2: None})
    assert ranks.grades([a, b], [1, 2], {b})[1] == 10
    assert ranks.grades([a, b], [1, 2], ()) == [10, 0]
    assert ranks.grades([], [], ()) == []


def test_many_rooms_that_came_since_are_worth_another_sort() -> None:
    costs: dict[int | None, int | None] = {number: number for number in range(80)}
    ranks = Ranks(costs)
    for number in range(80, 91):
        costs[number] = number
        ranks.add([number])
        assert not ranks.worn()
    costs[91] = 91
    ranks.add([91])
    assert ranks.worn()
