"""One pod after another to the node that kube-scheduler would choose. Pure, but for what it remembers.

What nodes are worth is kept from pod to pod, and only nodes that have changed since are looked at again: a pod costs
about as much as its signature is frequent. What kube-scheduler thinks of CPU and memory is computed only where it
decides.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.identity import NodeName
from gpushare.model.allocation import Allocation
from gpushare.model.request import DEFAULT_POLICY, PodRequest, Policy
from gpushare.placement import grade
from gpushare_cli import kube_scores
from gpushare_cli.kube_scores import PER_GRADE, UNASKED, Rules
from gpushare_cli.simulate.affinity import AffinityState
from gpushare_cli.simulate.cluster import Cluster, Nodes
from gpushare_cli.simulate.signature import PodSignature

_ZONE: Final = "topology.kubernetes.io/zone"
_MOST_KEPT: Final = 20_000_000
"""Of nodes times signatures; some 500 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How pods are placed: kube-scheduler's rules, and how it asks the controller."""

    policy: Policy = DEFAULT_POLICY
    """Of pods that name none."""
    rules: Rules
    weight: int = 1
    """Of the controller's grades. With 0 nodes are not ranked."""
    others_weight: int = 0
    """For pods without GPUs."""


@dataclass(frozen=True, slots=True)
class Bound:
    pod: PodSignature
    node: int
    allocation: Allocation | None


class Scheduler:
    """A cluster's kube-scheduler, with the controller as its extender."""

    def __init__(
        self,
        nodes: Nodes,
        cluster: Cluster,
        config: SchedulerConfig,
        draw: Callable[[int], int],
    ) -> None:
        """A cluster as it is.

        Args:
            nodes: all.
            cluster: the GPUs of the same nodes.
            config: how pods are placed.
            draw: a number below the given one, for nodes with equal scores.
        """
        self.hosts, self.used = nodes.hosts, list(nodes.used)
        self.cluster, self._config, self._draw = cluster, config, draw
        self._affinity = None
        if nodes.affinities is not None:
            self._affinity = AffinityState(nodes.labels, nodes.affinities, config.rules)
        self.points = kube_scores.resources(config.rules)
        self._zones = [labels.get(_ZONE) for labels in nodes.labels]
        self._replicas = {of: dict(counts) for of, counts in nodes.replicas.items()}
        self.changed: list[int] = []
        """The nodes to which a pod has come or that one has left, in this order."""
        self._views: OrderedDict[PodSignature, _View] = OrderedDict()
        self._most_views = max(_MOST_KEPT // max(len(self.hosts), 1), 16)

    def place(self, pod: PodSignature, request: PodRequest | None, *, only: NodeName | None = None) -> Bound | None:
        """Bind a pod that has come, if only one node comes into question to that one; None if no node takes it."""
        self.cluster.came(pod)
        node = self.choose(pod) if only is None else self.cluster.places.get(only)
        return None if node is None or (only and not self.fits(pod, node)) else self.bind(pod, node, request)

    def fits(self, pod: PodSignature, node: int) -> bool:
        return self.admits(pod, node) and self.is_welcome(pod, node) and bool(self.cluster.costs(pod, [node]))

    def admits(self, pod: PodSignature, node: int) -> bool:
        """Whether a node is one for a pod, and has CPU and memory for it."""
        allowed = pod.terms.allowed
        return (allowed is None or node in allowed) and pod.load.fits(self.used[node], self.hosts[node])

    def is_welcome(self, pod: PodSignature, node: int) -> bool:
        """Whether no pod affinity keeps a pod away from a node."""
        return self._affinity is None or pod.affinity is None or self._affinity.admits(pod.affinity)(node)

    def bind(self, pod: PodSignature, node: int, request: PodRequest | None) -> Bound:
        bound = Bound(pod, node, self.cluster.take(pod, node, request))
        self.used[node] = self.used[node].plus(pod.load)
        self._count(pod, node, 1)
        return bound

    def leave(self, bound: Bound) -> None:
        self.cluster.give(bound.pod, bound.node, bound.allocation)
        self.used[bound.node] = self.used[bound.node].minus(bound.pod.load)
        self._count(bound.pod, bound.node, -1)

    def _count(self, pod: PodSignature, node: int, change: int) -> None:
        self.changed.append(node)
        if self._affinity is not None and pod.affinity is not None:
            self._affinity.add(pod.affinity, node, change)
        if pod.replicas_of is not None:
            counts = self._replicas.setdefault(pod.replicas_of, {})
            counts[node] = counts.get(node, 0) + change

    def choose(self, pod: PodSignature) -> int | None:
        """The node for a pod as things are; None if no node takes it."""
        view = self._view(pod)
        weight = PER_GRADE * (self._config.weight if pod.ask.gpus else self._config.others_weight)
        lead = kube_scores.LEAD * weight
        by_host = not pod.terms.repelled and not pod.terms.attracted and pod.replicas_of is None
        best = view.best() if weight and by_host and pod.affinity is None else None
        if best is not None and lead > kube_scores.MOST_OF_RESOURCES:
            return best
        fitting = view.fitting()
        if self._affinity is not None and pod.affinity is not None:
            fitting = list(filter(self._affinity.admits(pod.affinity), fitting))
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        total = view.points(fitting)
        if best is not None and total[fitting.index(best)] + lead > max(total):  # whatever the others' grades are
            return best
        for points, times in self._of_other_plugins(pod, fitting):
            total = [one + times * other for one, other in zip(total, points, strict=True)]
        if weight:
            given = grade.grades([self.cluster.names[node] for node in fitting], view.ranks(fitting))
            total = [one + weight * other for one, other in zip(total, given, strict=True)]
        most = max(total)
        equal = [node for node, points in zip(fitting, total, strict=True) if points == most]
        return equal[self._draw(len(equal))] if len(equal) > 1 else equal[0]

    def _of_other_plugins(self, pod: PodSignature, fitting: Sequence[int]) -> Iterable[tuple[list[int], int]]:
        """What plugins think of the nodes that fit, but for CPU and memory, and the weight of each."""
        rules, terms = self._config.rules, pod.terms
        if terms.repelled:
            yield kube_scores.normalized(terms.repelled, fitting), -rules.weight("TaintToleration")
        if terms.attracted:
            yield kube_scores.normalized(terms.attracted, fitting), rules.weight("NodeAffinity")
        if pod.replicas_of is not None:
            counts = self._replicas.get(pod.replicas_of, {})
            yield kube_scores.spread(rules, counts, self._zones, fitting), UNASKED["PodTopologySpread"]
        if self._affinity is not None and pod.affinity is not None:
            yield self._affinity.points(pod.affinity, fitting), rules.weight("InterPodAffinity")
            yield self._affinity.spread(pod.affinity, fitting), UNASKED["PodTopologySpread"]

    def _view(self, pod: PodSignature) -> "_View":
        """As nodes are now. Those of the signatures that came last are kept."""
        view = self._views.get(pod)
        if view is None or view.costs_epoch != self.cluster.costs_epoch:
            view = self._views[pod] = _View(pod, self)
            if len(self._views) > self._most_views:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(pod)
            view.refresh()
        return view


class _View:
    """What nodes are worth to pods of one signature."""

    def __init__(self, pod: PodSignature, scheduler: Scheduler) -> None:
        self._pod, self._all = pod, scheduler
        self.costs_epoch, self._ties_epoch = scheduler.cluster.costs_epoch, scheduler.cluster.ties_epoch
        self._seen = len(scheduler.changed)
        number, allowed = len(scheduler.hosts), pod.terms.allowed
        self._costs: list[float] = [math.inf] * number
        """Infinite where the pod does not fit."""
        self._points: list[int | None] = [None] * number
        self._ties: dict[int, int] = {}
        self._look(range(number) if allowed is None else allowed)

    def refresh(self) -> None:
        changed = self._all.changed
        self._look(set(changed[self._seen :]))
        self._seen = len(changed)

    def _look(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self._costs[node], self._points[node] = math.inf, None
            self._ties.pop(node, None)
        able = [node for node in nodes if self._all.admits(self._pod, node)]
        for node, cost in self._all.cluster.costs(self._pod, able).items():
            self._costs[node] = cost

    def fitting(self) -> list[int]:
        return [node for node, cost in enumerate(self._costs) if cost != math.inf]

    def best(self) -> int | None:
        """The node that costs least, the first of those that are exactly equal; None if the pod fits nowhere."""
        least = min(self._costs, default=math.inf)
        if least == math.inf:
            return None
        equal = [node for node, cost in enumerate(self._costs) if cost == least]
        return equal[0] if len(equal) == 1 else min(zip(self._tie_breakers(equal), equal, strict=True))[1]

    def ranks(self, nodes: Sequence[int]) -> list[int]:
        """What nodes cost where the pod fits, as numbers of which only the order means anything."""
        pairs = [(self._costs[node], tie) for node, tie in zip(nodes, self._tie_breakers(nodes), strict=True)]
        ranks = {pair: rank for rank, pair in enumerate(sorted(set(pairs)))}
        return [ranks[pair] for pair in pairs]

    def _tie_breakers(self, nodes: Sequence[int]) -> list[int]:
        """What tells nodes apart that cost the same, and where the pod fits."""
        cluster, known = self._all.cluster, self._ties
        if self._ties_epoch != cluster.ties_epoch:
            self._ties_epoch = cluster.ties_epoch
            known.clear()
        if missing := [node for node in nodes if node not in known]:
            known.update(zip(missing, cluster.tie_breakers(self._pod, missing), strict=True))
        return [known[node] for node in nodes]

    def points(self, nodes: Sequence[int]) -> list[int]:
        """Of kube-scheduler for CPU and memory of nodes where the pod fits."""
        load, every, known = self._pod.load, self._all, self._points
        found = []
        for node in nodes:
            points = known[node]
            if points is None:
                points = known[node] = every.points(load, every.used[node], every.hosts[node])
            found.append(points)
        return found
