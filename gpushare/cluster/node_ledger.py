"""What placement may look at of a cluster's nodes, from records alone. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from gpushare import names
from gpushare.cluster import pod_records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, PodRecord, Problem
from gpushare.identity import GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.capacity import NOTHING, FreeHost, NodeCapacity
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.model.ledger import (
    Allocation,
    Grant,
    Held,
    LedgerOrRefused,
    NodeLedger,
    Placed,
    RefusalReason,
    Refused,
    Verdict,
)
from gpushare.model.request import RequestShape
from gpushare.placement import costs
from gpushare.placement.costs import Change
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare.units import MemoryUnit


def of_node(
    node: NodeRecord,
    bound: Iterable[Bound],
    reserved: Iterable[Allocation],
    unit: MemoryUnit,
    before: LedgerOrRefused | None = None,
) -> tuple[LedgerOrRefused, dict[PodRef, Problem]]:
    """A node's ledger, and the pods on it whose allocations cannot be read."""
    # What a bound pod shows of itself counts instead of a choice that is reserved for it.
    if node.inventory is None:
        message = f"{node.name} has no GPU inventory: no gpushare device plugin has reported GPUs there"
        if node.problem:
            message = f"{node.name} has an inventory that cannot be read: {node.problem}"
        return Refused(RefusalReason.NO_INVENTORY, message, permanent=True), {}
    bound = list(bound)
    held, problems = pod_records.all_held(bound, node.inventory.unit)
    if node.inventory.unit != unit:
        message = (
            f"{node.name} counts {names.GPU_MEM} in {node.inventory.unit.name}, the controller in {unit.name};"
            " give both the same memory unit"
        )
        return Refused(RefusalReason.UNIT_MISMATCH, message, permanent=True), problems
    for unknown, problem in problems.items():
        if not problem.counted:
            message = (
                f"{node.name} takes no new pods, because what {unknown} holds there cannot be read: {problem.why};"
                " delete that pod, or install the version of gpushare that bound it"
            )
            return Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, message), problems
    for foreign in filter(pod_records.has_foreign_gpus, bound):
        message = (
            f"{node.name} takes no new pods, because {foreign.ref} runs there on {names.GPU} that another plugin gave"
            " to it, and no one can tell which GPUs these are; delete that pod, or wait until it has ended"
        )
        return Refused(RefusalReason.NO_UNTOUCHED_GPU, message), problems
    known = before if isinstance(before, NodeLedger) else None
    return NodeLedger.of(node.inventory, [*reserved, *held], known), problems


def verdict(shape: RequestShape, ledger: LedgerOrRefused, policies: Policies) -> Verdict:
    """Whether a pod fits on a node, and on which GPUs; the shape has to be resolved (`groups`)."""
    return ledger if isinstance(ledger, Refused) else place(shape, ledger, policies)


def room(ledger: LedgerOrRefused, host: FreeHost | None) -> NodeCapacity:
    """What is free on a node. One that takes no pods with GPUs is as one without any."""
    if not isinstance(ledger, NodeLedger):
        return NodeCapacity(model="", gpus=(), host=host)
    return NodeCapacity.of(ledger, host)


def lost_gpus(allocation: Allocation, inventory: NodeInventory) -> Refused | None:
    """Why a choice cannot be sent again. It may have taken effect, so it cannot change; its GPUs may be unhealthy."""
    for grant in allocation.grants:
        for gpu in grant.gpus:
            known = inventory.by_uuid.get(gpu)
            if known is None or known.health is not GpuHealth.HEALTHY:
                message = (
                    f"{allocation.pod} may be bound to GPU {gpu} of {allocation.node} already, which is"
                    f" {'gone' if known is None else 'unhealthy'} now; waiting for the API server's word"
                )
                return Refused(RefusalReason.NO_HEALTHY_GPU, message)
    return None


Ledgers = dict[NodeName, NodeLedger]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodToPlace:
    """A pod that needs a place, or leaves one."""

    ref: PodRef
    shape: RequestShape
    labels: Mapping[str, str] = field(default_factory=dict)
    takes: FreeHost = NOTHING  # CPU and memory of the host
    counted: Mapping[str, int] = field(default_factory=dict)  # extended resources, by kube-scheduler's count


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What is there and left on a node."""

    record: NodeRecord
    ledger: LedgerOrRefused  # with all pods that hold GPUs, or why nothing can be placed there
    host: FreeHost | None = None  # CPU and memory that no pod there has requested; if it is not known, it is enough
    allocatable: Mapping[str, int] | None = None  # extended resources that its kubelet reports; None as above
    requested: Mapping[str, int] = field(default_factory=dict)  # of those, by kube-scheduler's count

    def without(self, gone: Collection[PodToPlace]) -> Self:
        """When pods have left."""
        ledger, host, requested = self.ledger, self.host, self.requested
        if isinstance(ledger, NodeLedger):
            uids = {pod.ref.uid for pod in gone}
            rest = [held for uid, held in ledger.allocations.items() if uid not in uids]
            ledger = NodeLedger.of(ledger.inventory, rest)
        for pod in gone:
            host = host and host.plus(pod.takes)
            requested = _sum(requested, pod.counted, -1)
        return replace(self, ledger=ledger, host=host, requested=requested)

    def plus(self, pod: PodToPlace, grants: tuple[Grant, ...]) -> Self:
        """When a pod has come, with these GPUs; without any it takes only what it does beside them."""
        ledger = self.ledger
        if grants and isinstance(ledger, NodeLedger):
            node = self.record.name
            ledger = ledger.with_allocation(Allocation(pod=pod.ref, node=node, grants=grants, labels=pod.labels))
        host = self.host and self.host.without(pod.takes)
        return replace(self, ledger=ledger, host=host, requested=_sum(self.requested, pod.counted, 1))

    def closed(self, gpus: Collection[GpuUuid]) -> Self:
        """While these GPUs take no pods."""
        return self._with_health(gpus, GpuHealth.HEALTHY, GpuHealth.CORDONED)

    def opened(self, gpus: Collection[GpuUuid]) -> Self:
        """When these GPUs, which were closed, take pods again."""
        return self._with_health(gpus, GpuHealth.CORDONED, GpuHealth.HEALTHY)

    def _with_health(self, gpus: Collection[GpuUuid], before: GpuHealth, after: GpuHealth) -> Self:
        ledger = self.ledger
        if isinstance(ledger, NodeLedger):
            changed = tuple(
                replace(gpu, health=after) if gpu.uuid in gpus and gpu.health is before else gpu
                for gpu in ledger.inventory.gpus
            )
            ledger = NodeLedger.of(replace(ledger.inventory, gpus=changed), ledger.allocations.values())
        return replace(self, ledger=ledger)

    def held(self, pod: PodUid) -> Mapping[GpuUuid, Held]:
        """What a pod holds here, perhaps nothing."""
        if isinstance(self.ledger, NodeLedger) and (held := self.ledger.allocations.get(pod)) is not None:
            return self.ledger.held(held)
        return {}

    def lacks(self, takes: FreeHost, counted: Mapping[str, int]) -> list[str]:
        """Of what kube-scheduler counts it has too little left; in words, empty if it has enough."""
        lacking = short(counted, self.allocatable, self.requested)
        if self.host is not None and takes.cpu_milli > self.host.cpu_milli:
            lacking.append(f"Insufficient cpu: {takes.cpu_milli}m asked for, {self.host.cpu_milli}m free")
        if self.host is not None and takes.memory_mib > self.host.memory_mib:
            lacking.append(f"Insufficient memory: {takes.memory_mib}Mi asked for, {self.host.memory_mib}Mi free")
        return lacking

    def grants(self, pod: PodToPlace, shape: RequestShape, policies: Policies) -> tuple[Grant, ...] | None:
        """The GPUs that a pod would get here; None if it does not fit. Its shape has to be resolved (`groups`)."""
        if self.lacks(pod.takes, pod.counted):
            return None
        said = verdict(shape, self.ledger, policies)
        return said.grants if isinstance(said, Placed) else None

    def change(self, pod: PodToPlace, grants: tuple[Grant, ...]) -> Change:
        """What the pod makes of it with these GPUs, for its cost by a policy (`placement.costs`)."""
        assert isinstance(self.ledger, NodeLedger)  # noqa: S101 - for the type checker: others grant nothing
        return costs.change_of(grants, self.ledger, host=self.host, takes=pod.takes)


def short(counted: Mapping[str, int], allocatable: Mapping[str, int] | None, requested: Mapping[str, int]) -> list[str]:
    """Extended resources of which a node as a whole has too little left, in words; nothing if it does not tell.

    That is less than the GPUs have where pods hold a part of one that no longer counts, because it is unhealthy.
    """
    lacking = []
    for resource, amount in counted.items() if allocatable is not None else ():
        total, used = (allocatable or {}).get(resource, 0), requested.get(resource, 0)
        if amount > total - used:
            have = f"{total} allocatable" if total else "none allocatable"
            lacking.append(f"Insufficient {resource}: {amount} asked for, {have}, {used} requested by pods there")
    return lacking


def ledgers(nodes: Iterable[NodeRecord], pods: Iterable[PodRecord | None]) -> Ledgers:
    """The whole cluster's ledger from nothing but records: what a running state must always be equal to.

    Nodes without a readable inventory, and those with a pod of which no one can tell what it holds or where, have none.
    """
    on_node: dict[NodeName, list[Bound]] = {}
    for pod in pods:
        if isinstance(pod, Bound):
            on_node.setdefault(pod.node, []).append(pod)
    found: Ledgers = {}
    for node in nodes:
        if node.inventory is not None:
            ledger, _ = of_node(node, on_node.get(node.name, ()), (), node.inventory.unit)
            if isinstance(ledger, NodeLedger):
                found[node.name] = ledger
    return found


def differences(expected: Mapping[NodeName, LedgerOrRefused], actual: Mapping[NodeName, LedgerOrRefused]) -> list[str]:
    """What two views of a cluster disagree about, in words; empty if they are equal. Of refusals the reason counts."""
    lines: list[str] = []
    for name in sorted(expected.keys() | actual.keys()):
        left, right = expected.get(name), actual.get(name)
        if isinstance(left, Refused) and isinstance(right, Refused):
            if left.reason is not right.reason:
                lines.append(f"node {name}: refuses for {right.reason.value}, expected {left.reason.value}")
        elif not isinstance(left, NodeLedger) or not isinstance(right, NodeLedger):
            lines.append(f"node {name}: {'missing' if isinstance(left, NodeLedger) else 'not expected'}")
        elif left.inventory.gpus != right.inventory.gpus:
            lines.append(f"node {name}: other GPUs")
        elif dict(left.allocations) != dict(right.allocations):
            wrong = set(left.allocations).symmetric_difference(right.allocations) or left.allocations
            pods = ", ".join(sorted(str((left.allocations.get(uid) or right.allocations[uid]).pod) for uid in wrong))
            lines.append(f"node {name}: disagree about {pods}")
    return lines


def _sum(left: Mapping[str, int], right: Mapping[str, int], sign: int) -> Mapping[str, int]:
    return {key: left.get(key, 0) + sign * right.get(key, 0) for key in left.keys() | right.keys()}
