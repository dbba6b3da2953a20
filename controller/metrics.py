"""Prometheus metrics of the controller. Gauges of nodes and namespaces are computed when they are asked for."""

import heapq
from collections import Counter as Multiset
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.state import ClusterState
from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import NodeLedger
from gpushare.runtime import exposition
from gpushare.runtime.clock import Clock
from gpushare.runtime.pages import Kept, Response

MOST_NAMESPACES: Final = 1000  # with series of their own, by what they hold or wait for; the others share one
MOST_GPUS: Final = 1000  # Over-committed ones, from the worst on. What a forged allocation names need not exist.
_MIB: Final = 1024 * 1024
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

Readings = Iterable[tuple[str, str, Callable[[], float]]]  # name, meaning and value
Waiting = Callable[[], Mapping[tuple[str, str], int]]  # pods by namespace and reason


class Metrics:
    def __init__(self, clock: Clock) -> None:
        self.page = Kept(lambda: Response(200, exposition.page(self.registry), exposition.CONTENT_TYPE), clock)
        self.registry = exposition.registry(names.CONTROLLER)
        counter = partial(Counter, registry=self.registry)
        name, text = "gpushare_extender_request_duration_seconds", "Time to answer kube-scheduler"
        self._seconds = Histogram(name, text, ["verb"], buckets=_SECONDS, registry=self.registry)
        self._outcomes = counter("gpushare_extender_requests", "Requests of kube-scheduler", ["verb", "outcome"])
        self._refusals = counter("gpushare_filter_nodes", "Nodes that filter has answered for", ["result"])
        self._preempt_nodes = counter("gpushare_preempt_nodes", "Nodes that preempt has answered for", ["result"])
        victims = "Pods that kube-scheduler would have evicted (kept, dropped), and others in their place (added)"
        self._victims = counter("gpushare_preempt_victims", victims, ["result"])

    def answered(self, verb: str, outcome: str, seconds: float) -> None:
        self._seconds.labels(verb).observe(seconds)
        self._outcomes.labels(verb, outcome).inc()

    def filtered(self, *, fits: int, failed: int, unresolvable: int) -> None:
        _count(self._refusals, {"fits": fits, "failed": failed, "unresolvable": unresolvable})

    def preempted(self, *, nodes: Mapping[str, int], victims: Mapping[str, int]) -> None:
        """One answer about preemption: how many nodes by ruling, and victims that were kept, dropped and added."""
        _count(self._preempt_nodes, nodes)
        _count(self._victims, victims)

    def watch(self, state: ClusterState, readings: Readings, waiting: Waiting, *, is_read: Callable[[], bool]) -> None:
        """Add what is computed at every scrape; `readings` are counters if their names end in `_total`, else gauges."""
        self.registry.register(_LedgerGauges(state, is_read))
        self.registry.register(_Readings(readings, waiting))


def _count(counter: Counter, results: Mapping[str, int]) -> None:
    for result, count in results.items():
        if count:  # else there would be a series for it
            counter.labels(result).inc(count)


@dataclass(eq=False)
class _Readings(Collector):
    readings: Readings
    waiting: Waiting

    def collect(self) -> Iterable[Metric]:
        for name, text, reading in self.readings:
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(name, text, value=reading())
        waiting = _gauge("gpushare_pods_waiting", "Pods that wait for GPUs, by reason", "namespace", "reason")
        counts = Multiset(self.waiting())
        for key in heapq.nlargest(MOST_NAMESPACES, counts, key=lambda each: (counts[each], each)):
            if key[0] != names.OTHERS:
                waiting.add_metric(key, counts.pop(key))
        others = Multiset[str]()
        for (_, reason), count in counts.items():
            others[reason] += count
        for reason, count in others.items():
            waiting.add_metric([names.OTHERS, reason], count)
        yield waiting


@dataclass(frozen=True, slots=True)
class _LedgerGauges(Collector):
    state: ClusterState
    is_read: Callable[[], bool]  # before, nodes would look empty whose pods are still being listed

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if not self.is_read():
            return
        snapshot = self.state.index.snapshot()
        nodes = {name: ledger for name, ledger in snapshot.ledgers.items() if isinstance(ledger, NodeLedger)}
        yield from _nodes(nodes)
        yield from _over_committed(nodes)
        yield from _namespaces(nodes.values())
        unconfirmed, unreadable = self.state.index.unconfirmed(), len(snapshot.problems)
        text = "Choices whose Binding is being sent or in doubt"
        yield GaugeMetricFamily("gpushare_reservations_unconfirmed", text, value=unconfirmed)
        text = "Bound pods whose allocation cannot be read; their nodes may take no new pods"
        yield GaugeMetricFamily("gpushare_pods_unreadable", text, value=unreadable)


def _usable_mib(ledger: NodeLedger) -> int:
    gpus, unit = ledger.inventory.gpus, ledger.inventory.unit
    return sum(unit.floor(gpu.memory_mib) * unit.mib for gpu in gpus if gpu.health is GpuHealth.HEALTHY)


_OF_NODES: Final[Iterable[tuple[str, str, Callable[[NodeLedger], int]]]] = (
    (
        "memory_total_bytes",
        "Memory of a node's GPUs, without what the driver keeps",
        lambda ledger: _MIB * sum(gpu.memory_mib for gpu in ledger.inventory.gpus),
    ),
    (
        "memory_usable_bytes",
        "Memory of a node's GPUs that can be granted: of healthy GPUs, in whole units",
        lambda ledger: _MIB * _usable_mib(ledger),
    ),
    (
        "memory_grantable_bytes",
        "Memory of a node's GPUs that may be granted in all; above the total where GPUs are oversubscribed",
        lambda ledger: _MIB * sum(gpu.grantable_mib for gpu in ledger.inventory.gpus),
    ),
    (
        "memory_granted_bytes",
        "GPU memory of a node that pods were granted",
        lambda ledger: _MIB * sum(ledger.used_mib.values()),
    ),
    ("pods", "Pods that hold GPU memory on a node", lambda ledger: len(ledger.allocations)),
)


def _nodes(nodes: Mapping[NodeName, NodeLedger]) -> Iterator[Metric]:
    for name, meaning, amount in _OF_NODES:
        gauge = _gauge(f"gpushare_node_{name}", meaning, "node")
        for node, ledger in nodes.items():
            gauge.add_metric([node], amount(ledger))
        yield gauge
    gpus = _gauge("gpushare_node_gpus", "GPUs of a node by health", "node", "health")
    for node, ledger in nodes.items():
        for health, count in Multiset(gpu.health for gpu in ledger.inventory.gpus).items():
            gpus.add_metric([node, health.value], count)
    yield gpus


def _over_committed(nodes: Mapping[NodeName, NodeLedger]) -> Iterator[Metric]:
    text = "Memory granted beyond what a GPU has, because it shrank, vanished, or another system granted it"
    memory = _gauge("gpushare_gpu_over_committed_bytes", text, "node", "UUID")
    text = "Compute granted beyond all of a GPU's, because another system granted it; 1 is a whole GPU's"
    compute = _gauge("gpushare_gpu_over_committed_compute_ratio", text, "node", "UUID")
    for family, scale, over in ((memory, _MIB, NodeLedger.over_committed), (compute, 0.01, NodeLedger.over_computed)):
        found = ((amount, name, gpu) for name, ledger in nodes.items() for gpu, amount in over(ledger).items())
        for amount, name, gpu in heapq.nlargest(MOST_GPUS, found):
            family.add_metric([name, exposition.short(gpu)], amount * scale)
        yield family


def _namespaces(ledgers: Iterable[NodeLedger]) -> Iterator[Metric]:
    held_mib, pods = Multiset[str](), Multiset[str]()
    for ledger in ledgers:
        for allocation in ledger.allocations.values():
            namespace = allocation.pod.namespace
            held_mib[namespace] += sum(each.memory_mib for each in ledger.held(allocation).values())
            pods[namespace] += 1
    named = heapq.nlargest(MOST_NAMESPACES, pods, key=lambda each: (held_mib[each], pods[each], each))
    text = "GPU memory that the pods of a namespace were granted"
    granted = _gauge("gpushare_namespace_memory_granted_bytes", text, "namespace")
    counted = _gauge("gpushare_namespace_pods", "Pods of a namespace that hold GPU memory", "namespace")
    for family, amounts, scale in ((granted, held_mib, _MIB), (counted, pods, 1)):
        for namespace in named:
            family.add_metric([namespace], amounts.pop(namespace) * scale)
        if amounts:
            family.add_metric([names.OTHERS], amounts.total() * scale)
        yield family


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels)
