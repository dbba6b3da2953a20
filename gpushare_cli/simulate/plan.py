"""Pods come, wait and end: what becomes of each, why some are on no node, and how full GPUs are. Pure.

The node is kube-scheduler's choice (`scheduler`); whether and where a pod fits on GPUs is the controller's (`cluster`).
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.cluster import node_ledger
from gpushare.identity import NodeName
from gpushare.model.capacity import NodeCapacity
from gpushare.model.ledger import Grant, LedgerOrRefused, Placed, RefusalReason, Refused
from gpushare_cli import schedulable, world
from gpushare_cli.kube_scores import Floats, Load
from gpushare_cli.simulate.cluster import Cluster, Learner, Nodes
from gpushare_cli.simulate.question import Question
from gpushare_cli.simulate.scheduler import Bound, Scheduler, SchedulerConfig
from gpushare_cli.simulate.signature import PodSignature
from gpushare_cli.simulate.workloads import Outcome, Pod
from gpushare_cli.world import NodeAnswer

_TOLD_EVERY: Final = 5_000  # pods
_MOST_ANSWERS: Final = 500_000  # of nodes; then a pod is told what the last one of its signature was told
_MOST_POINTS: Final = 1_200  # then every other one is dropped


@dataclass(frozen=True, slots=True)
class Event:  # a pod has come, and was bound or waits; or one that waited was bound, because another one had ended
    number: int
    pod: Pod
    signature: PodSignature
    bound: Bound | None
    came: bool


def events(scheduler: Scheduler, pods: Iterable[tuple[int, Pod, PodSignature]]) -> Iterator[Event]:
    """What happens to numbered pods. Those that wait are tried again in their order whenever one ends."""
    ends: list[tuple[float, int, Bound]] = []
    waiting: dict[PodSignature, deque[tuple[int, int, Pod]]] = {}

    def hold(number: int, pod: Pod, bound: Bound, now_s: float) -> None:
        if pod.duration_s is not None:
            heapq.heappush(ends, (now_s + pod.duration_s, number, bound))

    def freed(node: int, now_s: float) -> Iterator[Event]:
        # What did not fit anywhere before can only fit on the node that has more room now.
        for signature in sorted(waiting, key=lambda each: waiting[each][0][0]):
            queue = waiting[signature]
            only = {None, scheduler.cluster.names[node]}
            while queue and queue[0][2].only in only and scheduler.fits(signature, node):
                _, number, pod = queue.popleft()
                bound = scheduler.bind(signature, node, pod.request)
                hold(number, pod, bound, now_s)
                yield Event(number, pod, signature, bound, came=False)
            if not queue:
                del waiting[signature]

    for position, (number, pod, signature) in enumerate(pods):
        while ends and ends[0][0] <= pod.at_s:
            now_s, _, ended = heapq.heappop(ends)
            scheduler.leave(ended)
            yield from freed(ended.node, now_s)
        bound = scheduler.place(signature, pod.request, only=pod.only)
        if bound is not None:
            hold(number, pod, bound, pod.at_s)
        else:
            waiting.setdefault(signature, deque()).append((position, number, pod))
        yield Event(number, pod, signature, bound, came=True)


class AllocationSeries:
    """How much of the GPUs is allocated while pods come, in per cent of the memory of all that may be granted."""

    def __init__(self, rooms: Sequence[NodeCapacity], *, ends: bool) -> None:
        gpus = [gpu for room in rooms for gpu in room.gpus]
        self._total_mib = sum(gpu.total_mib for gpu in gpus)
        self._mean_mib = self._total_mib // max(len(gpus), 1)
        self._allocated_mib = self._asked_mib = self._total_mib - sum(gpu.free_mib for gpu in gpus)
        self.ends = ends  # if so, the points are over hours, else over what was asked for
        self.points: list[tuple[float, float]] = []
        self._every, self._seen = 1, 0

    def note(self, event: Event, free_mib: int) -> None:
        self._allocated_mib = self._total_mib - free_mib
        if not event.came:
            return
        ask = event.signature.ask  # parts and whole GPUs are counted as of a GPU of mean size
        part = self._mean_mib if ask.whole else ask.memory_mib or self._mean_mib * ask.memory_percent // 100
        self._asked_mib += ask.gpus * part
        self._seen += 1
        if self._seen % self._every == 0:
            x = event.pod.at_s / 3600 if self.ends else self.asked_percent
            self.points.append((x, self.allocated_percent))
        if len(self.points) > _MOST_POINTS:
            self.points = self.points[::2]
            self._every *= 2

    @property
    def allocated_percent(self) -> float:
        return self._percent(self._allocated_mib)

    @property
    def asked_percent(self) -> float:
        """What was there before the first pod, and what pods asked for, also those that are on no node."""
        return self._percent(self._asked_mib)

    def _percent(self, mib: int) -> float:
        return round(100 * mib / self._total_mib, 2) if self._total_mib else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:  # what becomes of one pod
    pod: Pod
    outcome: Outcome
    node: NodeName | None = None
    grants: tuple[Grant, ...] = ()
    answers: tuple[NodeAnswer, ...] = ()  # of a pod that no node takes: of all nodes in question, the closest first

    @property
    def why(self) -> str:
        return "" if self.outcome is Outcome.PLACED else self.pod.problem or world.summary(self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:  # what would go where, and the cluster afterwards
    rows: tuple[Row, ...]
    ledgers: Mapping[NodeName, LedgerOrRefused]
    rooms: tuple[NodeCapacity, ...]
    series: AllocationSeries
    placed: int


def run(
    question: Question,
    config: SchedulerConfig,
    order: Iterable[int],
    draw: Callable[[int], int],
    *,
    draw_look: Callable[[int], int] | None = None,
    details: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Place the pods, by their numbers, in this order.

    `draw` gives a number below the given one, for nodes with equal scores; `draw_look` too, for when the controller
    looks at the cluster (None: when that is due). With details also why pods are on no node.
    """
    nodes, pods = question.nodes, question.pods
    cluster = Cluster(nodes, config.policy, Learner(nodes.asks, draw=draw_look), rank_others=config.others_weight > 0)
    scheduler = Scheduler(nodes, cluster, config, draw)
    refusals = _Refusals(nodes, scheduler)
    series = AllocationSeries(cluster.rooms, ends=any(pod.duration_s is not None for pod in pods))
    rows = [Row(pod=pod, outcome=pod.outcome) for pod in pods]

    def arrivals() -> Iterator[tuple[int, Pod, PodSignature]]:
        for count, number in enumerate(order):
            if count and count % _TOLD_EVERY == 0:
                progress(count)
            if (signature := pods[number].signature) is not None:
                yield number, pods[number], signature

    for event in events(scheduler, arrivals()):
        pod, signature, bound = event.pod, event.signature, event.bound
        series.note(event, cluster.free_mib)
        if bound is None:
            told = refusals.of(pod, signature) if details else ()
            rows[event.number] = Row(pod=pod, outcome=Outcome.WAITS, answers=told)
        else:
            grants, node = bound.allocation.grants if bound.allocation else (), cluster.names[bound.node]
            rows[event.number] = Row(pod=pod, outcome=Outcome.PLACED, node=node, grants=grants)
    return Plan(
        rows=tuple(rows),
        ledgers=dict(zip(cluster.names, cluster.ledgers, strict=True)),
        rooms=tuple(cluster.rooms),
        series=series,
        placed=sum(row.outcome is Outcome.PLACED for row in rows),
    )


class _Refusals:
    """Why pods are on no node, node by node; what one was told is kept for others of its signature."""

    def __init__(self, nodes: Nodes, scheduler: Scheduler) -> None:
        self._facts = [node.facts for node in nodes.world.nodes.values()]
        self._scheduler, self._cluster = scheduler, scheduler.cluster
        self._told: dict[tuple[PodSignature, NodeName | None], tuple[int, tuple[NodeAnswer, ...]]] = {}
        self._left = _MOST_ANSWERS

    def of(self, pod: Pod, signature: PodSignature) -> tuple[NodeAnswer, ...]:
        changes = self._scheduler.changes
        known = self._told.get((signature, pod.only))
        if known is not None and (known[0] == changes or self._left <= 0):
            return known[1]
        meant = self._cluster.names if pod.only is None else [pod.only]
        self._left -= len(meant)
        ledgers = dict(zip(self._cluster.names, self._cluster.ledgers, strict=True))
        told = tuple(world.closest_first([self._answer(pod, signature, name) for name in meant], ledgers))
        self._told[signature, pod.only] = changes, told
        return told

    def _answer(self, pod: Pod, signature: PodSignature, name: NodeName) -> NodeAnswer:
        place = self._cluster.places.get(name)
        if place is None:
            unknown = Refused(RefusalReason.NO_INVENTORY, f"there is no node {name} in the input", permanent=True)
            return NodeAnswer(node=name, verdict=unknown)
        verdict, facts = self._cluster.verdict(signature, place), self._facts[place]
        if pod.bound:
            return NodeAnswer(node=name, verdict=verdict)
        lacks = schedulable.misplaced(pod.value, facts)
        if isinstance(verdict, Placed):  # a refusal has better numbers than the sums of what is requested
            requested = self._cluster.requested[place]
            lacks += node_ledger.short(dict(signature.counted), facts.allocatable, requested)
        lacks += _short_of_host(signature.load, self._scheduler.used[:, place], self._scheduler.hosts[:, place])
        if not self._scheduler.is_welcome(signature, place):
            lacks.append("pod affinity or topology spread, its own or that of pods there, keeps it away")
        return NodeAnswer(node=name, verdict=verdict, blockers=tuple(lacks))


def _short_of_host(load: Load, used: Floats, host: Floats) -> list[str]:
    lacking = []
    for what, unit, asked, taken, has in (
        ("cpu", "m", load.cpu_milli, used[0], host[0]),
        ("memory", "Mi", load.memory_mib, used[1], host[1]),
    ):
        if asked and asked + taken > has:
            lacking.append(
                f"Insufficient {what}: {asked}{unit} asked for, {has:.0f}{unit} allocatable,"
                f" {taken:.0f}{unit} requested by pods there"
            )
    if used[4] >= host[2]:
        lacking.append(f"Too many pods: {used[4]:.0f} of {host[2]:.0f} there")
    return lacking


def reason(told: Sequence[NodeAnswer]) -> str:
    """In a word or two what the node lacks that comes closest."""
    closest = next((answer for answer in told if answer.has_gpus), told[0])
    if isinstance(closest.verdict, Refused):
        return closest.verdict.reason.value
    return closest.blockers[0].partition(":")[0].partition(" is ")[0] if closest.blockers else "Unknown"
