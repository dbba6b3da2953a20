"""Which few pods have to move so that a pod fits, and where they would go. Pure.

Every pod that moves must fit elsewhere by the same placement code that refuses the first one, while the GPUs that this
one is to get are kept free. So in the end one more pod has its GPUs, and none has lost them.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpushare.cluster.eviction_sets import candidates, size
from gpushare.cluster.snapshot import Evictable, NodeState, PodToPlace, Snapshot, best, fits, resolved
from gpushare.identity import GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import NodeLedger

MOST_MOVES: Final = 5
_TRIED: Final = 500
"""Sets of pods for which it is worked out where they would go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One pod that is evicted."""

    pod: PodRef
    source: NodeName
    target: NodeName | None
    """Where its successor fits; None if it would wait."""
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What makes room."""

    node: NodeName
    """Where."""
    kept_free: frozenset[GpuUuid]
    """GPUs there that take no pods until all have moved, so that no successor comes back to them."""
    moves: tuple[Move, ...]
    """In the order in which they are evicted, one after another."""
    grants: tuple[Grant, ...]
    """What the pod gets then."""

    @property
    def waiting(self) -> tuple[Move, ...]:
        """Pods that would have no place."""
        return tuple(move for move in self.moves if move.target is None)


def plan(pod: PodToPlace, snapshot: Snapshot, *, most: int = MOST_MOVES) -> Plan | None:
    """The fewest evictions that were found to make room for a pod that fits nowhere; None if none do.

    If every set of pods leaves some of them without a place, it is the best of those: `waiting` is not empty then.
    """
    spoilt: Plan | None = None
    for node, gone in itertools.islice(candidates(pod, snapshot, most), _TRIED):
        found = _worked_out(pod, snapshot, node, gone)
        if found is not None and not found.waiting:
            return found
        if found is not None and (spoilt is None or len(found.waiting) < len(spoilt.waiting)):
            spoilt = found
    return spoilt


def successors(
    snapshot: Snapshot, node: NodeName, closed: Collection[GpuUuid], leaving: Sequence[PodUid]
) -> Mapping[PodUid, NodeName | None]:
    """Where pods of a node fit that leave it in this order, while these GPUs take none; None for those that wait.

    Pods that may not be moved are left out.
    """
    known = {one.bound.ref.uid: one.pod for one in snapshot.evictable}
    nodes = dict(snapshot.nodes)
    if node in nodes:
        nodes[node] = nodes[node].holding_back(closed)
    found: dict[PodUid, NodeName | None] = {}
    for uid in leaving:
        if (pod := known.get(uid)) is None or node not in nodes:
            continue
        nodes[node] = nodes[node].without([pod])
        target, grants = best(pod, replace(snapshot, nodes=nodes))
        if target is not None:
            allocation = Allocation(pod=pod.ref, node=target, grants=grants, labels=pod.labels)
            nodes[target] = nodes[target].plus(pod, allocation)
        found[uid] = target
    return found


def again(pod: PodToPlace, snapshot: Snapshot, begun: Plan, left: Sequence[PodUid]) -> Plan | None:
    """The rest of a plan in the cluster as it is now: these pods move yet, in this order; None if they cannot any more.

    Without moves if the pod fits as it is.
    """
    node_state = snapshot.nodes.get(begun.node)
    known = {one.bound.ref.uid: one for one in snapshot.evictable if one.bound.node == begun.node}
    gone = [known[uid] for uid in left if uid in known]
    if node_state is None:
        return None
    opened = replace(snapshot, nodes={**snapshot.nodes, begun.node: node_state.opened(begun.kept_free)})
    if fits(pod, opened):
        return replace(begun, moves=())
    if len(gone) < len(left) or not snapshot.admits(pod, begun.node):
        return None
    found = _carried_out(pod, opened, begun.node, gone, begun.kept_free)
    return None if found is None or found.waiting else found


def _worked_out(pod: PodToPlace, snapshot: Snapshot, node: NodeName, gone: Sequence[Evictable]) -> Plan | None:
    """The plan of moving these pods, without which the first one fits; None if it does not fit in the end."""
    before = snapshot.nodes[node].without([one.pod for one in gone])
    wanted = before.grants(pod, resolved(pod, snapshot.nodes), snapshot.policies) or ()
    kept_free = frozenset(gpu for grant in wanted for gpu in grant.gpus)
    if _is_tight(before.plus(pod, Allocation(pod=pod.ref, node=node, grants=wanted)), gone):
        kept_free = frozenset(gpu.uuid for gpu in before.ledger.inventory.gpus if gpu.health is GpuHealth.HEALTHY)
    large_first = sorted(gone, key=lambda one: -size(snapshot.nodes[node].ledger, one))
    found = _carried_out(pod, snapshot, node, large_first, kept_free)
    if found is not None and found.waiting and len(gone) > 1:
        other = _carried_out(pod, snapshot, node, large_first[::-1], kept_free)
        if other is not None and len(other.waiting) < len(found.waiting):
            return other
    return found


def _carried_out(
    pod: PodToPlace, snapshot: Snapshot, node: NodeName, gone: Sequence[Evictable], kept_free: frozenset[GpuUuid]
) -> Plan | None:
    """Where these pods go, one after another in this order, while these GPUs take none of them.

    None if the first one does not fit in the end.
    """
    nodes: dict[NodeName, NodeState] = {**snapshot.nodes, node: snapshot.nodes[node].holding_back(kept_free)}
    moves = []
    for one in gone:
        nodes[node] = nodes[node].without([one.pod])
        target, grants = best(one.pod, replace(snapshot, nodes=nodes))
        if target is not None:
            allocation = Allocation(pod=one.bound.ref, node=target, grants=grants, labels=one.pod.labels)
            nodes[target] = nodes[target].plus(one.pod, allocation)
        moves.append(Move(pod=one.bound.ref, source=node, target=target, grants=grants))
    inventory = snapshot.nodes[node].ledger.inventory
    opened = replace(nodes[node], ledger=NodeLedger.of(inventory, nodes[node].ledger.allocations.values()))
    grants_now = opened.grants(pod, resolved(pod, nodes), snapshot.policies)
    made = Plan(node=node, kept_free=kept_free, moves=tuple(moves), grants=grants_now or ())
    return made if grants_now is not None else None


def _is_tight(after: NodeState, gone: Sequence[Evictable]) -> bool:
    """Whether successors that came back to other GPUs of the node could take CPU or the like that the pod needs."""
    for one in gone:
        after = after.plus(one.pod, None)
    left = [*(after.host or ()), *(after.spare or {}).values()]
    return min(left, default=0) < 0
