"""Where a pod is, what it has of which GPUs there, beside whom, and what holds it to that. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpushare import names, units
from gpushare.cluster.pod_records import Bound
from gpushare.errors import WireError
from gpushare.model.allocation import Allocation
from gpushare.model.gpu import Limit, NodeInventory
from gpushare.model.ledger import NodeLedger, mib_on
from gpushare.units import GIB
from gpushare.wire import allocations, fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import limits
from gpushare_cli.explain.model import Explanation, Fill, Share, State

Object = Mapping[str, Any]
VARIABLES: Final = (  # variables that tell programs about their share
    names.ENV_MPS_MEMORY_LIMIT,
    names.ENV_MPS_THREAD_PERCENTAGE,
    names.ENV_MEMORY_MIB,
    names.ALIYUN_CONTAINER,
    names.ALIYUN_DEV,
)


def holds(
    blank: Explanation, pod: Object, allocation: Allocation, inventory: NodeInventory | None, others: NodeLedger | None
) -> Explanation:
    held = tuple(_shares(allocation, inventory))
    troubles = {f"GPU {share.uuid} is {share.trouble}" for share in held if share.trouble}
    return replace(
        blank,
        state=State.HOLDS,
        node=allocation.node,
        headline=f"{blank.phase} on {allocation.node}",
        summary=f"it has {_together(held)}" if held else "it has no GPU",
        good=True,
        shares=held,
        fills=tuple(_fills(allocation, others)) if others is not None else (),
        origin=_origin(pod),
        limit=_limit(pod, held),
        notes=(*blank.notes, *sorted(troubles), *_stuck(pod)),
    )


def _shares(allocation: Allocation, inventory: NodeInventory | None) -> Iterator[Share]:
    known = inventory is not None
    for grant in allocation.grants:
        for uuid in grant.gpus:
            gpu = inventory.by_uuid.get(inventory.resolve(uuid)) if inventory else None
            mib = mib_on(grant, gpu)
            yield Share(grant=grant, gpu=gpu, uuid=gpu.uuid if gpu else uuid, memory_mib=mib, evaluated=known)


def unreadable(blank: Explanation, record: Bound, why: str) -> Explanation:
    return replace(
        blank,
        state=State.UNREADABLE,
        node=record.node,
        good=True,
        headline=f"{blank.phase} on {record.node}; what it holds cannot be read",
        summary=(
            f"{why}; until that is fixed {record.node} takes no new GPU pods: delete the pod, or install the version"
            " of gpushare that bound it"
        ),
    )


def ended(blank: Explanation, pod: Object, record: Bound, inventory: NodeInventory | None) -> Explanation:
    try:
        held = allocations.granted(pod, inventory.unit if inventory else GIB)
    except WireError:
        held = None  # it no longer holds anything, whatever the annotation says
    were_held = tuple(_shares(held, inventory)) if held else ()
    if record.failed:
        summary = f"{record.node} rejected it before any container ran: {record.failed}; it holds no GPU"
        summary += ", and its controller makes another" if record.owned else "; delete it and create it again"
    elif were_held:
        summary = f"it held {_together(were_held)}, which was given back when its containers ended"
    else:
        summary = "it holds no GPU"
    headline = f"{blank.phase} on {record.node}; it has ended"
    return replace(
        blank, state=State.ENDED, node=record.node, good=True, headline=headline, summary=summary, shares=were_held
    )


def _fills(allocation: Allocation, ledger: NodeLedger) -> Iterator[Fill]:
    mine = ledger.held(allocation)
    others = [other for other in ledger.allocations.values() if other.pod.uid != allocation.pod.uid]
    beside = [(other.pod, ledger.held(other)) for other in sorted(others, key=lambda other: str(other.pod))]
    for gpu in ledger.inventory.gpus:
        if gpu.uuid in mine:
            yield Fill(
                gpu=gpu,
                granted_mib=ledger.used_mib.get(gpu.uuid, 0),
                compute_percent=ledger.used_percent.get(gpu.uuid, 0),
                neighbours=[(pod, held[gpu.uuid]) for pod, held in beside if gpu.uuid in held],
            )


def _together(held: Sequence[Share]) -> str:
    """`3 GiB of GPU 0 and 5 GiB of GPU 1`, container by container."""
    return " and ".join(
        f"{'all' if share.grant.whole else units.memory(share.memory_mib)} of GPU"
        f" {share.gpu.label if share.gpu else share.uuid}"
        for share in held
    )


def _origin(pod: Object) -> str:
    notes = pods_wire.annotations(pod)
    if notes.get(names.ANNOTATION_LATE):
        return "gpushare, after the pod had come to its node by another way"
    if names.ANNOTATION_ALLOCATION in notes:
        return "gpushare, when the pod was bound to its node; past usage is not stored"
    if names.ACK_ALLOCATION in notes:
        return "ACK's scheduler"
    return "Aliyun gpushare" if names.ALIYUN_IDX in notes else "nano-gpu"


def _limit(pod: Object, held: Sequence[Share]) -> str:
    if held and all(share.grant.whole for share in held):
        return "nothing is needed: no one else is on its GPUs"
    parts = [share for share in held if not share.grant.whole]
    kinds = {share.limit or Limit.ADVISORY for share in parts}
    told = [words for kind, words in limits.WORDS.items() if kind in kinds]
    told += [_advice(pod, held)] if Limit.ADVISORY in kinds or not kinds else []
    missing = dict.fromkeys(share.gpu.limit_reason for share in held if share.gpu and not share.grant.whole)
    return "; ".join([*told, *(f"{limits.NOT_STRONGER} {why}" for why in missing if why)])


def _advice(pod: Object, held: Sequence[Share]) -> str:
    granted = {share.grant.container for share in held}
    there = {
        str(entry.get("name"))
        for path, _, container in pods_wire.containers(pod)
        if container.get("name") in granted
        for entry in fields.objects(container, "env", path)
    }
    told = [name for name in VARIABLES if name in there]
    if not told:
        return "nothing: no variable tells its programs about their share"
    return f"variables that its programs may obey, and nothing else: {', '.join(told)}"


def _stuck(pod: Object) -> Iterator[str]:
    """Containers that do not start, in the kubelet's words."""
    for path, report in pods_wire.reports(pod):
        waiting = fields.mapping(fields.mapping(report, "state", path), "waiting", "state")
        reason, message = fields.text(waiting, "reason", "waiting"), fields.text(waiting, "message", "waiting")
        if reason and reason not in {"ContainerCreating", "PodInitializing"}:
            yield f"container {report.get('name')} waits: {reason}{': ' if message else ''}{message}"
