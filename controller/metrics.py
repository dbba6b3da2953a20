"""Prometheus metrics of the controller. Gauges of nodes are computed when they are asked for, from the ledger."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.ledger_metrics import LedgerGauges
from controller.reconcile.waiting import Waiting
from controller.state import ClusterState
from gpushare import names
from gpushare.runtime import exposition
from gpushare.runtime.clock import Clock
from gpushare.runtime.pages import Kept, Page

CONTENT_TYPE: Final = exposition.CONTENT_TYPE
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

Reading = Callable[[], float]


class Metrics:
    """All metrics of one controller, in a registry of its own."""

    def __init__(self, clock: Clock) -> None:
        self._page = Kept(lambda: Page(200, exposition.page(self.registry), CONTENT_TYPE), clock)
        self.registry = exposition.registry(names.CONTROLLER)
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

    def watch(
        self,
        state: ClusterState,
        readings: Mapping[str, tuple[str, Reading]],
        waiting: Callable[[], Waiting],
        *,
        is_read: Callable[[], bool],
    ) -> None:
        """Add the gauges that are computed at every scrape, and counters if their names end in `_total`.

        Args:
            state: of the cluster.
            readings: help text and function of each, by name.
            waiting: pods that wait.
            is_read: whether the state has all nodes and pods.
        """
        self.registry.register(LedgerGauges(state, is_read))
        self.registry.register(_Readings(readings))
        self.registry.register(_WaitingPods(waiting))

    def page(self) -> bytes:
        """The exposition of this second."""
        return self._page().body


@dataclass(eq=False)
class _Readings(Collector):
    readings: Mapping[str, tuple[str, Reading]]

    def collect(self) -> Iterable[Metric]:
        for name, (text, reading) in self.readings.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(name, text, value=reading())


@dataclass(eq=False)
class _WaitingPods(Collector):
    waiting: Callable[[], Waiting]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("gpushare_pods_waiting", "Pods that wait for GPUs, by reason", labels=["reason"])
        for reason, count in self.waiting().items():
            family.add_metric([reason], count)
        yield family
