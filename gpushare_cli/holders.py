"""Nodes and pods -> who holds how much of which GPU; GPUs of Aliyun's plugin are shown as equal. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare import units
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, Limit, NodeInventory
from gpushare.model.ledger import Allocation, Grant, Held, NodeLedger, mib_on
from gpushare.model.request import ContainerRequest
from gpushare.units import MIB, MemoryUnit, ResourceConfig
from gpushare.wire import allocations, claims as claims_wire, fields, pods as pods_wire, requests
from gpushare.wire.claims import Claim
from gpushare_cli import reading, world

Object = Mapping[str, Any]
_NOWHERE: Final = GpuUuid("pending")
_NONE: Final[Mapping[NodeName, frozenset[int]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a container was granted of one GPU."""

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
class GpuRow:
    """One GPU. Memory in MiB; `total_mib` is what can be handed out, whole units of the node."""

    gpu: Gpu
    total_mib: int
    used_mib: int
    compute_percent: int = 0  # per cent of its compute that is set aside
    grantable_mib: int = 0  # that may be handed out: more than `total_mib` of an oversubscribed GPU
    whole: tuple[str, ...] = ()  # pods that have it for themselves: one, unless somebody else bound another


@dataclass(frozen=True, slots=True)
class ClaimedGpu:
    """A GPU that ResourceClaims share, and the MiB that each holds of it; None if claims may not be listed."""

    gpu: Gpu
    claims: tuple[tuple[Claim, int], ...] | None

    @property
    def held_mib(self) -> int | None:
        return None if self.claims is None else sum(mib for _, mib in self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """What one pod holds on its node, in MiB."""

    namespace: str
    name: str
    held: Mapping[int, Held]  # by GPU index
    shares: tuple[Share, ...]  # of its containers; none if it has no allocation that can be read
    pending_mib: int  # on a GPU that no one has named, or that its node no longer lists
    since: str  # when it came to its node, as the API server writes it; empty if it does not say

    def on(self, index: int) -> Held:
        return self.held.get(index, Held(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node. Its pods are grouped by GPU; those that hold none come last."""

    name: NodeName
    address: str = ""
    inventory: NodeInventory
    gpus: tuple[GpuRow, ...]
    pods: tuple[PodRow, ...]
    total_mib: int  # not always the sum of the GPUs: Aliyun's equal shares drop the remainder
    claimed: tuple[ClaimedGpu, ...] = ()  # its other GPUs, which count in no sum

    @property
    def pending_mib(self) -> int:
        return sum(pod.pending_mib for pod in self.pods)

    @property
    def used_mib(self) -> int:
        return sum(row.used_mib for row in self.gpus) + self.pending_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    nodes: tuple[NodeRow, ...]  # by name
    notes: tuple[str, ...]  # what could not be read, for people; the rows count such pods as pending

    @property
    def unit(self) -> MemoryUnit:
        """The nodes' unit; MiB if they differ."""
        used = {node.inventory.unit for node in self.nodes}
        return used.pop() if len(used) == 1 else MemoryUnit(1)

    @property
    def total_mib(self) -> int:
        return sum(node.total_mib for node in self.nodes)

    @property
    def used_mib(self) -> int:
        return sum(node.used_mib for node in self.nodes)


def granted_json(mib: int) -> dict[str, int]:
    """Under its former name too: what is used is measured."""
    return {"grantedMiB": mib, "usedMiB": mib}


def build(
    nodes: Iterable[Object], pods: Iterable[Object], unhealthy: Mapping[NodeName, frozenset[int]] = _NONE
) -> Report:
    """The report, and notes of bad annotations; nodes without GPUs to share and pods that hold none do not appear."""
    notes: list[str] = []
    on_node: defaultdict[NodeName | None, list[Object]] = defaultdict(list)
    for pod in pods:
        on_node[pods_wire.node_of(pod)].append(pod)
    rows = []
    for node in nodes:
        found = world.inventory_of(node, unhealthy, notes)
        if found is not None:
            inventory, total_mib = found
            addresses = (node.get("status") or {}).get("addresses") or ()
            address = next((each["address"] for each in addresses if each.get("type") == "InternalIP"), "unknown")
            row = node_row(inventory, on_node[inventory.node], notes)
            rows.append(replace(row, address=address, total_mib=total_mib))
    return Report(nodes=tuple(sorted(rows, key=lambda row: row.name)), notes=tuple(notes))


def with_claims(report: Report, allocated: Sequence[Object] | None) -> Report:
    """The same with what claims hold, which are reduced; None if they may not be listed."""
    notes, on_node = [*report.notes], defaultdict[str, list[Claim]](list)
    for claim in allocated or ():
        pool = NodeName(str(claim["results"][0].get("pool")))
        try:
            on_node[pool].append(claims_wire.read(dict(claim), pool))
        except WireError as error:
            metadata = claim["metadata"]
            notes.append(f"ResourceClaim {metadata['namespace']}/{metadata['name']}: {error}; not counted")

    def row(gpu: Gpu, there: Sequence[Claim]) -> ClaimedGpu:
        device = claims_wire.device_name(gpu.uuid)
        held = ((claim, sum(share.memory for share in claim.shares if share.device == device)) for claim in there)
        holding = sorted(((claim, -(-size // MIB)) for claim, size in held if size), key=lambda each: str(each[0]))
        return ClaimedGpu(gpu, None if allocated is None else tuple(holding))

    nodes = (
        replace(node, claimed=tuple(row(gpu, on_node[node.name]) for gpu in node.inventory.dra))
        for node in report.nodes
    )
    return Report(nodes=tuple(nodes), notes=tuple(notes))


def node_row(inventory: NodeInventory, on_it: Iterable[Object], notes: list[str]) -> NodeRow:
    holding = (pod for pod in on_it if reading.may_hold_gpus(pod) and pods_wire.holds_gpus(pod))
    return _row(inventory, [row for pod in holding if (row := _pod_row(pod, inventory, notes))])


def claimed_row(inventory: NodeInventory, claims: Iterable[ClaimRecord]) -> NodeRow:
    """Of a node's GPUs of mode dra, with what claims hold of them in place of pods: a row for each claim's pod."""
    inventory = replace(inventory, gpus=inventory.dra, dra=(), unit=MemoryUnit(1))  # claims count no units
    known = {claims_wire.device_name(gpu.uuid): gpu.uuid for gpu in inventory.gpus}
    pods = []
    for claim in claims:
        grants = [replace(each, gpus=tuple(known[gpu] for gpu in each.gpus if gpu in known)) for each in claim.grants]
        found = Allocation(pod=claim.pod, node=inventory.node, grants=tuple(grants))
        held = NodeLedger.of(inventory).held(found)
        row = PodRow(
            namespace=claim.pod.namespace,
            name=claim.pod.name,
            held={gpu.index: held[gpu.uuid] for gpu in inventory.gpus if gpu.uuid in held},
            shares=tuple(shares(found, inventory)),
            pending_mib=0,
            since="",
        )
        pods.append(row)
    return _row(inventory, [row for row in pods if row.held])


def _row(inventory: NodeInventory, pods: Sequence[PodRow]) -> NodeRow:
    unit = inventory.unit
    gpus = tuple(
        GpuRow(
            gpu=gpu,
            total_mib=unit.to_mib(unit.floor(gpu.memory_mib)),
            grantable_mib=unit.to_mib(unit.floor(gpu.grantable_mib)),
            used_mib=sum(pod.on(gpu.index).memory_mib for pod in pods),
            compute_percent=sum(pod.on(gpu.index).compute_percent for pod in pods),
            whole=tuple(sorted(f"{pod.namespace}/{pod.name}" for pod in pods if pod.on(gpu.index).whole)),
        )
        for gpu in inventory.gpus
    )
    return NodeRow(
        name=inventory.node,
        inventory=inventory,
        gpus=gpus,
        pods=tuple(sorted(pods, key=lambda pod: (min(pod.held, default=1 << 30), pod.namespace, pod.name))),
        total_mib=sum(row.total_mib for row in gpus),
    )


def _pod_row(pod: Object, inventory: NodeInventory, notes: list[str]) -> PodRow | None:
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
    counted = allocation or _asked(pod, resource_config, inventory, notes)
    # A ledger knows what a whole GPU is, and what a part of one.
    held = NodeLedger.of(inventory).held(counted) if counted else {}
    if not held:
        return None
    lost = {uuid: share.memory_mib for uuid, share in held.items() if uuid not in inventory.by_uuid}
    notes.extend(
        f"pod {who}: holds memory on GPU {uuid}, which node {inventory.node} does not list"
        for uuid in lost
        if uuid != _NOWHERE
    )
    placed = fields.condition(pod, "PodScheduled", "pod")
    return PodRow(
        namespace=who.namespace,
        name=who.name,
        held={gpu.index: held[gpu.uuid] for gpu in inventory.gpus if gpu.uuid in held},
        shares=tuple(shares(allocation, inventory)) if allocation else (),
        pending_mib=sum(lost.values()),
        since=str(placed.get("lastTransitionTime") or "") if placed.get("status") == "True" else "",
    )


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


def _asked(
    pod: Object, resource_config: ResourceConfig, inventory: NodeInventory, notes: list[str]
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
        Grant(container=each.container, kind=each.kind, gpus=(_NOWHERE,), memory_mib=_most(each, inventory))
        for each in request.shape.containers
    )
    return Allocation(pod=request.pod, node=inventory.node, grants=grants)


def _most(request: ContainerRequest, inventory: NodeInventory) -> int:
    """MiB that a request may come to on this node, over all its GPUs."""
    needs = (request.need(gpu).memory_mib for gpu in inventory.gpus)
    return max(needs, default=request.memory_mib) * request.gpu_count
