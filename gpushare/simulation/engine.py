"""One pod after another to the node that kube-scheduler would choose. Pure, but for what it remembers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.identity import NodeName
from gpushare.placement import grade
from gpushare.simulation import scores
from gpushare.simulation.cluster import Gpus, Nodes
from gpushare.simulation.kinds import Kind
from gpushare.simulation.scores import Load, Rules
from gpushare.simulation.views import View, Views

_PER_GRADE: Final = scores.MOST // grade.BEST


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
        self._zones = list(nodes.zones) or [None] * len(self.hosts)
        self._neighbours = nodes.neighbours
        self._names = [NodeName(f"{node:09}") for node in range(len(self.hosts))]
        self._views = Views(self.hosts, self.used, gpus, scores.resources(rules))
        self._replicas = {of: dict(counts) for of, counts in nodes.replicas.items()}

    @property
    def changes(self) -> int:
        """How often a pod has come to a node or left one."""
        return len(self._views.changed)

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
            and self._gpus.costs(kind, [node]) != [None]
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
        self._views.changed.append(node)
        if self._neighbours is not None and kind.company is not None:
            self._neighbours.add(kind.company, node, change)
        if kind.replicas_of is not None:
            counts = self._replicas.setdefault(kind.replicas_of, {})
            counts[node] = counts.get(node, 0) + change

    def choose(self, kind: Kind) -> int | None:
        """The node for a pod as things are; None if no node takes it."""
        view = self._views.of(kind)
        weight = _PER_GRADE * (self._extender.weight if kind.ask.gpus else self._extender.others_weight)
        lead = (grade.BEST - grade.NEXT) * weight
        plain = not kind.terms.repelled and not kind.terms.attracted and kind.replicas_of is None
        plain = plain and kind.company is None
        best = view.best() if plain and weight else None
        if best is not None and lead > scores.MOST_OF_RESOURCES:
            return best
        fitting = view.fitting()
        if self._neighbours is not None and kind.company is not None:
            fitting = list(filter(self._neighbours.admits(kind.company), fitting))
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        total = view.points(fitting)
        if best is not None and total[fitting.index(best)] + lead > max(total):  # whatever the others' grades are
            return best
        total = self._plus_others(kind, fitting, total)
        if weight:
            given = grade.grades([self._names[node] for node in fitting], _costs(view, fitting))
            total = [one + weight * other for one, other in zip(total, given, strict=True)]
        most = max(total)
        return self._one_of([node for node, sum_ in zip(fitting, total, strict=True) if sum_ == most])

    def _plus_others(self, kind: Kind, fitting: Sequence[int], total: list[int]) -> list[int]:
        """With what all other plugins think of the nodes that fit."""
        rules = self._rules
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

    def _one_of(self, nodes: Sequence[int]) -> int:
        return nodes[self._pick(len(nodes))] if len(nodes) > 1 else nodes[0]


def _costs(view: View, nodes: Sequence[int]) -> list[int]:
    """As one number each, of which only the order means anything."""
    pairs = [(view.costs[node], fine) for node, fine in zip(nodes, view.fine(nodes), strict=True)]
    ranks = {pair: rank for rank, pair in enumerate(sorted(set(pairs)))}
    return [ranks[pair] for pair in pairs]
