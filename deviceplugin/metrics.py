"""Prometheus metrics of the device plugin. What is granted and used is computed when it is asked for."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin import causes
from deviceplugin.usage.join import GpuTotal, NodeUsage, Row
from gpushare import names
from gpushare.model.gpu import Gpu, GpuHealth
from gpushare.runtime import exposition
from gpushare.runtime.exposition import short
from gpushare.units import MIB

CONTENT_TYPE: Final = exposition.CONTENT_TYPE
MOST_ROWS: Final = 2048  # containers on GPUs with series of their own, unless someone wants to fill Prometheus
_GPU: Final = ("node", "UUID", "gpu")  # A GPU and its number, as DCGM exporter names them
_CONTAINER: Final = (*_GPU, "namespace", "pod", "container")
_FAMILIES: Final[Mapping[str, tuple[Sequence[str], str]]] = {  # counters end with _total, as they have to
    "usage_info": (
        ("node", "reading"),
        "Whether it is read what containers use: on, off, no-host-pid where the node's processes cannot be seen, or"
        " no-answer while the driver does not list processes",
    ),
    "gpu_processes": (("node", "known"), "Processes that the driver lists, by whether the node has them"),
    "gpus": (("node", "health", "limit"), "GPUs by health and by what holds containers to their share"),
    "gpu_memory_bytes": ((*_GPU, "model", "limit"), "Memory of a GPU, without what the driver keeps"),
    "gpu_memory_usable_bytes": (_GPU, "Memory of it that can be granted, in whole units; 0 if it is not healthy"),
    "gpu_memory_grantable_bytes": (
        _GPU,
        "Memory of it that may be granted in all; above the total where it is oversubscribed",
    ),
    "gpu_memory_granted_bytes": (_GPU, "Memory of it that pods were granted"),
    "gpu_memory_used_bytes": (_GPU, "Memory of it that processes use; missing while it is not known"),
    "gpu_compute_granted_ratio": (_GPU, "Compute of it that is set aside for pods; 1 is all of it"),
    "gpu_pods": (_GPU, "Pods that hold a share of it"),
    "gpu_foreign_bytes": (_GPU, "Memory of it used by processes of no pod that holds GPUs here"),
    "gpu_utilization_ratio": (_GPU, "Share of the last second or less in which a program ran on it; 1 is all the time"),
    "gpu_temperature_celsius": (_GPU, "Its temperature"),
    "gpu_power_watts": (_GPU, "Power that it draws"),
    "gpu_healthy": (_GPU, "1 if it takes new containers, else 0"),
    "gpu_limit_info": (
        (*_GPU, "limit", "enforced", "reason"),
        "1, with what holds limits on it (mig: for all of an instance), whether a program cannot bypass that, and why"
        " nothing stronger does",
    ),
    "gpu_unhealthy": ((*_GPU, "reason"), "1 for each GPU that takes no new containers, with the reason"),
    "container_granted_bytes": ((*_CONTAINER, "limit"), "GPU memory granted to a container, and what holds it to that"),
    "container_used_bytes": (_CONTAINER, "GPU memory that it uses; missing while unknown"),
    "container_peak_bytes": (_CONTAINER, "The most that it was seen to use"),
    "containers_left_out": (("node",), "Containers on GPUs that have no series, because of their number"),
    "containers_over_grant": (
        ("node",),
        "Containers on GPUs that use more than their grant for longer than the grace period",
    ),
    "starts_total": (
        ("node", "outcome", "reason"),
        "Starts of containers that hold GPUs, by outcome and the reason of a refusal",
    ),
    "claimed_bytes": (_GPU, "Memory of a GPU of mode dra that prepared ResourceClaims have"),
    "claims_total": (("node", "outcome"), "Answers to the kubelet's calls for ResourceClaims, by outcome"),
    "watchdog_actions_total": (
        ("node", "action", "result"),
        "What the watchdog did about containers above their grant",
    ),
}
Counts = Mapping[tuple[str, str], int]  # of starts by outcome and reason, or of actions by action and result


def page(
    usage: NodeUsage | None,
    starts: Counts,
    actions: Counts,
    node: str,
    claimed: Sequence[tuple[Gpu, int]] = (),
    claims: Mapping[str, int] | None = None,
) -> bytes:
    """Args: claimed: GPUs of mode dra, with the bytes that claims have of each; claims: answers by outcome."""
    found = _Families()
    if usage is not None:
        found.of_node(usage)
        found.of_gpus(usage)
        found.of_containers(usage)
    for name, counts in (("starts_total", starts), ("watchdog_actions_total", actions)):
        for labels, count in counts.items():
            found.add(name, [node, *labels], count)
    for gpu, size in claimed:
        found.add("claimed_bytes", [node, short(gpu.uuid), gpu.label], size)
    for outcome, count in (claims or {}).items():
        found.add("claims_total", [node, outcome], count)
    registry = exposition.registry(names.PLUGIN)
    registry.register(found)
    return exposition.page(registry)


class _Families(Collector):
    def __init__(self) -> None:
        self._found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, (labels, meaning) in _FAMILIES.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            self._found[name] = family(f"gpushare_plugin_{name}", meaning, labels=labels)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._found.values()

    def add(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """Args: value: None if there is no such series."""
        if value is not None:
            self._found[name].add_metric(labels, value)

    def of_node(self, usage: NodeUsage) -> None:
        node = usage.node
        self.add("usage_info", [node, usage.reading.value], 1)
        for known, count in zip(("true", "false"), usage.processes or (), strict=False):
            self.add("gpu_processes", [node, known], count)
        for kind, count in Counter((gpu.health.value, gpu.limit.value) for gpu in usage.gpus).items():
            self.add("gpus", [node, *kind], count)
        self.add("containers_left_out", [node], max(0, len(usage.rows) - MOST_ROWS))
        self.add("containers_over_grant", [node], usage.over)

    def of_gpus(self, usage: NodeUsage) -> None:
        for gpu in usage.gpus:
            place, total = (usage.node, short(gpu.uuid), gpu.label), usage.totals.get(gpu.uuid, GpuTotal())
            limit, is_healthy = gpu.limit, gpu.health is GpuHealth.HEALTHY
            self.add("gpu_memory_bytes", [*place, short(gpu.model), limit.value], gpu.memory_mib * MIB)
            self.add("gpu_memory_usable_bytes", place, total.usable_mib * MIB)
            self.add("gpu_memory_grantable_bytes", place, gpu.grantable_mib * MIB)
            self.add("gpu_memory_granted_bytes", place, total.granted_mib * MIB)
            self.add("gpu_memory_used_bytes", place, total.used)
            self.add("gpu_compute_granted_ratio", place, total.granted_percent / 100)
            self.add("gpu_pods", place, total.pods)
            self.add("gpu_foreign_bytes", place, usage.foreign.get(gpu.uuid))
            self.add("gpu_healthy", place, int(is_healthy))
            for name, value in usage.measured.get(gpu.uuid, {}).items():
                self.add(f"gpu_{name}", place, value)
            enforced = str(limit.enforced).lower()
            self.add("gpu_limit_info", [*place, limit.value, enforced, causes.code(gpu.limit_reason)], 1)
            self.add("gpu_unhealthy", [*place, causes.code(gpu.reason)], None if is_healthy else 1)
        for left in usage.left_out:
            self.add("gpu_unhealthy", [usage.node, "", str(left.index), causes.code(left.reason)], 1)

    def of_containers(self, usage: NodeUsage) -> None:
        gpus = {gpu.uuid: gpu for gpu in usage.gpus}
        for row in rows_with_series(usage.rows):
            gpu, name = gpus.get(row.gpu), row.container or names.OTHERS
            where = (usage.node, row.gpu, gpu.label if gpu else "", row.pod.namespace, row.pod.name, name)
            place = tuple(map(short, where))
            limit = gpu.limit_of(row.granted_mib).value if gpu else ""
            self.add("container_granted_bytes", [*place, limit], row.granted_mib * MIB)
            self.add("container_used_bytes", place, row.used)
            self.add("container_peak_bytes", place, row.peak)


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
