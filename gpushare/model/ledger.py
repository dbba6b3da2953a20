"""Who holds what on one node: a pure function of the inventory and the allocations of its pods."""

from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType

from gpushare import units
from gpushare.identity import GpuUuid, PodUid
from gpushare.model import allocation as allocations
from gpushare.model.allocation import Allocation, Grant, Held
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLedger:
    """The ledger of one node. Immutable: `with_allocation` gives the next state."""

    inventory: NodeInventory
    allocations: Mapping[PodUid, Allocation]
    used_mib: Mapping[GpuUuid, int] = field(init=False, compare=False)
    """MiB held on each GPU that anything is held on, also on GPUs that the inventory does not list.

    A GPU that is held whole is held with all that it has, also if it has got more since.
    """
    used_percent: Mapping[GpuUuid, int] = field(init=False, compare=False)
    """Per cent of compute that is set aside on each GPU that anything is held on."""
    whole: frozenset[GpuUuid] = field(init=False, compare=False)
    """GPUs that a pod has for itself."""

    grown: InitVar["tuple[NodeLedger, Allocation] | None"] = None
    """The ledger without one of the allocations, and that one: the sums of all others are known."""

    def __post_init__(self, grown: "tuple[NodeLedger, Allocation] | None") -> None:
        memory: dict[GpuUuid, int] = dict(grown[0].used_mib) if grown else {}
        percent: dict[GpuUuid, int] = dict(grown[0].used_percent) if grown else {}
        whole: set[GpuUuid] = set(grown[0].whole) if grown else set()
        for allocation in grown[1:] if grown else self.allocations.values():
            if (plain := _plain(allocation)) is not None:  # nearly every pod: ledgers are recreated with every change
                for gpu in plain.gpus:
                    uuid = self.inventory.resolve(gpu)
                    memory[uuid] = memory.get(uuid, 0) + plain.memory_mib
                    percent[uuid] = percent.get(uuid, 0) + plain.compute_percent
                continue
            for uuid, held in self.held(allocation).items():
                memory[uuid] = memory.get(uuid, 0) + held.memory_mib
                percent[uuid] = percent.get(uuid, 0) + held.compute_percent
                if held.whole:
                    whole.add(uuid)
        object.__setattr__(self, "used_mib", MappingProxyType(memory))
        object.__setattr__(self, "used_percent", MappingProxyType(percent))
        object.__setattr__(self, "whole", frozenset(whole))

    @classmethod
    def of(cls, inventory: NodeInventory, held: Iterable[Allocation] = ()) -> "NodeLedger":
        """The ledger from what was read: the same whatever the order of the pods."""
        return cls(inventory=inventory, allocations=MappingProxyType({a.pod.uid: a for a in held}))

    def held(self, allocation: Allocation) -> Mapping[GpuUuid, Held]:
        """What an allocation holds on this node's GPUs, with stand-ins, parts and whole GPUs turned into amounts."""
        result: dict[GpuUuid, Held] = {}
        for gpu, held in allocations.footprint(allocation.grants).items():
            uuid = self.inventory.resolve(gpu)
            mib = mib_on(held, self.inventory.by_uuid.get(uuid))
            before = result.get(uuid, Held(0))
            result[uuid] = Held(
                before.memory_mib + mib, before.compute_percent + held.compute_percent, before.whole or held.whole
            )
        return result

    def with_allocation(self, allocation: Allocation) -> "NodeLedger":
        """The ledger with one more pod. A pod that is there already is replaced, so adding twice changes nothing."""
        changed = {**self.allocations, allocation.pod.uid: allocation}
        grown = None if allocation.pod.uid in self.allocations else (self, allocation)
        return NodeLedger(inventory=self.inventory, allocations=MappingProxyType(changed), grown=grown)

    def free_mib(self, gpu: Gpu) -> int:
        """MiB that are left on a GPU; 0 when nothing new may be placed on it."""
        if gpu.health is not GpuHealth.HEALTHY:
            return 0
        return units.minus_or_zero(gpu.memory_mib, self.used_mib.get(gpu.uuid, 0))

    def free_percent(self, gpu: Gpu) -> int:
        """Per cent of compute that are left on a GPU; 0 when nothing new may be placed on it."""
        if gpu.health is not GpuHealth.HEALTHY or gpu.uuid in self.whole:
            return 0
        return units.minus_or_zero(100, self.used_percent.get(gpu.uuid, 0))

    def untouched(self, gpu: Gpu) -> bool:
        """Whether a GPU works and no one holds anything on it."""
        return gpu.health is GpuHealth.HEALTHY and gpu.uuid not in self.used_mib

    def over_committed(self) -> Mapping[GpuUuid, int]:
        """MiB held beyond what a GPU has, for every such GPU: one that shrank or vanished, or a forged annotation."""
        excess = {
            gpu: held - (known.memory_mib if (known := self.inventory.by_uuid.get(gpu)) else 0)
            for gpu, held in self.used_mib.items()
        }
        return {gpu: mib for gpu, mib in excess.items() if mib > 0}

    def over_computed(self) -> Mapping[GpuUuid, int]:
        """Per cent of compute held beyond 100, for every such GPU."""
        return {gpu: percent - 100 for gpu, percent in self.used_percent.items() if percent > 100}


def mib_on(held: Grant | Held, gpu: Gpu | None) -> int:
    """MiB that are held on one GPU, parts of it and whole GPUs included.

    Args:
        held: what was given.
        gpu: of the node's inventory; None if the inventory does not list it, and parts of it are unknown.
    """
    if gpu is None:
        return held.memory_mib
    mib = held.memory_mib + gpu.memory_mib * held.memory_percent // 100
    return max(mib, gpu.memory_mib) if held.whole else mib


def _plain(allocation: Allocation) -> Grant | None:
    """The only grant of a pod, if it holds the same on each GPU and what that is was written down."""
    if len(allocation.grants) != 1:
        return None
    grant = allocation.grants[0]
    return None if grant.whole or grant.memory_percent else grant
