"""Prometheus metrics of the controller. Gauges of nodes are computed when they are asked for, from the ledger."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.state import ClusterState
from gpushare.model.ledger import NodeLedger

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST
_MIB: Final = 1024 * 1024
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

Reading = Callable[[], float]


class Metrics:
    """All metrics of one controller, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "gpushare_extender_seconds",
            "Time to answer kube-scheduler",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._outcomes = Counter(
            "gpushare_extender_requests", "Requests of kube-scheduler", ["verb", "outcome"], registry=self.registry
        )
        self._refusals = Counter(
            "gpushare_filter_nodes", "Nodes that filter has answered for", ["result"], registry=self.registry
        )
        self._preempt_nodes = Counter(
            "gpushare_preempt_nodes", "Nodes that preempt has answered for", ["result"], registry=self.registry
        )
        self._victims = Counter(
            "gpushare_preempt_victims",
            "Pods that kube-scheduler would have evicted (kept, dropped), and others in their place (added)",
            ["result"],
            registry=self.registry,
        )

    def answered(self, verb: str, outcome: str, seconds: float) -> None:
        """One request of kube-scheduler."""
        self._seconds.labels(verb).observe(seconds)
        self._outcomes.labels(verb, outcome).inc()

    def filtered(self, *, fits: int, failed: int, unresolvable: int) -> None:
        """Nodes of one filter."""
        for result, count in (("fits", fits), ("failed", failed), ("unresolvable", unresolvable)):
            if count:
                self._refusals.labels(result).inc(count)

    def preempted(self, *, nodes: Mapping[str, int], victims: Mapping[str, int]) -> None:
        """One answer about preemption: how many nodes by ruling, and victims that were kept, dropped and added."""
        for counter, counts in ((self._preempt_nodes, nodes), (self._victims, victims)):
            for result, count in counts.items():
                counter.labels(result).inc(count)

    def watch(self, state: ClusterState, readings: Mapping[str, tuple[str, Reading]]) -> None:
        """Add the gauges that are computed at every scrape, and counters if their names end in `_total`.

        Each reading is a help text and a function, by name.
        """
        self.registry.register(_LedgerGauges(state))
        self.registry.register(_Readings(readings))

    def page(self) -> bytes:
        """The exposition."""
        return prometheus_client.generate_latest(self.registry)


@dataclass(eq=False)
class _Readings(Collector):
    readings: Mapping[str, tuple[str, Reading]]

    def collect(self) -> Iterable[Metric]:
        for name, (text, reading) in self.readings.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(name, text, value=reading())


@dataclass(eq=False)
class _LedgerGauges(Collector):
    state: ClusterState

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        total = GaugeMetricFamily("gpushare_node_memory_total_bytes", "GPU memory of a node", labels=["node"])
        used = GaugeMetricFamily("gpushare_node_memory_used_bytes", "GPU memory granted on a node", labels=["node"])
        over = GaugeMetricFamily(
            "gpushare_gpu_over_committed_bytes",
            "Memory granted beyond what a GPU has, because it shrank, vanished, or another system granted it",
            labels=["node", "gpu"],
        )
        compute = GaugeMetricFamily(
            "gpushare_gpu_over_committed_percent",
            "Compute granted beyond 100 per cent of a GPU, because another system granted it",
            labels=["node", "gpu"],
        )
        pods = GaugeMetricFamily("gpushare_node_pods", "Pods that hold GPU memory on a node", labels=["node"])
        snapshot = self.state.cache.snapshot()
        for name, ledger in snapshot.ledgers.items():
            if isinstance(ledger, NodeLedger):
                total.add_metric([name], sum(gpu.memory_mib for gpu in ledger.inventory.gpus) * _MIB)
                used.add_metric([name], sum(ledger.used_mib.values()) * _MIB)
                pods.add_metric([name], len(ledger.allocations))
                for gpu, mib in ledger.over_committed().items():
                    over.add_metric([name, gpu], mib * _MIB)
                for gpu, percent in ledger.over_computed().items():
                    compute.add_metric([name, gpu], percent)
        yield from (total, used, over, compute, pods)
        yield GaugeMetricFamily(
            "gpushare_reservations_unconfirmed",
            "Choices whose Binding is being sent or in doubt",
            value=snapshot.unconfirmed,
        )
        yield GaugeMetricFamily(
            "gpushare_pods_unreadable",
            "Bound pods whose allocation cannot be read; their nodes may take no new pods",
            value=len(snapshot.problems),
        )
