"""Which few pods move so that a pod fits, and where: all fit by the placement that refuses the first. Pure."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare.cluster import budgets, groups
from gpushare.cluster.budgets import Budget
from gpushare.cluster.node_ledger import Node, PodToPlace
from gpushare.cluster.pod_records import Bound
from gpushare.identity import GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.capacity import NOTHING
from gpushare.model.ledger import Grant, NodeLedger
from gpushare.model.request import RequestShape
from gpushare.placement import costs
from gpushare.placement.policies import Policies

MOST_MOVES: Final = 5
_TRIED: Final = 500  # sets of pods for which it is worked out where they would go
_PAIRS_OF: Final = 40  # pods of a node, up to which every two of them are tried together


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictable:
    bound: Bound
    pod: PodToPlace
    owner: str = ""  # UID of the controller that recreates it

    def size(self, node: Node) -> int:
        """MiB that it holds on all GPUs of its node."""
        return sum(each.memory_mib for each in node.held(self.pod.ref.uid).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Movable:  # the nodes that take pods, and the pods that may move between them
    nodes: Mapping[NodeName, Node]
    evictable: Sequence[Evictable] = ()
    budgets: Sequence[Budget] = ()
    admits: Callable[[PodToPlace, NodeName], bool] = lambda _mover, _node: True
    """Whether a node takes a pod as far as taints, selectors and the like tell."""
    policies: Policies = field(default_factory=Policies)
    ending: Sequence[Evictable] = ()  # pods whose deletion was asked for, and that hold GPUs until they have ended
    stay: Mapping[str, int] = field(default_factory=dict)  # why other pods may not be moved -> how many

    def without(self, gone: Collection[Evictable]) -> "Movable":
        nodes = dict(self.nodes)
        for node in {one.bound.node for one in gone} & nodes.keys():
            nodes[node] = nodes[node].without([one.pod for one in gone if one.bound.node == node])
        return replace(self, nodes=nodes)

    def resolved(self, pod: PodToPlace) -> RequestShape:
        """With what depends on other pods: whether it may start its own group."""

        def labels_in(namespace: str) -> Iterator[Mapping[str, str]]:
            ledgers = (node.ledger for node in self.nodes.values())
            held = (
                each for ledger in ledgers if isinstance(ledger, NodeLedger) for each in ledger.allocations.values()
            )
            return (each.labels for each in held if each.pod.namespace == namespace)

        return groups.resolved(pod.shape, pod.labels, labels_in)

    def grants(self, pod: PodToPlace) -> Iterator[tuple[NodeName, tuple[Grant, ...]]]:
        """What it would get on each node on which it fits as it is, by name."""
        shape = self.resolved(pod)
        for name, node in sorted(self.nodes.items()):
            if self.admits(pod, name) and (grants := node.grants(pod, shape, self.policies)) is not None:
                yield name, grants

    def fits(self, pod: PodToPlace) -> tuple[NodeName, ...]:
        return tuple(name for name, _ in self.grants(pod))

    def best(self, pod: PodToPlace) -> tuple[NodeName | None, tuple[Grant, ...]]:
        """The node that costs least by the pod's policy, and what the pod would get there."""
        found = dict(self.grants(pod))
        if not found:
            return None, ()
        changes = [self.nodes[name].change(pod, grants) for name, grants in found.items()]
        cost = dict(zip(found, costs.costs_of(changes, self.policies.of(pod.shape.policy)), strict=True))
        best = min(found, key=lambda name: (cost[name], name))
        return best, found[best]

    def moved(self, pod: PodToPlace, source: NodeName) -> tuple["Movable", NodeName | None, tuple[Grant, ...]]:
        """When a pod has left its node and its successor has come to the best one, if there is any."""
        nodes = {**self.nodes, source: self.nodes[source].without([pod])}
        target, grants = replace(self, nodes=nodes).best(pod)
        if target is not None:
            nodes[target] = nodes[target].plus(pod, grants)
        return replace(self, nodes=nodes), target, grants


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    pod: PodRef
    owner: str
    target: NodeName | None  # where its successor fits; None if it would stay pending
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    node: NodeName
    kept_free: frozenset[GpuUuid]  # GPUs there that take no pods until all have moved
    moves: tuple[Move, ...]
    grants: tuple[Grant, ...]

    @property
    def waiting(self) -> tuple[Move, ...]:
        return tuple(move for move in self.moves if move.target is None)


def plan(pod: PodToPlace, movable: Movable, *, most: int = MOST_MOVES) -> Plan | None:
    """The fewest evictions that make room; if all leave pods without a place (`waiting`), the best of those."""
    spoilt: Plan | None = None
    for node, gone in itertools.islice(candidates(pod, movable, most), _TRIED):
        for found in _worked_out(pod, movable, node, gone):
            if not found.waiting:
                return found
            if spoilt is None or len(found.waiting) < len(spoilt.waiting):
                spoilt = found
    return spoilt


def successors(
    movable: Movable, node: NodeName, closed: Collection[GpuUuid], leaving: Sequence[PodUid]
) -> Mapping[PodUid, NodeName | None]:
    """Where movable pods fit that leave a node in this order, while these GPUs take none; None for those that wait."""
    known = {one.bound.ref.uid: one.pod for one in movable.evictable}
    found: dict[PodUid, NodeName | None] = {}
    if node in movable.nodes:
        movable = replace(movable, nodes={**movable.nodes, node: movable.nodes[node].closed(closed)})
        for uid in leaving:
            if uid in known:
                movable, found[uid], _ = movable.moved(known[uid], node)
    return found


def remainder(pod: PodToPlace, movable: Movable, begun: Plan, left: Sequence[PodUid]) -> Plan | None:
    """The rest of a plan, in this order; None if it no longer can be done, no moves if the pod fits as it is."""
    node = movable.nodes.get(begun.node)
    known = {one.bound.ref.uid: one for one in movable.evictable if one.bound.node == begun.node}
    gone = [known[uid] for uid in left if uid in known]
    if node is None:
        return None
    opened = replace(movable, nodes={**movable.nodes, begun.node: node.opened(begun.kept_free)})
    if opened.fits(pod):
        return replace(begun, moves=())
    if len(gone) < len(left) or not movable.admits(pod, begun.node):
        return None
    found = _carried_out(pod, opened, begun.node, gone, begun.kept_free)
    return None if found is None or found.waiting else found


def _worked_out(pod: PodToPlace, movable: Movable, name: NodeName, gone: Sequence[Evictable]) -> Iterator[Plan]:
    """Ways to move these pods, without which the first one fits; none of those in which it does not fit in the end."""
    before = movable.nodes[name].without([one.pod for one in gone])
    wanted = before.grants(pod, movable.resolved(pod), movable.policies) or ()
    kept_free = frozenset(gpu for grant in wanted for gpu in grant.gpus)
    if isinstance(before.ledger, NodeLedger) and _is_tight(before.plus(pod, wanted), gone):
        kept_free = frozenset(gpu.uuid for gpu in before.ledger.inventory.healthy)
    large_first = sorted(gone, key=lambda one: -one.size(movable.nodes[name]))
    for order in (large_first, large_first[::-1])[: len(gone)]:
        if (found := _carried_out(pod, movable, name, order, kept_free)) is not None:
            yield found


def _carried_out(
    pod: PodToPlace, movable: Movable, name: NodeName, gone: Sequence[Evictable], kept_free: frozenset[GpuUuid]
) -> Plan | None:
    """Where these pods go, in this order, while these GPUs take none; None if the first one does not fit then."""
    movable = replace(movable, nodes={**movable.nodes, name: movable.nodes[name].closed(kept_free)})
    moves = []
    for one in gone:
        movable, target, grants = movable.moved(one.pod, name)
        moves.append(Move(pod=one.bound.ref, owner=one.owner, target=target, grants=grants))
    opened = movable.nodes[name].opened(kept_free)
    grants_now = opened.grants(pod, movable.resolved(pod), movable.policies)
    return None if grants_now is None else Plan(node=name, kept_free=kept_free, moves=tuple(moves), grants=grants_now)


def _is_tight(after: Node, gone: Sequence[Evictable]) -> bool:
    """Whether successors that came back to other GPUs of the node could take CPU or the like that the pod needs."""
    for one in gone:
        after = after.plus(one.pod, ())
    return bool(after.lacks(NOTHING, dict.fromkeys(after.allocatable or (), 0)))


def candidates(pod: PodToPlace, movable: Movable, most: int) -> Iterator[tuple[NodeName, Sequence[Evictable]]]:
    """Sets of pods of one node without which the pod fits there, and each of which is needed for that: few first."""
    shape = movable.resolved(pod)
    on_node: dict[NodeName, list[Evictable]] = {}
    for one in movable.evictable:
        on_node.setdefault(one.bound.node, []).append(one)
    trials = []
    for name, evictable in sorted(on_node.items()):
        if name in movable.nodes and movable.admits(pod, name):
            trial = _Trial(pod, shape, movable.nodes[name], movable.policies)
            if trial.fits(evictable):
                trials.append((name, trial, evictable))
    single: set[PodUid] = set()
    for count, tier in enumerate((_singles, _pairs, _large), start=1):
        found: list[tuple[NodeName, Sequence[Evictable]]] = []
        for name, trial, evictable in trials if count <= most else ():
            found += (
                (name, gone)
                for gone in tier(trial, [one for one in evictable if one.bound.ref.uid not in single])
                if len(gone) <= most and not budgets.broken([one.bound for one in gone], movable.budgets)
            )
        found.sort(key=_rank)
        yield from found
        single |= {one.bound.ref.uid for _, gone in found if len(gone) == 1 for one in gone}


@dataclass(frozen=True, slots=True)
class _Trial:
    pod: PodToPlace
    shape: RequestShape
    node: Node
    policies: Policies

    def fits(self, gone: Collection[Evictable]) -> bool:
        left = self.node.without([one.pod for one in gone])
        return left.grants(self.pod, self.shape, self.policies) is not None

    def needs(self, gone: Sequence[Evictable]) -> bool:
        """Whether the pod fits without these, and not while any of them stays."""
        return self.fits(gone) and not any(self.fits([other for other in gone if other is not one]) for one in gone)


def _singles(trial: _Trial, evictable: Sequence[Evictable]) -> Iterator[Sequence[Evictable]]:
    return ((one,) for one in evictable if trial.fits((one,)))


def _pairs(trial: _Trial, evictable: Sequence[Evictable]) -> Iterator[Sequence[Evictable]]:
    if len(evictable) <= _PAIRS_OF:
        yield from filter(trial.needs, itertools.combinations(evictable, 2))


def _large(trial: _Trial, evictable: Sequence[Evictable]) -> Iterator[Sequence[Evictable]]:
    """Begin without all pods of a GPU, or of the node, and take back whom the pod does not need gone."""
    by_gpu: dict[GpuUuid, list[Evictable]] = {}
    for one in evictable:
        for uuid in trial.node.held(one.bound.ref.uid):
            by_gpu.setdefault(uuid, []).append(one)
    seen: set[frozenset[PodUid]] = set()
    for scope in (*by_gpu.values(), evictable):
        if not trial.fits(scope):
            continue
        by_size = sorted(scope, key=lambda one: (one.size(trial.node), one.bound.ref.uid))
        for order in (by_size, by_size[::-1]):
            gone = list(order)
            for one in order:
                rest = [other for other in gone if other is not one]
                if trial.fits(rest):
                    gone = rest
            key = frozenset(one.bound.ref.uid for one in gone)
            if len(gone) > 1 and key not in seen and trial.needs(gone):
                seen.add(key)
                yield gone


def _rank(found: tuple[NodeName, Sequence[Evictable]]) -> tuple[object, ...]:
    """Few and unimportant pods first, then small ones: they find a place more easily, and lose less."""
    name, gone = found
    sizes = sum(request.memory_mib * request.gpu_count for one in gone for request in one.pod.shape.containers)
    return len(gone), max(one.bound.priority for one in gone), sizes, name, [one.bound.ref.uid for one in gone]
