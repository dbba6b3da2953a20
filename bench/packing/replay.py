"""Pods of a trace, one after another, to a scheduler that is simulated."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.packing.policies import POLICIES
from bench.packing.workload import Workload, asks_for
from gpushare.model.capacity import NodeCapacity
from gpushare.simulation import scores
from gpushare.simulation.cluster import Nodes
from gpushare.simulation.engine import Extender, Scheduler
from gpushare.simulation.kinds import Kind
from gpushare.simulation.plain_gpus import PlainGpus
from gpushare.simulation.scores import Host, Rules

SHOWN_FROM = 70  # per cent; before, everything fits
LOADS = (90, 95, 100, 110, 120, 130)  # per cent
PODS = 1_000  # of a node; the trace has no limit
ALONE = Extender(weight=scores.MOST, others_weight=scores.MOST)
"""Decides, whatever kube-scheduler thinks."""


@dataclass(frozen=True)
class Outcome:
    trace: str
    policy: str
    seed: int
    at: dict[int, float]
    """Per cent of the GPUs that are allocated, by per cent that pods have asked for."""
    cpu_s: float


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


def hosts(rooms: Sequence[NodeCapacity]) -> Nodes:
    """Nodes of a trace, which all tell their CPU and memory."""
    return Nodes([Host(*room.host, PODS) for room in rooms if room.host is not None])


def fill(scheduler: Scheduler, workload: Workload, order: Sequence[int]) -> tuple[Curve, int]:
    """Let the pods come; what is allocated by then, and how many are placed."""
    kinds, curve, placed = [Kind.plain(pod) for pod in workload.pods], Curve(workload.capacity), 0
    for position in order:
        bound = scheduler.place(kinds[position]) is not None
        placed += bound
        curve.came(asks_for(workload.pods[position]), placed=bound)
    return curve, placed


def replay(workload: Workload, order: Sequence[int], nodes: Sequence[int], policy: str) -> dict[int, float]:
    """Pods one after another, each to the node that ranks best; of equal ones to the first."""
    ranked, knowledge = POLICIES[policy]
    rooms = [workload.nodes[node] for node in nodes]
    gpus = PlainGpus(rooms, ranked, knowledge(workload))
    scheduler = Scheduler(hosts(rooms), gpus, rules=Rules(), extender=ALONE, pick=lambda _: 0)
    return fill(scheduler, workload, order)[0].at()
