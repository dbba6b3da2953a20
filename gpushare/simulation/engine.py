"""One pod after another to the node that kube-scheduler would choose. Pure, but for what it remembers.

What nodes are worth to a kind of pod is kept, and only nodes that have changed since are looked at again: a pod costs
about as much as its kind is frequent.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gpushare.identity import NodeName
from gpushare.placement import grade
from gpushare.simulation import scores
from gpushare.simulation.kinds import Kind
from gpushare.simulation.scores import Host, Load, Rules

_PER_GRADE: Final = scores.MOST // grade.BEST
_MOST_KEPT: Final = 20_000_000
"""Of nodes times kinds; some 500 MiB."""
_NOWHERE: Final = -1


class Gpus(Protocol):
    """The GPUs of all nodes, and who gets which of them. Nodes are numbered."""

    @property
    def epoch(self) -> int:
        """Changes when what `cost` has said may be different."""

    @property
    def fine_epoch(self) -> int:
        """The same of `fine`."""

    def came(self, kind: Kind) -> None:
        """A pod has come, and is placed next."""

    def cost(self, kind: Kind, node: int) -> int | None:
        """What the node costs a pod, for which its CPU and memory are enough; None if it does not fit there."""

    def fine(self, kind: Kind, node: int) -> int:
        """By which nodes that cost the same and fit are told apart; less is better."""

    def take(self, kind: Kind, node: int, pod: int) -> Any:
        """Give a pod, by the number that its caller has for it, its GPUs of a node where it fits.

        What is returned is for `give`.
        """

    def give(self, node: int, taken: Any) -> None:
        """A pod has left a node."""


class Neighbours(Protocol):
    """Who is where, as far as pods say anything of each other. Pods are known by `Kind.company`."""

    def add(self, pod: Any, node: int, sign: int) -> None:
        """A pod has come to a node; with sign -1 it has left."""

    def admits(self, pod: Any) -> Callable[[int], bool]:
        """Whether a node may take a pod, as things are."""

    def points(self, pod: Any, nodes: Sequence[int]) -> list[int]:
        """Of the nodes, 0 to 100, by pod affinity."""

    def spread(self, pod: Any, nodes: Sequence[int]) -> list[int]:
        """The same by the pod's own topology spread constraints."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """What kube-scheduler knows of nodes."""

    hosts: Sequence[Host]
    used: Sequence[Load] = ()
    """By pods that are there already; nothing for none."""
    zones: Sequence[str | None] = ()
    """Label of each node; nothing for none."""
    replicas: Mapping[Hashable, Mapping[int, int]] = field(default_factory=dict)
    """How many of these pods each owner has on which node."""
    neighbours: Neighbours | None = None
    """None if no pod says anything of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extender:
    """How kube-scheduler asks us: the weights of our grades. With 0 nodes are not ranked."""

    weight: int = 1
    others_weight: int = 0
    """For pods without GPUs."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod on its node."""

    kind: Kind
    node: int
    taken: Any


@dataclass(slots=True)
class _View:
    """What nodes are worth to one kind of pod, as of some moment."""

    epoch: int
    seen: int
    host: list[int]
    """Points of kube-scheduler for CPU and memory; _NOWHERE where the pod does not fit."""
    cost: list[float]
    """Infinite where the pod does not fit."""
    fine_epoch: int = -1
    fine: dict[int, int] = field(default_factory=dict)
    """Of nodes where it was asked for."""


class Scheduler:
    """A cluster's kube-scheduler, with our extender."""

    def __init__(
        self, nodes: Nodes, gpus: Gpus, *, rules: Rules, extender: Extender, pick: Callable[[int], int]
    ) -> None:
        """A cluster as it is.

        Args:
            nodes: all, in the order in which equal ones are preferred by the extender.
            gpus: of the same nodes.
            rules: of kube-scheduler.
            extender: how it asks.
            pick: a number below the given one, for nodes with equal scores.
        """
        self.hosts = tuple(nodes.hosts)
        self.used = list(nodes.used) or [Load(pods=0)] * len(self.hosts)
        self._gpus, self._rules, self._extender, self._pick = gpus, rules, extender, pick
        self._points = scores.resources(rules)
        self._zones = list(nodes.zones) or [None] * len(self.hosts)
        self._changed: list[int] = []
        self._neighbours = nodes.neighbours
        self._names = [NodeName(f"{node:09}") for node in range(len(self.hosts))]
        self._views: OrderedDict[Kind, _View] = OrderedDict()
        self._most_views = max(_MOST_KEPT // max(len(self.hosts), 1), 16)
        self._replicas = {of: dict(counts) for of, counts in nodes.replicas.items()}

    @property
    def changes(self) -> int:
        """How often a pod has come to a node or left one."""
        return len(self._changed)

    def place(self, kind: Kind, pod: int = 0, *, only: int | None = None) -> Bound | None:
        """Bind a pod that has come, if only one node comes into question to that one; None if no node takes it."""
        self._gpus.came(kind)
        node = self.choose(kind) if only is None else only if self.fits(kind, only) else None
        return None if node is None else self.bind(kind, node, pod)

    def fits(self, kind: Kind, node: int) -> bool:
        """Whether a node takes a pod."""
        allowed = kind.terms.allowed
        return (
            0 <= node < len(self.hosts)
            and (allowed is None or node in allowed)
            and kind.load.fits(self.used[node], self.hosts[node])
            and self.is_welcome(kind, node)
            and self._gpus.cost(kind, node) is not None
        )

    def is_welcome(self, kind: Kind, node: int) -> bool:
        """Whether no pod affinity keeps a pod away from a node."""
        return self._neighbours is None or kind.company is None or self._neighbours.admits(kind.company)(node)

    def bind(self, kind: Kind, node: int, pod: int = 0) -> Bound:
        """Put a pod on a node."""
        bound = Bound(kind, node, self._gpus.take(kind, node, pod))
        self.used[node] = self.used[node].plus(kind.load)
        self._count(kind, node, 1)
        return bound

    def leave(self, bound: Bound) -> None:
        """A pod has ended."""
        self._gpus.give(bound.node, bound.taken)
        self.used[bound.node] = self.used[bound.node].minus(bound.kind.load)
        self._count(bound.kind, bound.node, -1)

    def _count(self, kind: Kind, node: int, change: int) -> None:
        self._changed.append(node)
        if self._neighbours is not None and kind.company is not None:
            self._neighbours.add(kind.company, node, change)
        if kind.replicas_of is not None:
            counts = self._replicas.setdefault(kind.replicas_of, {})
            counts[node] = counts.get(node, 0) + change

    def choose(self, kind: Kind) -> int | None:
        """The node for a pod as things are; None if no node takes it."""
        view = self._refreshed(kind)
        if (high := max(view.host, default=_NOWHERE)) == _NOWHERE:
            return None
        weight = _PER_GRADE * (self._extender.weight if kind.ask.gpus else self._extender.others_weight)
        plain = not kind.terms.repelled and not kind.terms.attracted and kind.replicas_of is None
        plain = plain and kind.company is None
        if plain and not weight:
            return self._one_of([node for node, points_ in enumerate(view.host) if points_ == high])
        if plain:
            best = self._best(kind, view)
            if view.host[best] + (grade.BEST - grade.NEXT) * weight > high:  # whatever the others' grades are
                return best
        fitting = [node for node, points_ in enumerate(view.host) if points_ != _NOWHERE]
        if self._neighbours is not None and kind.company is not None:
            fitting = list(filter(self._neighbours.admits(kind.company), fitting))
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        total = self._plugins(kind, view, fitting)
        if weight:
            costs = self._costs(kind, view, fitting)
            given = grade.grades([self._names[node] for node in fitting], costs)
            total = [one + weight * other for one, other in zip(total, given, strict=True)]
        most = max(total)
        return self._one_of([node for node, sum_ in zip(fitting, total, strict=True) if sum_ == most])

    def _plugins(self, kind: Kind, view: _View, fitting: Sequence[int]) -> list[int]:
        """The sum of what all plugins think of the nodes that fit."""
        total, rules = [view.host[node] for node in fitting], self._rules
        if kind.terms.repelled:
            found = scores.normalized([kind.terms.repelled.get(node, 0) for node in fitting])
            total = [one - rules.taint_weight * other for one, other in zip(total, found, strict=True)]
        if kind.terms.attracted:
            found = scores.normalized([kind.terms.attracted.get(node, 0) for node in fitting])
            total = [one + rules.affinity_weight * other for one, other in zip(total, found, strict=True)]
        if kind.replicas_of is not None:
            found = scores.spread(rules, self._replicas.get(kind.replicas_of, {}), self._zones, fitting)
            total = [one + rules.spread_weight * other for one, other in zip(total, found, strict=True)]
        if self._neighbours is not None and kind.company is not None:
            found = self._neighbours.points(kind.company, fitting)
            total = [one + rules.neighbours_weight * other for one, other in zip(total, found, strict=True)]
            found = self._neighbours.spread(kind.company, fitting)
            total = [one + rules.spread_weight * other for one, other in zip(total, found, strict=True)]
        return total

    def _best(self, kind: Kind, view: _View) -> int:
        least = min(view.cost)
        equal = [node for node, cost in enumerate(view.cost) if cost == least]
        if len(equal) == 1:
            return equal[0]
        fine = self._fine(kind, view, equal)
        return equal[fine.index(min(fine))]

    def _costs(self, kind: Kind, view: _View, fitting: Sequence[int]) -> list[int]:
        """As one number each, of which only the order means anything."""
        pairs = [(view.cost[node], fine) for node, fine in zip(fitting, self._fine(kind, view, fitting), strict=True)]
        ranks = {pair: rank for rank, pair in enumerate(sorted(set(pairs)))}
        return [ranks[pair] for pair in pairs]

    def _fine(self, kind: Kind, view: _View, nodes: Sequence[int]) -> list[int]:
        if view.fine_epoch != self._gpus.fine_epoch:
            view.fine_epoch = self._gpus.fine_epoch
            view.fine.clear()
        known = view.fine
        for node in nodes:
            if node not in known:
                known[node] = self._gpus.fine(kind, node)
        return [known[node] for node in nodes]

    def _one_of(self, nodes: Sequence[int]) -> int:
        return nodes[self._pick(len(nodes))] if len(nodes) > 1 else nodes[0]

    def _refreshed(self, kind: Kind) -> _View:
        view = self._views.get(kind)
        if view is None or view.epoch != self._gpus.epoch:
            number = len(self.hosts)
            view = _View(self._gpus.epoch, len(self._changed), [_NOWHERE] * number, [math.inf] * number)
            todo: Iterable[int] = range(number) if kind.terms.allowed is None else kind.terms.allowed
            self._views[kind] = view
            if len(self._views) > self._most_views:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(kind)
            todo = set(self._changed[view.seen :])
            view.seen = len(self._changed)
        for node in todo:
            self._look(kind, view, node)
            view.fine.pop(node, None)
        return view

    def _look(self, kind: Kind, view: _View, node: int) -> None:
        used, host, allowed = self.used[node], self.hosts[node], kind.terms.allowed
        cost = None
        if (allowed is None or node in allowed) and kind.load.fits(used, host):
            cost = self._gpus.cost(kind, node)
        view.cost[node] = math.inf if cost is None else cost
        view.host[node] = _NOWHERE if cost is None else self._points(kind.load, used, host)
