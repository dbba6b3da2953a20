"""Nodes and pods -> who holds how much of which GPU. Pure: no I/O, no clock.

Nodes that publish an inventory are shown with the true size of every GPU. Nodes of Aliyun's plugin publish a total and
a count only, so their GPUs are shown as equal, as Aliyun's own tool does.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names
from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import GpuUuid, NodeName, by_index
from gpushare.model.allocation import Grant, footprint
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import inventory as inventory_wire
from gpushare.wire import pods as pods_wire

_MIB: Final = MemoryUnit(1)
_QUANTITY: Final = re.compile(r"([0-9]+)(k|M|G|Ki|Mi|Gi)?")
_SUFFIX: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_NOWHERE: Final = GpuUuid("pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU. Memory in MiB; `total_mib` is what can be handed out, whole units of the node."""

    gpu: Gpu
    total_mib: int
    used_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """What one pod holds on its node, in MiB."""

    namespace: str
    name: str
    by_gpu: Mapping[int, int]
    """GPU index -> MiB."""
    pending_mib: int = 0
    """Asked for by a bound pod on a GPU that nobody has named, or held on one that the node no longer lists."""

    @property
    def order(self) -> tuple[int, str, str]:
        """Rows are grouped by GPU; pods that hold none come last."""
        return min(self.by_gpu, default=1 << 30), self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node."""

    name: str
    address: str
    unit: MemoryUnit
    gpus: tuple[GpuRow, ...]
    pods: tuple[PodRow, ...]
    total_mib: int
    """Not always the sum of the GPUs: Aliyun's equal shares drop the remainder."""

    @property
    def pending_mib(self) -> int:
        """Held or asked for on no known GPU."""
        return sum(pod.pending_mib for pod in self.pods)

    @property
    def used_mib(self) -> int:
        """All that is held or asked for."""
        return sum(row.used_mib for row in self.gpus) + self.pending_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole cluster, or one node of it."""

    nodes: tuple[NodeRow, ...]
    """By name."""
    notes: tuple[str, ...]
    """What could not be read, for people; the rows count such pods as pending."""

    @property
    def unit(self) -> MemoryUnit:
        """The nodes' unit; MiB if they differ."""
        found = {node.unit for node in self.nodes}
        return found.pop() if len(found) == 1 else _MIB

    @property
    def total_mib(self) -> int:
        """What all nodes can hand out."""
        return sum(node.total_mib for node in self.nodes)

    @property
    def used_mib(self) -> int:
        """What all nodes have handed out."""
        return sum(node.used_mib for node in self.nodes)


def build(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> Report:
    """Make the report. Nodes without GPUs to share do not appear; bad annotations become notes."""
    notes: list[str] = []
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    for pod in pods:
        node_name = pods_wire.node_of(pod)
        if node_name is not None and pods_wire.holds_gpus(pod):
            by_node.setdefault(node_name, []).append(pod)
    rows = []
    for node in nodes:
        known = _inventory(node, notes)
        if known is not None:
            inventory, total_mib = known
            rows.append(_node_row(node, inventory, total_mib, by_node.get(inventory.node, ()), notes))
    return Report(nodes=tuple(sorted(rows, key=lambda row: row.name)), notes=tuple(notes))


def _inventory(node: Mapping[str, Any], notes: list[str]) -> tuple[NodeInventory, int] | None:
    """GPUs of a node and the MiB that it can hand out, or None if it shares no GPUs."""
    try:
        published = inventory_wire.of_node(node)
    except WireError as error:
        notes.append(f"{error}; its GPUs are shown as equal")
        published = None
    if published is not None:
        return published, published.unit.to_mib(published.total_units)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    total = _quantity(allocatable.get(names.GPU_MEM))
    if total == 0:
        return None
    name = NodeName(node["metadata"]["name"])
    count = _quantity(allocatable.get(names.GPU_COUNT))
    if count == 0:
        notes.append(f"node {name}: no {names.GPU_COUNT} in its status; its memory is shown as one GPU")
        count = 1
    # Aliyun's own rule, which has no other sign of the unit.
    unit = _MIB if total // count > 100 else GIB
    each = unit.to_mib(total // count)
    gpus = tuple(Gpu(uuid=by_index(i), index=i, model="unknown", memory_mib=each) for i in range(count))
    return NodeInventory(node=name, gpus=gpus, unit=unit), unit.to_mib(total)


def _node_row(
    node: Mapping[str, Any],
    inventory: NodeInventory,
    total_mib: int,
    bound: Sequence[Mapping[str, Any]],
    notes: list[str],
) -> NodeRow:
    unit = inventory.unit
    rows = [row for pod in bound if (row := _pod_row(pod, inventory, notes)) is not None]
    gpus = tuple(
        GpuRow(
            gpu=gpu,
            total_mib=unit.to_mib(unit.floor(gpu.memory_mib)),
            used_mib=sum(row.by_gpu.get(gpu.index, 0) for row in rows),
        )
        for gpu in inventory.gpus
    )
    return NodeRow(
        name=inventory.node,
        address=_address(node),
        unit=unit,
        gpus=gpus,
        pods=tuple(sorted(rows, key=lambda row: row.order)),
        total_mib=total_mib,
    )


def _pod_row(pod: Mapping[str, Any], inventory: NodeInventory, notes: list[str]) -> PodRow | None:
    who = pods_wire.ref(pod)
    try:
        holding = pods_wire.holding(pod, inventory.unit)
        allocation = holding.allocation
        if holding.problem:
            notes.append(f"pod {who}: {holding.problem}; counted by the other annotations of its binding")
    except WireError as error:
        notes.append(f"pod {who}: {error}; counted as pending")
        allocation = None
    held = footprint(allocation.grants) if allocation else _asked(pod, inventory.unit, notes)
    by_gpu: dict[int, int] = {}
    pending = 0
    for gpu, mib in held.items():
        known = inventory.by_uuid.get(inventory.resolve(gpu))
        if known is not None:
            by_gpu[known.index] = by_gpu.get(known.index, 0) + mib
            continue
        pending += mib
        if gpu != _NOWHERE:
            notes.append(f"pod {who}: holds memory on GPU {gpu}, which node {inventory.node} does not list")
    if not held:
        return None
    return PodRow(namespace=who.namespace, name=who.name, by_gpu=by_gpu, pending_mib=pending)


def _asked(pod: Mapping[str, Any], unit: MemoryUnit, notes: list[str]) -> Mapping[GpuUuid, int]:
    """What a pod without a readable allocation asks for, as if all of it were on one GPU that is not of the node."""
    try:
        request = pods_wire.request(pod, unit)
    except InvalidRequestError as error:
        notes.append(f"pod {pods_wire.ref(pod)}: {error}; not counted")
        return {}
    if request is None:
        return {}
    return footprint(
        Grant(
            container=wish.container,
            kind=wish.kind,
            gpus=(_NOWHERE,),
            memory_mib=wish.memory_mib * wish.gpu_count,
        )
        for wish in request.shape.containers
    )


def _address(node: Mapping[str, Any]) -> str:
    addresses = (node.get("status") or {}).get("addresses") or ()
    return next((entry["address"] for entry in addresses if entry.get("type") == "InternalIP"), "unknown")


def _quantity(value: object) -> int:
    """An integer quantity as the API server writes it: 15000 comes back as 15k. 0 if it is none."""
    match = _QUANTITY.fullmatch(str(value))
    return int(match[1]) * _SUFFIX[match[2] or ""] if match else 0
