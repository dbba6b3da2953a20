"""Pods of a trace, one after another, each to the node where it costs least."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.packing.policies import Scheduler, admits
from bench.packing.workload import Workload, asks_for
from gpushare.model.room import Ask, NodeRoom
from gpushare.placement.ranking import best

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


@dataclass
class _Costs:
    """Of all nodes, for one kind of pod, as of some moment."""

    epoch: int
    seen: int = 0
    by_node: list[float] = field(default_factory=list)


class _Cluster:
    def __init__(self, nodes: Sequence[NodeRoom], scheduler: Scheduler) -> None:
        self.rooms = list(nodes)
        self._scheduler = scheduler
        self._changed: list[int] = []
        self._costs: dict[Ask, _Costs] = {}

    def place(self, ask: Ask) -> bool:
        costs = self._refreshed(ask)
        least = min(costs)
        if least == math.inf:
            return False
        node = costs.index(least)
        found = best(ask, self.rooms[node], self._scheduler.ranking)
        if found is None:
            raise AssertionError("a node that fitted does not fit")
        self.rooms[node] = self.rooms[node].after(ask, found.gpus)
        self._changed.append(node)
        return True

    def _refreshed(self, ask: Ask) -> list[float]:
        known = self._costs.get(ask)
        if known is None or known.epoch != self._scheduler.epoch:
            known = self._costs[ask] = _Costs(self._scheduler.epoch, len(self._changed))
            known.by_node = [self._cost(ask, room) for room in self.rooms]
        for node in set(self._changed[known.seen :]):
            known.by_node[node] = self._cost(ask, self.rooms[node])
        known.seen = len(self._changed)
        return known.by_node

    def _cost(self, ask: Ask, room: NodeRoom) -> float:
        if not admits(ask.models, room.model):
            return math.inf
        found = best(ask, room, self._scheduler.ranking)
        return math.inf if found is None else found.cost


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
