"""Prometheus metrics of the device plugin. What is granted and used is computed when it is asked for."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.usage.values import GpuTotal, NodeUsage, Row
from gpushare import names
from gpushare.model.gpu import Gpu, GpuHealth
from gpushare.runtime import exposition
from gpushare.runtime.exposition import short
from gpushare.units import MIB

CONTENT_TYPE: Final = exposition.CONTENT_TYPE
MOST_ROWS: Final = 2048  # containers on GPUs with series of their own, unless someone wants to fill Prometheus
_GPU: Final = ("node", "UUID", "gpu")  # A GPU and its number, as DCGM exporter names them
_CONTAINER: Final = (*_GPU, "namespace", "pod", "container")
Counts = Mapping[tuple[str, str], int]  # of starts by outcome and reason, or of actions by action and result
Sample = tuple[Sequence[str], float | None]  # values of the labels, and the value; None: no such series


def page(usage: NodeUsage | None, starts: Counts, actions: Counts, node: str) -> bytes:
    registry = exposition.registry(names.PLUGIN)
    registry.register(_Metrics(usage, starts, actions, node))
    return exposition.page(registry)


@dataclass(eq=False)
class _Metrics(Collector):
    usage: NodeUsage | None
    starts: Counts
    actions: Counts
    node: str

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if self.usage is not None:
            yield from _of_node(self.usage)
            yield from _of_gpus(self.usage)
            yield from _of_containers(self.usage)
        starts = CounterMetricFamily(
            "gpushare_plugin_starts_total",
            "Starts of containers that hold GPUs, by outcome and the reason of a refusal",
            labels=["node", "outcome", "reason"],
        )
        actions = CounterMetricFamily(
            "gpushare_plugin_watchdog_actions_total",
            "What the watchdog did about containers above their grant",
            labels=["node", "action", "result"],
        )
        for family, counts in ((starts, self.starts), (actions, self.actions)):
            for labels, count in counts.items():
                family.add_metric([self.node, *labels], count)
            yield family


def _gauge(name: str, meaning: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def _of_node(usage: NodeUsage) -> Iterator[Metric]:
    yield _gauge(
        "gpushare_plugin_usage_info",
        "Whether it is read what containers use: on, off, no-host-pid where the node's processes cannot be seen, or"
        " no-answer while the driver does not list processes",
        ["node", "reading"],
        [([usage.node, usage.reading.value], 1)],
    )
    yield _gauge(
        "gpushare_plugin_gpu_processes",
        "Processes that the driver lists, by whether the node has them",
        ["node", "known"],
        [([usage.node, known], count) for known, count in zip(("true", "false"), usage.processes or (), strict=False)],
    )
    kinds = Counter((gpu.health.value, gpu.limit.value) for gpu in usage.gpus)
    yield _gauge(
        "gpushare_plugin_gpus",
        "GPUs by health and by what holds containers to their share",
        ["node", "health", "limit"],
        [([usage.node, *kind], count) for kind, count in kinds.items()],
    )


def _of_gpus(usage: NodeUsage) -> Iterator[Metric]:
    places = {gpu: (usage.node, short(gpu.uuid), gpu.label) for gpu in usage.gpus}

    def each(name: str, meaning: str, value: Callable[[Gpu, GpuTotal], float | None]) -> Metric:
        amounts = ((places[gpu], value(gpu, usage.totals.get(gpu.uuid, GpuTotal()))) for gpu in usage.gpus)
        return _gauge(name, meaning, _GPU, amounts)

    yield _gauge(
        "gpushare_plugin_gpu_memory_bytes",
        "Memory of a GPU, without what the driver keeps",
        [*_GPU, "model", "limit"],
        [((*places[gpu], short(gpu.model), gpu.limit.value), gpu.memory_mib * MIB) for gpu in usage.gpus],
    )
    yield each(
        "gpushare_plugin_gpu_memory_usable_bytes",
        "Memory of it that can be granted, in whole units; 0 if it is not healthy",
        lambda _gpu, total: total.usable_mib * MIB,
    )
    yield each(
        "gpushare_plugin_gpu_memory_grantable_bytes",
        "Memory of it that may be granted in all; above the total where it is oversubscribed",
        lambda gpu, _total: gpu.grantable_mib * MIB,
    )
    yield each(
        "gpushare_plugin_gpu_memory_granted_bytes",
        "Memory of it that pods were granted",
        lambda _gpu, total: total.granted_mib * MIB,
    )
    yield each(
        "gpushare_plugin_gpu_memory_used_bytes",
        "Memory of it that processes use; missing while it is not known",
        lambda _gpu, total: total.used,
    )
    yield each(
        "gpushare_plugin_gpu_compute_granted_ratio",
        "Compute of it that is set aside for pods; 1 is all of it",
        lambda _gpu, total: total.granted_percent / 100,
    )
    yield each("gpushare_plugin_gpu_pods", "Pods that hold a share of it", lambda _gpu, total: total.pods)
    yield each(
        "gpushare_plugin_gpu_foreign_bytes",
        "Memory of it used by processes of no pod that holds GPUs here",
        lambda gpu, _total: usage.foreign.get(gpu.uuid),
    )
    yield each(
        "gpushare_plugin_gpu_healthy",
        "1 if it takes new containers, else 0",
        lambda gpu, _total: int(gpu.health is GpuHealth.HEALTHY),
    )
    yield _gauge(
        "gpushare_plugin_gpu_limit_info",
        "1, with what holds limits on it (mig: for all of an instance), whether a program cannot bypass that, and why"
        " nothing stronger does",
        [*_GPU, "limit", "enforced", "reason"],
        [
            ((*places[gpu], gpu.limit.value, str(gpu.limit.enforced).lower(), short(gpu.limit_reason)), 1)
            for gpu in usage.gpus
        ],
    )
    ill = [((*places[gpu], short(gpu.reason)), 1) for gpu in usage.gpus if gpu.health is not GpuHealth.HEALTHY]
    yield _gauge(
        "gpushare_plugin_gpu_unhealthy",
        "1 for each GPU that takes no new containers, with the reason",
        [*_GPU, "reason"],
        [*ill, *(((usage.node, "", str(left.index), short(left.reason)), 1) for left in usage.left_out)],
    )


def _of_containers(usage: NodeUsage) -> Iterator[Metric]:
    gpus = {gpu.uuid: gpu for gpu in usage.gpus}
    found: list[tuple[Row, Gpu | None, tuple[str, ...]]] = []
    for row in rows_with_series(usage.rows):
        gpu = gpus.get(row.gpu)
        who = (row.pod.namespace, row.pod.name, row.container or names.OTHERS)
        found.append((row, gpu, tuple(map(short, (usage.node, row.gpu, gpu.label if gpu else "", *who)))))
    yield _gauge(
        "gpushare_plugin_container_granted_bytes",
        "GPU memory granted to a container, and what holds it to that",
        [*_CONTAINER, "limit"],
        [
            ((*place, gpu.limit_of(row.granted_mib).value if gpu else ""), row.granted_mib * MIB)
            for row, gpu, place in found
        ],
    )
    yield _gauge(
        "gpushare_plugin_container_used_bytes",
        "GPU memory that it uses; missing while unknown",
        _CONTAINER,
        [(place, row.used) for row, _, place in found],
    )
    yield _gauge(
        "gpushare_plugin_container_peak_bytes",
        "The most that it was seen to use",
        _CONTAINER,
        [(place, row.peak) for row, _, place in found],
    )
    yield _gauge(
        "gpushare_plugin_containers_left_out",
        "Containers on GPUs that have no series, because of their number",
        ["node"],
        [([usage.node], max(0, len(usage.rows) - MOST_ROWS))],
    )
    if usage.over is not None:
        yield _gauge(
            "gpushare_plugin_containers_over_grant",
            "Containers on GPUs that use more than their grant for longer than the grace period",
            ["node"],
            [([usage.node], usage.over)],
        )


def rows_with_series(rows: Sequence[Row]) -> Sequence[Row]:
    """The first of every pod before the second of any, so that no pod hides another one."""
    if len(rows) <= MOST_ROWS:
        return rows
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int]] = []
    for number, row in enumerate(rows):
        turns.append((seen[row.pod.uid], number))
        seen[row.pod.uid] += 1
    return [rows[number] for number in sorted(number for _, number in sorted(turns)[:MOST_ROWS])]
