"""What holds each container to its share of a GPU, and what it uses of it. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import units
from gpushare.identity import NodeName
from gpushare.model.gpu import Gpu, Limit, NodeInventory, label
from gpushare.model.ledger import Allocation, mib_on
from gpushare.placement.explain import some
from gpushare_cli.holders import Report
from gpushare_cli.usage import NodeUse, Use

OTHERS: Final = "(others)"  # containers of a pod that hold nothing of a GPU, and use it nevertheless
NOT_STRONGER: Final = "no stronger limit holds:"
HEADER: Final = ("NODE", "NAMESPACE", "POD", "CONTAINER", "GPU", "LIMIT", "GRANTED", "USED", "PEAK")
WORDS: Final[Mapping[Limit, str]] = {  # who holds containers to their share; advisory limits are told by variables
    Limit.MIG: "the hardware: they are MIG instances",
    Limit.CGROUP: "the NVIDIA driver, for the pod's cgroup",
    Limit.MPS: "MPS, each process by itself, which programs can bypass",
    Limit.HAMI_CORE: "a library in the container (HAMi-core), which programs can bypass",
    Limit.WATCHDOG: "the watchdog, after the fact",
}


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


def of_report(report: Report, uses: Mapping[NodeName, NodeUse]) -> tuple[LimitRow, ...]:
    """Of all pods that hold GPUs, by node and pod; those that cannot be read are left out."""
    rows = [
        row
        for node in report.nodes
        for pod in node.pods
        if pod.allocation is not None
        for row in of_pod(pod.allocation, node.inventory, uses.get(node.inventory.node, NodeUse()))
    ]
    return tuple(sorted(rows, key=lambda row: (row.node, row.namespace, row.pod)))


def of_pod(allocation: Allocation, inventory: NodeInventory, known: NodeUse) -> Iterator[LimitRow]:
    """Of one pod: its containers in the order in which they start, and what its other containers use."""
    place = allocation.pod.namespace, allocation.pod.name
    granted = [
        (str(grant.container), inventory.resolve(gpu), mib_on(grant, inventory.by_uuid.get(inventory.resolve(gpu))))
        for grant in allocation.grants
        for gpu in grant.gpus
    ]
    others = sorted(key[3] for key in known.uses if key[:3] == (*place, ""))
    for container, uuid, mib in [*granted, *(("", uuid, 0) for uuid in others)]:
        gpu = inventory.by_uuid.get(uuid)  # type: ignore[call-overload] # also of a page of metrics
        yield LimitRow(
            node=inventory.node,
            namespace=place[0],
            pod=place[1],
            container=container or OTHERS,
            gpu=label(gpu.index) if gpu else uuid,
            limit=gpu.limit_of(mib).value if gpu else "?",
            limit_reason=gpu.limit_reason if gpu else "",
            granted_mib=mib,
            use=known.uses.get((*place, container, uuid), Use()),
        )


def cells(row: LimitRow) -> tuple[str, ...]:
    place = row.node, row.namespace, row.pod, row.container, row.gpu, row.limit
    return *place, *map(amount, (row.granted_mib, row.use.used_mib, row.use.peak_mib))


def amount(mib: int | None) -> str:
    return "?" if mib is None else units.memory(mib)


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
