"""What the controller learns of a cluster from its pods. Pure, but for what it remembers."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from gpushare.model.capacity import Ask, NodeCapacity
from gpushare.placement import demand, looks, outlook
from gpushare.placement.demand import Demand
from gpushare.placement.outlook import NOTHING_KNOWN, Outlook
from gpushare.placement.tally import Tally


class Knowledge(Protocol):
    """What is known of a cluster."""

    @property
    def outlook(self) -> Outlook:
        """As of the last look."""

    @property
    def tally(self) -> Tally | None:
        """Of the outlook's kinds."""

    def came(self, ask: Ask) -> bool:
        """A pod has come; whether the outlook should be made again."""

    def left(self, ask: Ask) -> None:
        """A pod has ended."""

    def look(self, rooms: Iterable[NodeCapacity]) -> bool:
        """Make the outlook of nodes that look like this; whether it has changed."""


class Learner:
    """Keeps the outlook of a cluster."""

    def __init__(
        self,
        empty: Sequence[NodeCapacity],
        known: Iterable[Ask] = (),
        *,
        learns: bool = True,
        chance: Callable[[int], int] | None = None,
    ) -> None:
        """Nothing is looked at yet.

        Args:
            empty: all nodes, as if there were no pod.
            known: what pods ask for that are there already.
            learns: from pods that come.
            chance: a number below the given one. By it the outlook is made earlier or later than it is due, for
                the controller looks by the clock, too, and how fast pods come is not known; None: when it is due.
        """
        self._empty = list(empty)
        self._sizes = outlook.sizes(self._empty)
        self._widest = demand.widest(self._empty)
        self._largest = demand.Largest.of(self._empty)
        self._seen = Counter(known)
        self._learns = learns
        self._chance = chance
        self._until_next = self._wait()
        self.tally = Tally(())
        self.outlook = NOTHING_KNOWN

    def came(self, ask: Ask) -> bool:
        """A pod has come; whether the outlook should be made again."""
        if self._learns:
            self._seen[ask] += 1
        self._until_next -= 1
        if self._until_next:
            return False
        self._until_next = self._wait()
        return True

    def left(self, ask: Ask) -> None:
        """A pod has ended: it is no part of the sample any more."""
        if self._learns and self._seen[ask]:
            self._seen[ask] -= 1

    def look(self, rooms: Iterable[NodeCapacity]) -> bool:
        """Make the outlook of nodes that look like this; whether it has changed."""
        found, known = self._made(rooms), self.outlook
        if found == replace(known, epoch=found.epoch):
            return False
        self.outlook = found
        return True

    def _wait(self) -> int:
        """Pods until the outlook is made again."""
        due = looks.due_after(self._seen.total())
        return due if self._chance is None else 1 + self._chance(2 * due - 1)

    def _made(self, rooms: Iterable[NodeCapacity]) -> Outlook:
        seen = self._largest.possible(+self._seen)
        wanted: Demand = demand.of(seen + Counter(self._widest), outlook.usual_mib(self._sizes))
        kinds = tuple(kind.ask for kind in wanted.kinds)
        if kinds != self.tally.kinds:
            self.tally = Tally(kinds)
        empty, now = outlook.totals(self.tally, self._empty), outlook.totals(self.tally, rooms)
        return outlook.of(wanted, empty, now, self._sizes, self.outlook.epoch + 1)
