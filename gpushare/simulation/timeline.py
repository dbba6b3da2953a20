"""Pods in the order in which they come and go. Pure."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpushare.simulation.engine import Bound, Scheduler
from gpushare.simulation.kinds import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A pod that comes."""

    kind: Kind
    number: int
    """By which its caller knows it."""
    at_s: float = 0.0
    lasts_s: float | None = None
    """From its binding on; None if it never ends."""
    only: int | None = None
    """It is on this node already, or for it alone, and the scheduler has nothing to choose."""


@dataclass(frozen=True, slots=True)
class Came:
    """A pod has come and was bound, or waits."""

    arrival: Arrival
    bound: Bound | None


@dataclass(frozen=True, slots=True)
class Waited:
    """A pod that waited was bound, because another one had ended."""

    arrival: Arrival
    bound: Bound
    at_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A pod has ended."""

    arrival: Arrival
    at_s: float


Event = Came | Waited | Ended


def run(scheduler: Scheduler, arrivals: Iterable[Arrival]) -> Iterator[Event]:
    """What happens, in the order of the arrivals, which is that of their times.

    Pods that wait are tried again in their order whenever one ends, and hold up no other.
    """
    return _Run(scheduler).events(arrivals)


class _Run:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ends: list[tuple[float, int, Arrival, Bound]] = []
        self._waiting: dict[Kind, deque[tuple[int, Arrival]]] = {}
        self._came = 0

    def events(self, arrivals: Iterable[Arrival]) -> Iterator[Event]:
        for arrival in arrivals:
            while self._ends and self._ends[0][0] <= arrival.at_s:
                yield from self._end()
            self._came += 1
            bound = self._scheduler.place(arrival.kind, arrival.number, only=arrival.only)
            if bound is not None:
                self._hold(arrival, bound, arrival.at_s)
            else:
                self._waiting.setdefault(arrival.kind, deque()).append((self._came, arrival))
            yield Came(arrival, bound)

    def _hold(self, arrival: Arrival, bound: Bound, now_s: float) -> None:
        if arrival.lasts_s is not None:
            heapq.heappush(self._ends, (now_s + arrival.lasts_s, arrival.number, arrival, bound))

    def _end(self) -> Iterator[Event]:
        now_s, _, arrival, bound = heapq.heappop(self._ends)
        self._scheduler.leave(bound)
        yield Ended(arrival, now_s)
        # What did not fit anywhere before can only fit on the node that has more room now.
        for kind in sorted(self._waiting, key=lambda kind: self._waiting[kind][0][0]):
            queue = self._waiting[kind]
            while queue and (found := self._bound(queue[0][1], bound.node)) is not None:
                waited = queue.popleft()[1]
                self._hold(waited, found, now_s)
                yield Waited(waited, found, now_s)
            if not queue:
                del self._waiting[kind]

    def _bound(self, arrival: Arrival, node: int) -> Bound | None:
        if arrival.only not in {None, node} or not self._scheduler.fits(arrival.kind, node):
            return None
        return self._scheduler.bind(arrival.kind, node, arrival.number)
