"""Pods of a trace, one after another, to a scheduler that is simulated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.packing.policies import POLICIES
from bench.packing.workload import Workload, asks_for
from gpushare_cli import kube_scores
from gpushare_cli.kube_scores import Rules
from gpushare_cli.simulate.cluster import Cluster, Learner
from gpushare_cli.simulate.scheduler import Scheduler, SchedulerConfig
from testing.simulated_cluster import nodes_of, request_of, signature_of

SHOWN_FROM = 70  # per cent; before, everything fits
LOADS = (90, 95, 100, 110, 120, 130)  # per cent
PODS = 1_000  # of a node; the trace has no limit


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


def fill(scheduler: Scheduler, workload: Workload, order: Sequence[int]) -> tuple[Curve, int]:
    """Let the pods come; what is allocated by then, and how many are placed."""
    known = {ask: signature_of(ask) for ask in set(workload.pods)}
    curve, placed = Curve(workload.capacity), 0
    for number, position in enumerate(order):  # the same pod may come again
        signature = known[workload.pods[position]]
        bound = scheduler.place(signature, request_of(signature, number)) is not None
        placed += bound
        curve.came(asks_for(workload.pods[position]), placed=bound)
    return curve, placed


def scheduler_of(
    workload: Workload, order: Sequence[int], config: SchedulerConfig, learner: Learner, draw: Callable[[int], int]
) -> Scheduler:
    """The empty nodes of a trace, in an order that decides exact ties."""
    nodes = nodes_of([workload.nodes[node] for node in order], max_pods=PODS)
    return Scheduler(nodes, Cluster(nodes, config.policy, learner, rank_others=config.others_weight > 0), config, draw)


def replay(workload: Workload, order: Sequence[int], nodes: Sequence[int], policy: str) -> dict[int, float]:
    """Pods one after another, each to the node that ranks best; of equal ones to the first."""
    ranked, learner = POLICIES[policy]
    most = kube_scores.MOST  # decides, whatever kube-scheduler thinks
    config = SchedulerConfig(policy=ranked, rules=Rules(), weight=most, others_weight=most)
    scheduler = scheduler_of(workload, nodes, config, learner(workload), lambda _: 0)
    return fill(scheduler, workload, order)[0].at()
