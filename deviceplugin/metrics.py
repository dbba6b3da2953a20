"""Prometheus metrics of the device plugin. What is granted and used is computed when it is asked for."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.counts import Counts
from deviceplugin.usage.values import NodeUsage
from gpushare.model.gpu import GpuHealth

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST
MOST_ROWS: Final = 2048
"""Containers on GPUs with series of their own; more than a node has, unless someone wants to fill Prometheus."""
_LONGEST: Final = 253
"""Characters of a label's value: the longest name that Kubernetes has. An allocation may name what no pod can have."""
_MIB: Final = 1024 * 1024
_LABELS: Final = ("namespace", "pod", "container", "gpu")


def page(usage: Callable[[], NodeUsage | None], counts: Counts) -> bytes:
    """The exposition."""
    registry = CollectorRegistry()
    registry.register(_Metrics(usage, counts))
    return prometheus_client.generate_latest(registry)


@dataclass(eq=False)
class _Metrics(Collector):
    usage: Callable[[], NodeUsage | None]
    counts: Counts

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if (usage := self.usage()) is not None:
            yield from _reading(usage)
            yield from _gpus(usage)
            yield from _containers(usage)
            if usage.over is not None:
                yield GaugeMetricFamily(
                    "gpushare_plugin_containers_over_grant",
                    "Containers on GPUs that use more than their grant for longer than the grace period",
                    usage.over,
                )
        starts = CounterMetricFamily(
            "gpushare_plugin_starts_total",
            "Starts of containers that hold GPUs, by outcome and the reason of a refusal",
            labels=["outcome", "reason"],
        )
        for outcome, count in self.counts.starts().items():
            starts.add_metric(outcome, count)
        yield starts
        actions = CounterMetricFamily(
            "gpushare_plugin_watchdog_actions_total",
            "What the watchdog did about containers above their grant",
            labels=["action", "result"],
        )
        for done, count in self.counts.actions().items():
            actions.add_metric(done, count)
        yield actions


def _reading(usage: NodeUsage) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "gpushare_plugin_usage_info",
        "Whether it is read what containers use: on, off, no-host-pid where the node's processes cannot be seen, or"
        " no-answer while the driver does not list processes",
        labels=["reading"],
    )
    info.add_metric([usage.reading.value], 1)
    yield info
    processes = GaugeMetricFamily(
        "gpushare_plugin_gpu_processes",
        "Processes that the driver lists, by whether the node has them",
        labels=["known"],
    )
    if usage.processes is not None:
        for known, count in zip(("true", "false"), usage.processes, strict=True):
            processes.add_metric([known], count)
    yield processes


def _gpus(usage: NodeUsage) -> Iterator[Metric]:
    gpus = GaugeMetricFamily(
        "gpushare_plugin_gpus", "GPUs by health and by what holds containers to their share", labels=["health", "limit"]
    )
    for (health, limit), count in Counter((gpu.health.value, gpu.limit.value) for gpu in usage.gpus).items():
        gpus.add_metric([health, limit], count)
    total = GaugeMetricFamily(
        "gpushare_plugin_gpu_memory_bytes", "Memory of a GPU", labels=["gpu", "index", "model", "limit"]
    )
    foreign = GaugeMetricFamily(
        "gpushare_plugin_gpu_foreign_bytes",
        "Memory of a GPU used by processes of no pod that holds GPUs here",
        labels=["gpu"],
    )
    limits = GaugeMetricFamily(
        "gpushare_plugin_gpu_limit_info",
        "What holds limits on a GPU, whether a program cannot bypass that, and why nothing stronger does",
        labels=["gpu", "limit", "enforced", "reason"],
    )
    unhealthy = GaugeMetricFamily(
        "gpushare_plugin_gpu_unhealthy",
        "1 for each GPU that takes no new containers",
        labels=["gpu", "index", "reason"],
    )
    for gpu in usage.gpus:
        total.add_metric([gpu.uuid, str(gpu.index), _short(gpu.model), gpu.limit.value], gpu.memory_mib * _MIB)
        limits.add_metric([gpu.uuid, gpu.limit.value, str(gpu.limit.enforced).lower(), _short(gpu.limit_reason)], 1)
        if gpu.uuid in usage.foreign:
            foreign.add_metric([gpu.uuid], usage.foreign[gpu.uuid])
        if gpu.health is not GpuHealth.HEALTHY:
            unhealthy.add_metric([gpu.uuid, str(gpu.index), _short(gpu.reason)], 1)
    for left in usage.left_out:
        unhealthy.add_metric(["", str(left.index), _short(left.reason)], 1)
    yield from (gpus, total, limits, foreign, unhealthy)


def _containers(usage: NodeUsage) -> Iterator[Metric]:
    granted = GaugeMetricFamily(
        "gpushare_plugin_container_granted_bytes",
        "GPU memory granted to a container, and what holds it to that",
        labels=[*_LABELS, "limit"],
    )
    used = GaugeMetricFamily("gpushare_plugin_container_used_bytes", "GPU memory that it uses", labels=_LABELS)
    peak = GaugeMetricFamily("gpushare_plugin_container_peak_bytes", "The most that it was seen to use", labels=_LABELS)
    gpus = {gpu.uuid: gpu for gpu in usage.gpus}
    for row in usage.rows[:MOST_ROWS]:
        labels = list(map(_short, (row.pod.namespace, row.pod.name, row.container, row.gpu)))
        gpu = gpus.get(row.gpu)
        granted.add_metric([*labels, gpu.limit_of(row.granted_mib).value if gpu else ""], row.granted_mib * _MIB)
        if row.used is not None:
            used.add_metric(labels, row.used)
        if row.peak is not None:
            peak.add_metric(labels, row.peak)
    left_out = max(0, len(usage.rows) - MOST_ROWS)
    yield from (granted, used, peak)
    yield GaugeMetricFamily(
        "gpushare_plugin_containers_left_out",
        "Containers on GPUs that have no series, because of their number",
        left_out,
    )


def _short(value: str) -> str:
    return value[:_LONGEST]
