"""Pods of a trace, one after another, each to the node where it costs least."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.packing.board import Board
from bench.packing.policies import Scheduler
from bench.packing.workload import Workload, asks_for
from gpushare.model.room import Ask, NodeRoom
from gpushare.placement.ranking import choose

SHOWN_FROM = 70  # per cent; before, everything fits
LOADS = (90, 95, 100, 110, 120, 130)  # per cent


@dataclass(frozen=True)
class Outcome:
    trace: str
    policy: str
    seed: int
    at: dict[int, float]
    """Per cent of the GPUs that are allocated, by per cent that pods have asked for."""
    cpu_s: float


class _Cluster:
    def __init__(self, nodes: Sequence[NodeRoom], scheduler: Scheduler) -> None:
        self.rooms = list(nodes)
        self._scheduler = scheduler
        self._rankings = scheduler.rankings
        self._board: Board[int] = Board(self._rankings)
        self._names = range(len(nodes))
        for name, room in enumerate(nodes):
            self._board.set(name, room)

    def place(self, ask: Ask) -> bool:
        if self._scheduler.rankings is not self._rankings:
            self._rankings = self._scheduler.rankings
            self._board.under(self._rankings)
        ranked = self._board.rank(ask, None, self._names)
        if not ranked.best:
            return False
        node = ranked.best[0]
        gpus = choose(ask, self.rooms[node].gpus, self._rankings.of(None))
        if gpus is None:
            raise AssertionError("a node that fitted does not fit")
        self.rooms[node] = self.rooms[node].after(ask, gpus)
        self._board.set(node, self.rooms[node])
        return True


class Curve:
    """Allocation over load, as published: the mean of the arrivals at which the load rounds to a per cent."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sums: dict[int, tuple[float, int]] = {}
        self._arrived = self._used = 0

    def came(self, asked: int, *, placed: bool) -> None:
        """A pod came, and asked for so much."""
        self._arrived += asked
        self._used += asked if placed else 0
        load = round(100 * self._arrived / self._capacity)
        total, count = self._sums.get(load, (0.0, 0))
        self._sums[load] = (total + 100 * self._used / self._capacity, count + 1)

    def at(self) -> dict[int, float]:
        """Per cent allocated by per cent arrived, from `SHOWN_FROM` on; all of `LOADS` are there."""
        means = {load: round(total / count, 2) for load, (total, count) in self._sums.items()}
        shown = {load: mean for load, mean in means.items() if load >= SHOWN_FROM}
        return shown | {load: means[max(known for known in means if known <= load)] for load in LOADS}


def replay(workload: Workload, order: Sequence[int], nodes: Sequence[int], scheduler: Scheduler) -> dict[int, float]:
    """Pods one after another, each to the node that ranks best."""
    cluster, curve = _Cluster([workload.nodes[node] for node in nodes], scheduler), Curve(workload.capacity)
    for position in order:
        pod = workload.pods[position]
        scheduler.came(pod, cluster.rooms)
        curve.came(asks_for(pod), placed=cluster.place(pod))
    return curve.at()
