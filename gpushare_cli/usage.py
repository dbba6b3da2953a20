"""What containers use of GPUs, by the device plugins' metrics, beside what holds them to their share."""

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.gpu import Gpu, Limit, NodeInventory
from gpushare.placement.explain import some
from gpushare.wire import fields, pods as pods_wire
from gpushare_cli import reading
from gpushare_cli.holders import PodRow, Report

OTHERS: Final = "(others)"  # containers of a pod that hold nothing of a GPU, and use it nevertheless
NOT_STRONGER: Final = "no stronger limit holds:"
HEADER: Final = ("NODE", "NAMESPACE", "POD", "CONTAINER", "GPU", "LIMIT", "GRANTED", "USED", "PEAK")
LIMITED_BY: Final[Mapping[Limit, str]] = {  # who holds containers to their share; advisory limits are told by variables
    Limit.MIG: "the hardware: they are MIG instances",
    Limit.CGROUP: "the NVIDIA driver, for the pod's cgroup",
    Limit.MPS: "MPS, each process by itself, which programs can bypass",
    Limit.HAMI_CORE: "a library in the container (HAMi-core), which programs can bypass",
    Limit.WATCHDOG: "the watchdog, after the fact",
}
_AT_ONCE: Final = 16
_ASK_S: Final = 5.0
_ALL_S: Final = 30.0
USED: Final = "gpushare_plugin_container_used_bytes"
_PEAK: Final = "gpushare_plugin_container_peak_bytes"
_GRANTED: Final = "gpushare_plugin_container_granted_bytes"
READ: Final = "gpushare_plugin_gpu_foreign_bytes"  # there for every GPU whose processes the plugin could list
_FACTS: Final = frozenset({"gpushare_plugin_usage_info", "gpushare_plugin_gpu_processes"})
_TRIED: Final = ("reading=on", "reading=no-answer")
_SAMPLE: Final = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'([A-Za-z]+)="((?:[^"\\]|\\.)*)"')
_MOST: Final = 2.0**60  # bytes; more is no memory of a GPU

Key = tuple[str, str, str, str]  # namespace, pod, container (empty: all that hold nothing of it) and UUID of a GPU


@dataclass(frozen=True, slots=True)
class Use:  # MiB, rounded up; None if it is not known
    used_mib: int | None = None
    peak_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    uses: Mapping[Key, Use] = field(default_factory=dict)
    granted: Mapping[Key, int] = field(default_factory=dict)  # MiB; by claims also, which no annotation tells
    problem: str = ""


def samples(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Of a page of metrics: name, labels and value."""
    for name, labels, value in _SAMPLE.findall(page):
        with contextlib.suppress(ValueError):
            yield name, dict(_LABEL.findall(labels)), float(value)


def parse(page: str) -> NodeUse:
    found: dict[str, dict[Key, int]] = {USED: {}, _PEAK: {}, _GRANTED: {}}
    facts: dict[str, float] = {}
    is_read = False
    for name, labels, value in samples(page):
        is_read = is_read or name == READ
        if not 0 <= value < _MOST:
            continue
        if name in found:
            namespace, pod, container, gpu = (labels.get(key, "") for key in ("namespace", "pod", "container", "UUID"))
            key = namespace, pod, "" if container == names.OTHERS else container, gpu
            found[name][key] = -(-int(value) // units.MIB)
        elif name in _FACTS:
            facts |= {f"{key}={said}": value for key, said in labels.items()}
    uses = {key: Use(found[USED].get(key), found[_PEAK].get(key)) for key in found[USED].keys() | found[_PEAK].keys()}
    return NodeUse(uses=uses, granted=found[_GRANTED], problem=_problem(facts, is_read=is_read))


def _problem(facts: Mapping[str, float], *, is_read: bool) -> str:
    """By values of facts, by label as in `reading=on`, and whether some GPU's processes were listed."""
    unknown = int(facts.get("known=false", 0))
    if "reading=no-host-pid" in facts:
        return "its device plugin does not see the processes of the node: it needs hostPID (manifests/usage)"
    if not is_read:
        off, silent = "its device plugin does not read it (manifests/usage)", "its driver lists no processes"
        return off if facts.keys().isdisjoint(_TRIED) else silent
    if unknown and not facts.get("known=true"):
        return f"of {unknown} processes on its GPUs, its device plugin finds none in /proc, and so not their containers"
    return ""


def read(api: KubeApi, nodes: Collection[NodeName], namespace: str) -> Mapping[NodeName, NodeUse]:
    """Ask the plugins of these nodes, through the API server's proxy; a node of which nothing is known says why."""
    try:
        return read_all(api, namespace, nodes)
    except (kube.KubeError, WireError) as error:
        return dict.fromkeys(nodes, NodeUse(problem=f"device plugins cannot be listed: {error}"))


def read_all(api: KubeApi, namespace: str, nodes: Collection[NodeName] | None = None) -> Mapping[NodeName, NodeUse]:
    """Ask all plugins, or those of some nodes. KubeError or WireError if plugins cannot be listed."""
    plugins = _plugins(api, namespace)
    wanted = plugins if nodes is None else nodes
    pool = ThreadPoolExecutor(_AT_ONCE)
    asked = {node: pool.submit(_ask, api, plugins[node]) for node in wanted if node in plugins}
    futures.wait(asked.values(), timeout=_ALL_S)
    pool.shutdown(wait=False, cancel_futures=True)
    return {node: _answer(asked.get(node)) for node in wanted}


def _answer(asked: "futures.Future[NodeUse] | None") -> NodeUse:
    if asked is None:
        return NodeUse(problem=f"there is no {names.PLUGIN} on it")
    if not asked.done() or asked.cancelled():
        return NodeUse(problem="there was no time to ask it")
    return asked.result()


def _ask(api: KubeApi, path: str) -> NodeUse:
    try:
        reply = api.ask(path, timeout_s=_ASK_S)
    except kube.KubeError as error:
        return NodeUse(problem=f"its device plugin cannot be asked: {error}")
    return parse(reply.text) if reply.is_good else NodeUse(problem=f"its device plugin answers {reply.brief}")


def _plugins(api: KubeApi, namespace: str) -> Mapping[NodeName, str]:
    selector = {"labelSelector": f"{names.LABEL_APP}={names.PLUGIN}"}
    pods = reading.listed(api, f"/api/v1/namespaces/{namespace}/pods", selector)
    return {
        node: kube.pod_path(namespace, f"{pods_wire.ref(pod).name}:{port}", "proxy/metrics")
        for pod in pods
        if (node := pods_wire.node_of(pod)) is not None and (port := metrics_port(pod))
    }


def metrics_port(pod: JsonObject) -> int:
    every = pods_wire.containers(pod)
    ports = (port for path, _, container in every for port in fields.objects(container, "ports", path))
    return next((fields.integer(port, "containerPort", "port") for port in ports if port.get("name") == "metrics"), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    node: NodeName
    namespace: str
    pod: str
    container: str
    gpu: str  # its number, or the UUID of one that its node does not list
    limit: str
    limit_reason: str  # why it is not a stronger one; may be empty
    granted_mib: int
    use: Use


def rows_of(report: Report, uses: Mapping[NodeName, NodeUse]) -> tuple[LimitRow, ...]:
    """Of all pods that hold GPUs, by node and pod, on each node those with claims last; without unreadable ones."""
    rows: list[LimitRow] = []
    for node in report.nodes:
        known = uses.get(node.name, NodeUse())
        for pod in sorted(node.pods, key=lambda pod: (pod.namespace, pod.name)):
            rows += _of_pod(pod, node.inventory, known) if pod.shares else ()
        by_claims = {str(gpu.uuid): gpu for gpu in node.inventory.dra}
        rows += (
            _row(node.name, key, by_claims[key[3]], mib, known)
            for key, mib in sorted(known.granted.items())
            if key[3] in by_claims
        )
    return tuple(rows)


def _of_pod(pod: PodRow, inventory: NodeInventory, known: NodeUse) -> Iterator[LimitRow]:
    """Of one pod: its containers in the order in which they start, and what its other containers use."""
    place = pod.namespace, pod.name
    granted = [(str(share.grant.container), share.uuid, share.memory_mib) for share in pod.shares]
    others = sorted(key[3] for key in known.uses if key[:3] == (*place, ""))
    for container, uuid, mib in [*granted, *(("", uuid, 0) for uuid in others)]:
        gpu = inventory.by_uuid.get(uuid)  # type: ignore[call-overload] # also of a page of metrics
        yield _row(inventory.node, (*place, container, uuid), gpu, mib, known)


def _row(node: NodeName, key: Key, gpu: Gpu | None, mib: int, known: NodeUse) -> LimitRow:
    namespace, pod, container, uuid = key
    return LimitRow(
        node=node,
        namespace=namespace,
        pod=pod,
        container=container or OTHERS,
        gpu=gpu.label if gpu else uuid,
        limit=gpu.limit_of(mib).value if gpu else "?",
        limit_reason=gpu.limit_reason if gpu else "",
        granted_mib=mib,
        use=known.uses.get(key, Use()),
    )


def cells(rows: Sequence[LimitRow]) -> Iterator[tuple[str, ...]]:
    told = amounts((row.granted_mib, row.use) for row in rows)
    for row, mib in zip(rows, told, strict=True):
        yield row.node, row.namespace, row.pod, row.container, row.gpu, row.limit, *mib


def amounts(rows: Iterable[tuple[int, Use]]) -> Sequence[Sequence[str]]:
    """What is granted, used, and was used at most, of each row; all in one unit."""
    every = [(granted_mib, use.used_mib, use.peak_mib) for granted_mib, use in rows]
    unit, numbers = units.in_one_unit(*(mib or 0 for row in every for mib in row))
    told = iter(numbers)
    return [
        ["?" if mib is None else f"{number} {unit}" for mib, number in zip(row, told, strict=False)] for row in every
    ]


def as_json(row: LimitRow) -> dict[str, Any]:
    return {
        "node": row.node,
        "namespace": row.namespace,
        "pod": row.pod,
        "container": None if row.container == OTHERS else row.container,
        "gpu": row.gpu,
        "limit": row.limit,
        "limitReason": row.limit_reason or None,
        "grantedMiB": row.granted_mib,
        "usedMiB": row.use.used_mib,
        "peakMiB": row.use.peak_mib,
    }


def weaker(gpus: Iterable[tuple[NodeName, Gpu]]) -> Mapping[str, Sequence[NodeName]]:
    """What holds limits where something stronger could, and what keeps it from that -> the nodes."""
    found: dict[str, dict[NodeName, None]] = {}
    for node, gpu in gpus:
        if gpu.limit_reason:
            found.setdefault(f"{gpu.limit.value}; {NOT_STRONGER} {gpu.limit_reason}", {})[node] = None
    return {told: tuple(nodes) for told, nodes in found.items()}


def notes(uses: Mapping[NodeName, NodeUse], gpus: Iterable[tuple[NodeName, Gpu]] = ()) -> Sequence[str]:
    """Why limits are not stronger, and why the use of some is not known; nodes with the same reason together."""
    by_problem: dict[str, list[str]] = {}
    for node, use in sorted(uses.items()):
        if use.problem:
            by_problem.setdefault(use.problem, []).append(node)
    limits = [f"limits on {_on(nodes)} are {told}" for told, nodes in weaker(gpus).items()]
    return limits + [f"what is used on {_on(nodes)} is not known: {problem}" for problem, nodes in by_problem.items()]


def _on(nodes: Sequence[str]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {some(nodes)}"
