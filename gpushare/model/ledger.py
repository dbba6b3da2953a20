"""Who holds what on one node: a pure function of the inventory and the allocations of its pods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gpushare import units
from gpushare.identity import GpuUuid, PodUid
from gpushare.model import allocation as allocations
from gpushare.model.allocation import Allocation
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLedger:
    """The books of one node. Immutable: `with_allocation` and `without` give the next state."""

    inventory: NodeInventory
    allocations: Mapping[PodUid, Allocation] = field(default_factory=lambda: MappingProxyType({}))
    used_mib: Mapping[GpuUuid, int] = field(init=False, compare=False)
    """MiB held on each GPU that anything is held on, also on GPUs that the inventory does not list."""

    def __post_init__(self) -> None:
        used: dict[GpuUuid, int] = {}
        for held in self.allocations.values():
            for gpu, mib in allocations.footprint(held.grants).items():
                uuid = self.inventory.resolve(gpu)
                used[uuid] = used.get(uuid, 0) + mib
        object.__setattr__(self, "used_mib", MappingProxyType(used))

    @classmethod
    def of(cls, inventory: NodeInventory, held: Iterable[Allocation] = ()) -> "NodeLedger":
        """The books from what was read: the same whatever the order of the pods."""
        return cls(inventory=inventory, allocations=MappingProxyType({a.pod.uid: a for a in held}))

    def with_allocation(self, allocation: Allocation) -> "NodeLedger":
        """The books with one more pod. A pod that is there already is replaced, so adding twice changes nothing."""
        changed = {**self.allocations, allocation.pod.uid: allocation}
        return NodeLedger(inventory=self.inventory, allocations=MappingProxyType(changed))

    def without(self, pod: PodUid) -> "NodeLedger":
        """The books without a pod."""
        if pod not in self.allocations:
            return self
        rest = {uid: held for uid, held in self.allocations.items() if uid != pod}
        return NodeLedger(inventory=self.inventory, allocations=MappingProxyType(rest))

    def with_inventory(self, inventory: NodeInventory) -> "NodeLedger":
        """The books after the node's GPUs changed; what pods hold stays."""
        return NodeLedger(inventory=inventory, allocations=self.allocations)

    def free_mib(self, gpu: Gpu) -> int:
        """MiB that are left on a GPU; 0 when it is unhealthy."""
        if gpu.health is not GpuHealth.HEALTHY:
            return 0
        return units.minus_or_zero(gpu.memory_mib, self.used_mib.get(gpu.uuid, 0))

    def over_committed(self) -> Mapping[GpuUuid, int]:
        """MiB held beyond what a GPU has, for every such GPU: one that shrank or vanished, or a forged annotation."""
        excess = {
            gpu: held - (known.memory_mib if (known := self.inventory.by_uuid.get(gpu)) else 0)
            for gpu, held in self.used_mib.items()
        }
        return {gpu: mib for gpu, mib in excess.items() if mib > 0}
