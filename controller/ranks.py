"""Grades of nodes by the numbers of their rooms, kept in order, so that no request sorts thousands of costs. Pure."""

import bisect
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gpushare.identity import NodeName
from gpushare.placement import grade

_MANY: Final = 8
"""One in so many rooms that came since the last sort makes another one worth it."""


class Ranks:
    """The order of costs. A room that came later lies on the rank of an equal cost, or between two ranks."""

    def __init__(self, costs: Mapping[int | None, int | None]) -> None:
        """Sorted once."""
        self._costs = costs
        self._sorted = sorted({cost for cost in set(costs.values()) if cost is not None})
        self._last = 2 * len(self._sorted) + 1
        """Of nodes on which the pod does not fit."""
        places: dict[int | None, int] = {None: self._last}
        places.update((cost, 2 * place + 1) for place, cost in enumerate(self._sorted))
        self._rank = {number: places[cost] for number, cost in costs.items()}
        self._rank[None] = self._last
        self._grades = grade.by_rank(self._last)
        self._added = 0

    def worn(self) -> bool:
        """Whether too many rooms came since."""
        return self._added * _MANY > len(self._sorted) + _MANY

    def know(self, numbers: Collection[int | None]) -> bool:
        """Whether none of these rooms came since."""
        return self._rank.keys() >= set(numbers)

    def of(self, numbers: Sequence[int | None]) -> list[int]:
        """The ranks of rooms, all of which have a cost; of None, for a node that is not known.

        Raises:
            KeyError: some rooms came since; `add` them.
        """
        return [self._rank[number] for number in numbers]

    def plain(self, ranks: Sequence[int]) -> list[int]:
        """Grades at these ranks, without regard to which one is the best."""
        return [self._grades[rank] for rank in ranks]

    def grades(
        self, names: Sequence[NodeName], numbers: Sequence[int | None], reserved: Collection[NodeName]
    ) -> list[int]:
        """As `grade.grades`, by rank among all rooms that are known instead of those that are named.

        Args:
            names: of nodes.
            numbers: of their rooms, as for `of`.
            reserved: the best ones, if there are any.

        Raises:
            KeyError: as from `of`.
        """
        ranks = self.of(numbers)
        result = self.plain(ranks)
        if reserved:
            best = [position for position, name in enumerate(names) if name in reserved]
        else:
            best = [position for position in [self._best(names, numbers, ranks)] if position is not None]
        for position in best:
            result[position] = grade.BEST
        return result

    def first(self, numbers: Sequence[int | None], ranks: Sequence[int]) -> int | None:
        """Which node is the best, where they are sorted by name; None if there is none.

        Args:
            numbers: of their rooms.
            ranks: of these.
        """
        least = min(ranks, default=self._last)
        if least == self._last:
            return None
        if least % 2:
            return ranks.index(least)
        found = [position for position, rank in enumerate(ranks) if rank == least]
        return min(found, key=lambda position: self._costs[numbers[position]] or 0)

    def add(self, numbers: Collection[int | None]) -> None:
        """Rooms whose costs were found since."""
        for number in set(numbers) - self._rank.keys():
            cost, self._added = self._costs.get(number), self._added + 1
            place = self._last if cost is None else bisect.bisect_left(self._sorted, cost)
            equal = place < len(self._sorted) and self._sorted[place] == cost
            self._rank[number] = self._last if cost is None else 2 * place + equal

    def _best(self, names: Sequence[NodeName], numbers: Sequence[int | None], ranks: Sequence[int]) -> int | None:
        least = min(ranks, default=self._last)
        found = [position for position, rank in enumerate(ranks) if rank == least] if least < self._last else []
        if least % 2:
            return min(found, key=names.__getitem__, default=None)
        # Costs between two ranks may differ.
        return min(found, key=lambda position: (self._costs[numbers[position]] or 0, names[position]))
