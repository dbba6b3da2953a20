"""Prometheus metrics of the device plugin. What is granted and used is computed when it is asked for."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.counts import Counts
from deviceplugin.usage.values import NOTHING, NodeUsage, Row
from gpushare import names
from gpushare.model.gpu import Gpu, GpuHealth
from gpushare.runtime import exposition
from gpushare.runtime.exposition import short

CONTENT_TYPE: Final = exposition.CONTENT_TYPE
MOST_ROWS: Final = 2048
"""Containers on GPUs with series of their own; more than a node has, unless someone wants to fill Prometheus."""
_MIB: Final = 1024 * 1024
_GPU: Final = ("node", "UUID", "gpu")
"""A GPU and its number, as DCGM exporter names them."""
_CONTAINER: Final = (*_GPU, "namespace", "pod", "container")


def page(usage: Callable[[], NodeUsage | None], counts: Counts, node: str) -> bytes:
    """The exposition."""
    registry = exposition.registry(names.PLUGIN)
    registry.register(_Metrics(usage, counts, node))
    return exposition.page(registry)


@dataclass(eq=False)
class _Metrics(Collector):
    usage: Callable[[], NodeUsage | None]
    counts: Counts
    node: str

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if (usage := self.usage()) is not None:
            yield from _reading(usage)
            yield from _counted(usage)
            yield from _amounts(usage)
            yield from _states(usage)
            yield from _containers(usage)
            if usage.over is not None:
                yield _of_node(
                    "gpushare_plugin_containers_over_grant",
                    "Containers on GPUs that use more than their grant for longer than the grace period",
                    usage,
                    usage.over,
                )
        starts = CounterMetricFamily(
            "gpushare_plugin_starts_total",
            "Starts of containers that hold GPUs, by outcome and the reason of a refusal",
            labels=["node", "outcome", "reason"],
        )
        for outcome, count in self.counts.starts().items():
            starts.add_metric([self.node, *outcome], count)
        yield starts
        actions = CounterMetricFamily(
            "gpushare_plugin_watchdog_actions_total",
            "What the watchdog did about containers above their grant",
            labels=["node", "action", "result"],
        )
        for done, count in self.counts.actions().items():
            actions.add_metric([self.node, *done], count)
        yield actions


def _reading(usage: NodeUsage) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "gpushare_plugin_usage_info",
        "Whether it is read what containers use: on, off, no-host-pid where the node's processes cannot be seen, or"
        " no-answer while the driver does not list processes",
        labels=["node", "reading"],
    )
    info.add_metric([usage.node, usage.reading.value], 1)
    yield info
    processes = GaugeMetricFamily(
        "gpushare_plugin_gpu_processes",
        "Processes that the driver lists, by whether the node has them",
        labels=["node", "known"],
    )
    if usage.processes is not None:
        for known, count in zip(("true", "false"), usage.processes, strict=True):
            processes.add_metric([usage.node, known], count)
    yield processes


def _counted(usage: NodeUsage) -> Iterator[Metric]:
    gpus = GaugeMetricFamily(
        "gpushare_plugin_gpus",
        "GPUs by health and by what holds containers to their share",
        labels=["node", "health", "limit"],
    )
    for (health, limit), count in Counter((gpu.health.value, gpu.limit.value) for gpu in usage.gpus).items():
        gpus.add_metric([usage.node, health, limit], count)
    yield gpus


def _amounts(usage: NodeUsage) -> Iterator[Metric]:
    total = _of_gpus(
        "gpushare_plugin_gpu_memory_bytes", "Memory of a GPU, without what the driver keeps", "model", "limit"
    )
    usable = _of_gpus(
        "gpushare_plugin_gpu_memory_usable_bytes",
        "Memory of it that can be granted, in whole units; 0 if it is not healthy",
    )
    grantable = _of_gpus(
        "gpushare_plugin_gpu_memory_grantable_bytes",
        "Memory of it that may be granted in all; above the total where it is oversubscribed",
    )
    granted = _of_gpus("gpushare_plugin_gpu_memory_granted_bytes", "Memory of it that pods were granted")
    used = _of_gpus(
        "gpushare_plugin_gpu_memory_used_bytes", "Memory of it that processes use; missing while it is not known"
    )
    compute = _of_gpus(
        "gpushare_plugin_gpu_compute_granted_ratio", "Compute of it that is set aside for pods; 1 is all of it"
    )
    pods = _of_gpus("gpushare_plugin_gpu_pods", "Pods that hold a share of it")
    foreign = _of_gpus(
        "gpushare_plugin_gpu_foreign_bytes", "Memory of it used by processes of no pod that holds GPUs here"
    )
    for gpu in usage.gpus:
        place, found = _place(usage, gpu), usage.totals.get(gpu.uuid, NOTHING)
        total.add_metric([*place, short(gpu.model), gpu.limit.value], gpu.memory_mib * _MIB)
        usable.add_metric(place, found.usable_mib * _MIB)
        grantable.add_metric(place, gpu.grantable_mib * _MIB)
        granted.add_metric(place, found.granted_mib * _MIB)
        compute.add_metric(place, found.granted_percent / 100)
        pods.add_metric(place, found.pods)
        if found.used is not None:
            used.add_metric(place, found.used)
        if gpu.uuid in usage.foreign:
            foreign.add_metric(place, usage.foreign[gpu.uuid])
    yield from (total, usable, grantable, granted, used, compute, pods, foreign)


def _states(usage: NodeUsage) -> Iterator[Metric]:
    healthy = _of_gpus("gpushare_plugin_gpu_healthy", "1 if it takes new containers, else 0")
    unhealthy = _of_gpus(
        "gpushare_plugin_gpu_unhealthy", "1 for each GPU that takes no new containers, with the reason", "reason"
    )
    limits = _of_gpus(
        "gpushare_plugin_gpu_limit_info",
        "1, with what holds limits on it (mig: for all of an instance), whether a program cannot bypass that, and why"
        " nothing stronger does",
        *("limit", "enforced", "reason"),
    )
    for gpu in usage.gpus:
        place = _place(usage, gpu)
        healthy.add_metric(place, int(gpu.health is GpuHealth.HEALTHY))
        limits.add_metric([*place, gpu.limit.value, str(gpu.limit.enforced).lower(), short(gpu.limit_reason)], 1)
        if gpu.health is not GpuHealth.HEALTHY:
            unhealthy.add_metric([*place, short(gpu.reason)], 1)
    for left in usage.left_out:
        unhealthy.add_metric([usage.node, "", str(left.index), short(left.reason)], 1)
    yield from (healthy, limits, unhealthy)


def _of_gpus(name: str, meaning: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=[*_GPU, *more])


def _of_node(name: str, meaning: str, usage: NodeUsage, value: int) -> GaugeMetricFamily:
    found = GaugeMetricFamily(name, meaning, labels=["node"])
    found.add_metric([usage.node], value)
    return found


def _place(usage: NodeUsage, gpu: Gpu) -> list[str]:
    return [usage.node, short(gpu.uuid), gpu.label]


def _containers(usage: NodeUsage) -> Iterator[Metric]:
    granted = GaugeMetricFamily(
        "gpushare_plugin_container_granted_bytes",
        "GPU memory granted to a container, and what holds it to that",
        labels=[*_CONTAINER, "limit"],
    )
    used = GaugeMetricFamily(
        "gpushare_plugin_container_used_bytes", "GPU memory that it uses; missing while unknown", labels=_CONTAINER
    )
    peak = GaugeMetricFamily(
        "gpushare_plugin_container_peak_bytes", "The most that it was seen to use", labels=_CONTAINER
    )
    gpus = {gpu.uuid: gpu for gpu in usage.gpus}
    for row in shown(usage.rows):
        gpu = gpus.get(row.gpu)
        container = row.container or names.OTHERS
        place = [usage.node, row.gpu, gpu.label if gpu else "", row.pod.namespace, row.pod.name, container]
        labels = list(map(short, place))
        granted.add_metric([*labels, gpu.limit_of(row.granted_mib).value if gpu else ""], row.granted_mib * _MIB)
        if row.used is not None:
            used.add_metric(labels, row.used)
        if row.peak is not None:
            peak.add_metric(labels, row.peak)
    yield from (granted, used, peak)
    left_out = max(0, len(usage.rows) - MOST_ROWS)
    yield _of_node(
        "gpushare_plugin_containers_left_out",
        "Containers on GPUs that have no series, because of their number",
        usage,
        left_out,
    )


def shown(rows: Sequence[Row]) -> Sequence[Row]:
    """Those that get series: the first of every pod before the second of any, so that no pod hides another one."""
    if len(rows) <= MOST_ROWS:
        return rows
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int]] = []
    for number, row in enumerate(rows):
        turns.append((seen[row.pod.uid], number))
        seen[row.pod.uid] += 1
    return [rows[number] for number in sorted(number for _, number in sorted(turns)[:MOST_ROWS])]
