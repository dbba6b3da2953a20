"""What is left on each node for one more pod, and which pods may be evicted. Pure."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.cluster import groups
from gpushare.cluster.budgets import Budget
from gpushare.cluster.pod_records import NOTHING, Bound
from gpushare.identity import GpuUuid, NodeName, PodRef
from gpushare.model.allocation import Allocation, Grant, Placed
from gpushare.model.capacity import FreeHost
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.placement import ranking
from gpushare.placement.place import place
from gpushare.placement.policies import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class PodToPlace:
    """A pod that needs a place: the one that waits, or the successor of one that is evicted."""

    ref: PodRef
    shape: RequestShape
    labels: Mapping[str, str] = field(default_factory=dict)
    takes: FreeHost = NOTHING
    """CPU and memory of the host."""
    sums: Mapping[str, int] = field(default_factory=dict)
    """Extended resources, by kube-scheduler's count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictable:
    """A pod on a node that may be evicted, because something recreates it."""

    bound: Bound
    pod: PodToPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What is there and left on a node."""

    ledger: NodeLedger
    host: FreeHost | None = None
    """None if it is not known, and counts as enough."""
    spare: Mapping[str, int] | None = None
    """Extended resources that no pod has requested; None as above."""

    def without(self, gone: Collection[PodToPlace]) -> "NodeState":
        """When pods have left."""
        uids = {pod.ref.uid for pod in gone}
        rest = [held for uid, held in self.ledger.allocations.items() if uid not in uids]
        host, spare = self.host, self.spare
        for pod in gone:
            host = host and host.plus(pod.takes)
            spare = spare if spare is None else _sum(spare, pod.sums, 1)
        return NodeState(ledger=NodeLedger.of(self.ledger.inventory, rest), host=host, spare=spare)

    def plus(self, pod: PodToPlace, allocation: Allocation | None) -> "NodeState":
        """When a pod has come; without an allocation only what it takes beside GPUs."""
        return NodeState(
            ledger=self.ledger if allocation is None else self.ledger.with_allocation(allocation),
            host=self.host and self.host.without(pod.takes),
            spare=self.spare if self.spare is None else _sum(self.spare, pod.sums, -1),
        )

    def holding_back(self, gpus: Collection[GpuUuid]) -> "NodeState":
        """While these GPUs take no pods."""
        inventory = self.ledger.inventory
        kept = tuple(replace(gpu, health=GpuHealth.CORDONED) if gpu.uuid in gpus else gpu for gpu in inventory.gpus)
        return replace(self, ledger=NodeLedger.of(replace(inventory, gpus=kept), self.ledger.allocations.values()))

    def opened(self, gpus: Collection[GpuUuid]) -> "NodeState":
        """When these GPUs, which took no pods, do so again."""
        inventory = self.ledger.inventory
        back = tuple(
            replace(gpu, health=GpuHealth.HEALTHY) if gpu.uuid in gpus and gpu.health is GpuHealth.CORDONED else gpu
            for gpu in inventory.gpus
        )
        return replace(self, ledger=NodeLedger.of(replace(inventory, gpus=back), self.ledger.allocations.values()))

    def grants(self, pod: PodToPlace, shape: RequestShape, policies: Policies) -> tuple[Grant, ...] | None:
        """The GPUs that a pod would get here; None if it does not fit."""
        host, spare = self.host, self.spare
        if host is not None and (pod.takes.cpu_milli > host.cpu_milli or pod.takes.memory_mib > host.memory_mib):
            return None
        if spare is not None and any(amount > spare.get(resource, 0) for resource, amount in pod.sums.items()):
            return None
        verdict = place(shape, self.ledger, policies)
        return verdict.grants if isinstance(verdict, Placed) else None


NodeStates = Mapping[NodeName, NodeState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The cluster."""

    nodes: NodeStates
    evictable: Sequence[Evictable] = ()
    known: Sequence[Budget] = ()
    """Budgets."""
    admits: Callable[[PodToPlace, NodeName], bool] = lambda _mover, _node: True
    """Whether a node takes a pod as far as taints, selectors and the like tell."""
    policies: Policies = field(default_factory=Policies)


def after(snapshot: Snapshot, gone: Collection[Evictable]) -> Snapshot:
    """When these pods have ended."""
    nodes = dict(snapshot.nodes)
    for node in {one.bound.node for one in gone}:
        nodes[node] = nodes[node].without([one.pod for one in gone if one.bound.node == node])
    return replace(snapshot, nodes=nodes)


def fits(pod: PodToPlace, snapshot: Snapshot) -> tuple[NodeName, ...]:
    """The nodes on which it fits as it is, by name."""
    shape = resolved(pod, snapshot.nodes)
    return tuple(
        name
        for name, node_state in sorted(snapshot.nodes.items())
        if snapshot.admits(pod, name) and node_state.grants(pod, shape, snapshot.policies) is not None
    )


def best(pod: PodToPlace, snapshot: Snapshot) -> tuple[NodeName | None, tuple[Grant, ...]]:
    """The node that costs least by the pod's policy."""
    shape = resolved(pod, snapshot.nodes)
    policy = snapshot.policies.of(shape.policy)
    found = []
    for name, node_state in sorted(snapshot.nodes.items()):
        if snapshot.admits(pod, name) and (grants := node_state.grants(pod, shape, snapshot.policies)) is not None:
            cost = ranking.cost_of(grants, node_state.ledger, policy, host=node_state.host, takes=pod.takes)
            found.append((cost, name, grants))
    if not found:
        return None, ()
    _, node, grants = min(found, key=lambda each: each[:2])
    return node, grants


def resolved(pod: PodToPlace, nodes: NodeStates) -> RequestShape:
    """With what depends on other pods: whether it may start its own group."""
    if pod.shape.affinity is None:
        return pod.shape

    def labels_in(namespace: str) -> Iterator[Mapping[str, str]]:
        return (
            held.labels
            for node_state in nodes.values()
            for held in node_state.ledger.allocations.values()
            if held.pod.namespace == namespace
        )

    return groups.resolved(pod.shape, pod.labels, labels_in)


def _sum(left: Mapping[str, int], right: Mapping[str, int], sign: int) -> Mapping[str, int]:
    return {key: left.get(key, 0) + sign * right.get(key, 0) for key in left.keys() | right.keys()}
