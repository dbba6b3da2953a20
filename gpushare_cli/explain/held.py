"""What a pod has of which GPUs of its node, beside whom, and what holds it to that. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names, units
from gpushare.identity import PodRef
from gpushare.model.gpu import Gpu, Limit, NodeInventory
from gpushare.model.ledger import Allocation, Grant, Held, NodeLedger, mib_on
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import usage

Object = Mapping[str, Any]
VARIABLES: Final = (  # variables that tell programs about their share
    names.ENV_MPS_MEMORY_LIMIT,
    names.ENV_MPS_THREAD_PERCENTAGE,
    names.ENV_MEMORY_MIB,
    names.ALIYUN_CONTAINER,
    names.ALIYUN_DEV,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    grant: Grant
    gpu: Gpu | None  # None if the node does not list it
    uuid: str
    memory_mib: int
    evaluated: bool = True  # whether the node's GPUs could be read

    @property
    def limit(self) -> Limit | None:
        return self.gpu.limit_of(self.memory_mib) if self.gpu else None

    @property
    def memory_percent(self) -> int:
        """Of the GPU's memory; 0 if that is not known."""
        return units.percent(self.memory_mib, self.gpu.memory_mib) if self.gpu else 0

    @property
    def trouble(self) -> str:
        if self.gpu is None:
            return "no longer listed by its node" if self.evaluated else ""
        return self.gpu.why


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How full one of the pod's GPUs is, and who else is on it."""

    gpu: Gpu
    granted_mib: int
    compute_percent: int
    neighbours: Sequence[tuple[PodRef, Held]]  # other pods, and what they hold of it


def shares(allocation: Allocation, inventory: NodeInventory | None) -> Iterator[Share]:
    for grant in allocation.grants:
        for uuid in grant.gpus:
            gpu = inventory.by_uuid.get(inventory.resolve(uuid)) if inventory else None
            yield Share(
                grant=grant,
                gpu=gpu,
                uuid=gpu.uuid if gpu else uuid,
                memory_mib=mib_on(grant, gpu),
                evaluated=inventory is not None,
            )


def fills(allocation: Allocation, ledger: NodeLedger) -> Iterator[Fill]:
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


def together(held: Sequence[Share]) -> str:
    """`3 GiB of GPU 0 and 5 GiB of GPU 1`, container by container."""
    return " and ".join(
        f"{'all' if share.grant.whole else units.memory(share.memory_mib)} of GPU"
        f" {share.gpu.label if share.gpu else share.uuid}"
        for share in held
    )


def origin(pod: Object) -> str:
    notes = pods_wire.annotations(pod)
    if notes.get(names.ANNOTATION_LATE):
        return "gpushare, after the pod had come to its node by another way"
    if names.ANNOTATION_ALLOCATION in notes:
        return "gpushare, when the pod was bound to its node; past usage is not stored"
    if names.ACK_ALLOCATION in notes:
        return "ACK's scheduler"
    return "Aliyun gpushare" if names.ALIYUN_IDX in notes else "nano-gpu"


def limit(pod: Object, held: Sequence[Share]) -> str:
    if held and all(share.grant.whole for share in held):
        return "nothing is needed: no one else is on its GPUs"
    parts = [share for share in held if not share.grant.whole]
    kinds = {share.limit or Limit.ADVISORY for share in parts}
    told = [words for kind, words in usage.LIMITED_BY.items() if kind in kinds]
    told += [_advice(pod, held)] if Limit.ADVISORY in kinds or not kinds else []
    missing = dict.fromkeys(share.gpu.limit_reason for share in held if share.gpu and not share.grant.whole)
    return "; ".join([*told, *(f"{usage.NOT_STRONGER} {why}" for why in missing if why)])


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


def stuck(pod: Object) -> Iterator[str]:
    """Containers that do not start, in the kubelet's words."""
    for path, report in pods_wire.reports(pod):
        waiting = fields.mapping(fields.mapping(report, "state", path), "waiting", "state")
        reason, message = fields.text(waiting, "reason", "waiting"), fields.text(waiting, "message", "waiting")
        if reason and reason not in {"ContainerCreating", "PodInitializing"}:
            yield f"container {report.get('name')} waits: {reason}{': ' if message else ''}{message}"
