"""What pods were granted, decided once at bind and never changed; with it, who holds what on one node."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from enum import Enum
from operator import add
from types import MappingProxyType

from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.model.request import ContainerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One container's GPUs, with the same on each."""

    container: ContainerName
    kind: ContainerKind = ContainerKind.APP
    gpus: tuple[GpuUuid, ...]
    memory_mib: int  # MiB on each GPU; of whole GPUs that differ, the smallest's
    compute_percent: int = 0  # per cent of each GPU's compute; 0 if none was set aside
    whole: bool = False  # no one else may be on these GPUs
    memory_percent: int = 0
    """Per cent of each GPU's memory beside `memory_mib`, if no one wrote down how much that is: nano-gpu does not."""
    physical: bool = False  # while it is held, no more is granted on these GPUs than they have
    extra_mib: int = 0
    """MiB by which one of these GPUs was oversubscribed when this was decided. What was granted then stays granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All grants of one pod on one node, in the order in which the containers start."""

    pod: PodRef
    node: NodeName
    grants: tuple[Grant, ...]
    labels: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Of the pod as it was last seen, for pods that want its GPU or avoid it. No part of the decision."""

    def of(self, container: ContainerName) -> Grant | None:
        return next((grant for grant in self.grants if grant.container == container), None)


@dataclass(frozen=True, slots=True)
class Held:
    """What a pod needs of one GPU at its worst moment."""

    memory_mib: int
    compute_percent: int = 0
    whole: bool = False
    physical: bool = False
    extra_mib: int = 0


def peak(steps: Iterable[tuple[ContainerKind, tuple[int, ...]]]) -> tuple[int, ...]:
    """What a pod needs at its worst moment, of each of several amounts.

    Kubernetes' own formula: the larger of what the app containers and all sidecars hold together, and what any init
    container holds together with the sidecars started before it.

    Args:
        steps: kind and amounts of each container, in the order in which they start; at least one.
    """
    most: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    for kind, amounts in steps:
        level = tuple(map(add, running, amounts)) if running else amounts
        most = tuple(map(max, most, level)) if most else level
        if kind is not ContainerKind.INIT:
            running = level
    return most


def footprint(grants: Iterable[Grant], inventory: NodeInventory) -> Mapping[GpuUuid, Held]:
    """What a pod needs of each GPU at its worst moment (`peak`); its grants in the order in which containers start.

    Stand-ins, parts and whole GPUs are turned into GPUs and amounts.
    """
    by_gpu: dict[GpuUuid, list[Grant]] = {}
    for grant in grants:
        for gpu in map(inventory.resolve, grant.gpus):
            by_gpu.setdefault(gpu, []).append(grant)
    return {gpu: _hold(there, inventory.by_uuid.get(gpu)) for gpu, there in by_gpu.items()}


def _hold(grants: Sequence[Grant], gpu: Gpu | None) -> Held:
    memory, compute, part = peak(
        (grant.kind, (grant.memory_mib, grant.compute_percent, grant.memory_percent)) for grant in grants
    )
    whole, physical = any(grant.whole for grant in grants), any(grant.physical for grant in grants)
    mib = _with_part(memory, part, gpu, whole=whole)
    return Held(mib, compute, whole, physical, max(grant.extra_mib for grant in grants))


class RefusalReason(Enum):
    """Stable reasons for programs; the message is for people."""

    NO_INVENTORY = "NoInventory"
    NO_HEALTHY_GPU = "NoHealthyGpu"
    UNIT_MISMATCH = "UnitMismatch"
    INSUFFICIENT_GPU_MEMORY = "InsufficientGpuMemory"
    INSUFFICIENT_GPU_COMPUTE = "InsufficientGpuCompute"
    NO_UNTOUCHED_GPU = "NoUntouchedGpu"
    NO_MATCHING_GPU = "NoMatchingGpu"
    TOO_FEW_GPUS = "TooFewGpus"
    OTHER_HAND_OVER = "OtherHandOver"
    SEARCH_TOO_LONG = "SearchTooLong"


@dataclass(frozen=True, slots=True)
class Placed:
    """The pod fits; `grants` say where, in the order in which the containers start."""

    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    reason: RefusalReason
    message: str
    permanent: bool = False  # True if removing pods from the node cannot help, so preemption there is pointless


Verdict = Placed | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLedger:
    """The ledger of one node. Immutable: `with_allocation` gives the next state."""

    inventory: NodeInventory
    allocations: Mapping[PodUid, Allocation]
    before: InitVar["NodeLedger | None"] = None  # of the same node: what its pods hold of these GPUs is known
    _held: Mapping[PodUid, Mapping[GpuUuid, Held]] = field(init=False, compare=False, repr=False)
    used_mib: Mapping[GpuUuid, int] = field(init=False, compare=False)
    """MiB held on each GPU that anything is held on, also on GPUs that the inventory does not list.

    A GPU that is held whole is held with all that it has, also if it has got more since.
    """
    used_percent: Mapping[GpuUuid, int] = field(init=False, compare=False)
    """Per cent of compute that is set aside on each GPU that anything is held on."""
    whole: frozenset[GpuUuid] = field(init=False, compare=False)  # GPUs that a pod has for itself
    physical: frozenset[GpuUuid] = field(init=False, compare=False)
    """GPUs on which no more may be granted than they have: those, and the ones of pods that refuse oversubscription."""
    extra_mib: Mapping[GpuUuid, int] = field(init=False, compare=False)
    """The most by which GPUs were oversubscribed when what is held was granted, if they were."""

    def __post_init__(self, before: "NodeLedger | None") -> None:
        known = before if before is not None and before.inventory is self.inventory else None
        # Pods that came are added to the sums; when one has gone all are counted again, as a maximum may have been its.
        start = known if known is not None and known.allocations.items() <= self.allocations.items() else None
        came = {
            uid: footprint(each.grants, self.inventory) if known is None else known.held(each)
            for uid, each in self.allocations.items()
            if start is None or uid not in start.allocations
        }
        memory: Counter[GpuUuid] = Counter(start.used_mib if start else ())
        percent: Counter[GpuUuid] = Counter(start.used_percent if start else ())
        extra: dict[GpuUuid, int] = dict(start.extra_mib if start else ())
        whole: set[GpuUuid] = set(start.whole if start else ())
        physical: set[GpuUuid] = set(start.physical if start else ())
        for holds in came.values():
            for uuid, held in holds.items():
                memory[uuid] += held.memory_mib
                percent[uuid] += held.compute_percent
                if held.whole:
                    whole.add(uuid)
                if held.whole or held.physical:
                    physical.add(uuid)
                if held.extra_mib:
                    extra[uuid] = max(extra.get(uuid, 0), held.extra_mib)
        object.__setattr__(self, "_held", {**start._held, **came} if start else came)  # noqa: SLF001 - its own
        object.__setattr__(self, "used_mib", MappingProxyType(memory))
        object.__setattr__(self, "used_percent", MappingProxyType(percent))
        object.__setattr__(self, "whole", frozenset(whole))
        object.__setattr__(self, "physical", frozenset(physical))
        object.__setattr__(self, "extra_mib", MappingProxyType(extra))

    @classmethod
    def of(
        cls, inventory: NodeInventory, held: Iterable[Allocation] = (), before: "NodeLedger | None" = None
    ) -> "NodeLedger":
        """The ledger from what was read: the same whatever the order of the pods, and whichever was there before."""
        allocations = MappingProxyType({a.pod.uid: a for a in held})
        return cls(inventory=inventory, allocations=allocations, before=before)

    def held(self, allocation: Allocation) -> Mapping[GpuUuid, Held]:
        """What an allocation holds on this node's GPUs."""
        uid = allocation.pod.uid
        if self.allocations.get(uid) is allocation:
            return self._held[uid]
        return footprint(allocation.grants, self.inventory)

    def with_allocation(self, allocation: Allocation) -> "NodeLedger":
        """The ledger with one more pod. A pod that is there already is replaced, so adding twice changes nothing."""
        changed = {**self.allocations, allocation.pod.uid: allocation}
        return NodeLedger(inventory=self.inventory, allocations=MappingProxyType(changed), before=self)

    def grantable_mib(self, gpu: Gpu) -> int:
        """MiB that may be granted on a GPU to all pods together: what it has while a pod there wants that."""
        return gpu.memory_mib if gpu.uuid in self.physical else gpu.grantable_mib

    def left_mib(self, gpu: Gpu) -> int:
        """MiB that are granted to no one; 0 when nothing new may be placed on it."""
        if gpu.health is not GpuHealth.HEALTHY:
            return 0
        return max(self.grantable_mib(gpu) - self.used_mib.get(gpu.uuid, 0), 0)

    def free_mib(self, gpu: Gpu) -> int:
        """MiB that one more pod may get of a GPU: of what is left, no more than the GPU has."""
        left = self.left_mib(gpu)
        return min(left, gpu.memory_mib) if gpu.extra_mib else left

    def unused_mib(self, gpu: Gpu) -> int:
        """MiB of a GPU's own memory that are granted to no one; 0 when nothing new may be placed on it."""
        return max(self.left_mib(gpu) + gpu.memory_mib - self.grantable_mib(gpu), 0)

    def free_percent(self, gpu: Gpu) -> int:
        """Per cent of compute that are left on a GPU; 0 when nothing new may be placed on it."""
        if gpu.health is not GpuHealth.HEALTHY or gpu.uuid in self.whole:
            return 0
        return max(100 - self.used_percent.get(gpu.uuid, 0), 0)

    def untouched(self, gpu: Gpu) -> bool:
        return gpu.health is GpuHealth.HEALTHY and gpu.uuid not in self.used_mib

    def over_committed(self) -> Mapping[GpuUuid, int]:
        """MiB held beyond what could be granted, for every such GPU: it shrank or vanished, or an annotation is forged.

        A GPU that was oversubscribed, and is so no longer or less, keeps its pods.
        """
        excess = {
            gpu: held - (self._could_grant_mib(known) if (known := self.inventory.by_uuid.get(gpu)) else 0)
            for gpu, held in self.used_mib.items()
        }
        return {gpu: mib for gpu, mib in excess.items() if mib > 0}

    def _could_grant_mib(self, gpu: Gpu) -> int:
        """The most that may have been granted on a GPU when its pods came."""
        was_mib = gpu.memory_mib + self.extra_mib.get(gpu.uuid, 0)
        return gpu.memory_mib if gpu.uuid in self.physical else max(gpu.grantable_mib, was_mib)

    def over_computed(self) -> Mapping[GpuUuid, int]:
        return {gpu: percent - 100 for gpu, percent in self.used_percent.items() if percent > 100}


LedgerOrRefused = NodeLedger | Refused  # why it has none; immutable: a new object whenever anything has changed


def mib_on(grant: Grant, gpu: Gpu | None) -> int:
    """MiB that are granted on one GPU, parts of it and whole GPUs included.

    Args:
        grant: what was given.
        gpu: of the node's inventory; None if the inventory does not list it, and parts of it are unknown.
    """
    return _with_part(grant.memory_mib, grant.memory_percent, gpu, whole=grant.whole)


def _with_part(mib: int, percent: int, gpu: Gpu | None, *, whole: bool) -> int:
    if gpu is None:
        return mib
    mib += gpu.memory_mib * percent // 100
    return max(mib, gpu.memory_mib) if whole else mib
