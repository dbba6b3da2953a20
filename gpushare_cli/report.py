"""Nodes and pods -> who holds how much of which GPU. Pure: no I/O, no clock.

Nodes that publish an inventory are shown with the true size of every GPU. Nodes of Aliyun's plugin publish a total and
a count only, so their GPUs are shown as equal, as Aliyun's own tool does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.allocation import Allocation, Grant, Held
from gpushare.model.gpu import Gpu, LeftOut, NodeInventory
from gpushare.model.ledger import NodeLedger, mib_on
from gpushare.model.request import ContainerRequest
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import allocations, requests
from gpushare.wire import pods as pods_wire
from gpushare_cli import reading, world

_MIB: Final = MemoryUnit(1)
_NOWHERE: Final = GpuUuid("pending")
_NO_POD: Final[Mapping[NodeName, frozenset[int]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU. Memory in MiB; `total_mib` is what can be handed out, whole units of the node."""

    gpu: Gpu
    total_mib: int
    used_mib: int
    compute_percent: int = 0
    """Per cent of its compute that is set aside."""
    grantable_mib: int = 0
    """That may be handed out: more than `total_mib` of an oversubscribed GPU."""
    whole: tuple[str, ...] = ()
    """Pods that have it for themselves: one, unless somebody else bound another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """What one pod holds on its node, in MiB."""

    namespace: str
    name: str
    held: Mapping[int, Held]
    """By GPU index."""
    shares: Mapping[int, Sequence[int]]
    """MiB of each of its containers, by GPU index."""
    pending_mib: int
    """Asked for by a bound pod on a GPU that no one has named, or held on one that the node no longer lists."""

    def on(self, index: int) -> Held:
        """What it holds of a GPU, perhaps nothing."""
        return self.held.get(index, Held(0))

    @property
    def order(self) -> tuple[int, str, str]:
        """Rows are grouped by GPU; pods that hold none come last."""
        return min(self.held, default=1 << 30), self.namespace, self.name


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
    left_out: tuple[LeftOut, ...] = ()
    """GPUs that cannot be shared as they are."""

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
        used = {node.unit for node in self.nodes}
        return used.pop() if len(used) == 1 else _MIB

    @property
    def total_mib(self) -> int:
        """What all nodes can hand out."""
        return sum(node.total_mib for node in self.nodes)

    @property
    def used_mib(self) -> int:
        """What all nodes have handed out."""
        return sum(node.used_mib for node in self.nodes)


def build(
    nodes: Iterable[Mapping[str, Any]],
    pods: Iterable[Mapping[str, Any]],
    unhealthy: Mapping[NodeName, frozenset[int]] = _NO_POD,
) -> Report:
    """Make the report. Nodes without GPUs to share do not appear; bad annotations become notes."""
    notes: list[str] = []
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    for pod in pods:
        node_name = pods_wire.node_of(pod)
        if node_name is not None and reading.may_hold_gpus(pod) and pods_wire.holds_gpus(pod):
            by_node.setdefault(node_name, []).append(pod)
    rows = []
    for node in nodes:
        known = world.inventory_of(node, unhealthy, notes)
        if known is not None:
            inventory, total_mib = known
            rows.append(_node_row(node, inventory, total_mib, by_node.get(inventory.node, ()), notes))
    return Report(nodes=tuple(sorted(rows, key=lambda row: row.name)), notes=tuple(notes))


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
            grantable_mib=unit.to_mib(unit.floor(gpu.grantable_mib)),
            used_mib=sum(row.on(gpu.index).memory_mib for row in rows),
            compute_percent=sum(row.on(gpu.index).compute_percent for row in rows),
            whole=tuple(sorted(f"{row.namespace}/{row.name}" for row in rows if row.on(gpu.index).whole)),
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
        left_out=inventory.left_out,
    )


def _pod_row(pod: Mapping[str, Any], inventory: NodeInventory, notes: list[str]) -> PodRow | None:
    who = pods_wire.ref(pod)
    resource_config = world.config_of(pod, ResourceConfig(unit=inventory.unit))
    try:
        holding = allocations.held(pod, resource_config, inventory.unit)
        allocation = holding.allocation
        if holding.problem:
            notes.append(f"pod {who}: {holding.problem}; counted by the other annotations of its binding")
    except WireError as error:
        notes.append(f"pod {who}: {error}; counted as pending")
        allocation = None
    if allocation is None:
        allocation = _asked(pod, resource_config, inventory, notes)
    # A ledger knows what a whole GPU is, and what a part of one.
    held = NodeLedger.of(inventory).held(allocation) if allocation else {}
    if allocation is None or not held:
        return None
    lost = {uuid: share.memory_mib for uuid, share in held.items() if uuid not in inventory.by_uuid}
    notes.extend(
        f"pod {who}: holds memory on GPU {uuid}, which node {inventory.node} does not list"
        for uuid in lost
        if uuid != _NOWHERE
    )
    return PodRow(
        namespace=who.namespace,
        name=who.name,
        held={gpu.index: held[gpu.uuid] for gpu in inventory.gpus if gpu.uuid in held},
        shares={gpu.index: _shares(allocation, gpu, inventory) for gpu in inventory.gpus if gpu.uuid in held},
        pending_mib=sum(lost.values()),
    )


def _shares(allocation: Allocation, gpu: Gpu, inventory: NodeInventory) -> Sequence[int]:
    return [mib_on(grant, gpu) for grant in allocation.grants if gpu.uuid in map(inventory.resolve, grant.gpus)]


def _asked(
    pod: Mapping[str, Any], resource_config: ResourceConfig, inventory: NodeInventory, notes: list[str]
) -> Allocation | None:
    """What a pod without a readable allocation asks for, as if all of it were on one GPU that is not of the node."""
    try:
        request = requests.of_pod(pod, resource_config)
    except InvalidRequestError as error:
        notes.append(f"pod {pods_wire.ref(pod)}: {error}; not counted")
        return None
    if request is None:
        return None
    grants = tuple(
        Grant(
            container=container_request.container,
            kind=container_request.kind,
            gpus=(_NOWHERE,),
            memory_mib=_most(container_request, inventory),
        )
        for container_request in request.shape.containers
    )
    return Allocation(pod=request.pod, node=inventory.node, grants=grants)


def _most(container_request: ContainerRequest, inventory: NodeInventory) -> int:
    """MiB that a request may come to on this node, over all its GPUs."""
    return (
        max((container_request.need(gpu).memory_mib for gpu in inventory.gpus), default=container_request.memory_mib)
        * container_request.gpu_count
    )


def _address(node: Mapping[str, Any]) -> str:
    addresses = (node.get("status") or {}).get("addresses") or ()
    return next((entry["address"] for entry in addresses if entry.get("type") == "InternalIP"), "unknown")
