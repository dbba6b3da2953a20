"""One pod after another to the node that kube-scheduler would choose. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpushare.identity import NodeName
from gpushare.model.ledger import Allocation, Placed
from gpushare.model.request import DEFAULT_POLICY, PodRequest, Policy
from gpushare.placement.columns import Bools, Ints
from gpushare_cli import kube_scores
from gpushare_cli.kube_scores import PER_GRADE, UNASKED, Rules
from gpushare_cli.simulate.affinity import AffinityState
from gpushare_cli.simulate.cluster import Cluster, Nodes
from gpushare_cli.simulate.signature import PodSignature

_ZONE: Final = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:  # kube-scheduler's rules, and how it asks the controller
    policy: Policy = DEFAULT_POLICY  # of pods that name none
    rules: Rules
    weight: int = 1  # of the controller's grades. With 0 nodes are not ranked.
    others_weight: int = 0  # for pods without GPUs


@dataclass(frozen=True, slots=True)
class Bound:
    pod: PodSignature
    node: int
    allocation: Allocation | None


class Scheduler:
    """A cluster's kube-scheduler, with the controller as its extender."""

    def __init__(self, nodes: Nodes, cluster: Cluster, config: SchedulerConfig, draw: Callable[[int], int]) -> None:
        """`draw` gives a number below the given one, for equal scores."""
        self.hosts, self.used = nodes.hosts, nodes.used.copy()
        self.cluster, self._config, self._draw = cluster, config, draw
        there = nodes.affinities
        self._affinity = None if there is None else AffinityState(nodes.labels, there, config.rules)
        self._points = kube_scores.resources(config.rules)
        zones: dict[str | None, int] = {None: 0}
        of_nodes = [zones.setdefault(labels.get(_ZONE), len(zones)) for labels in nodes.labels]
        self._zones = np.array(of_nodes, np.int64)
        self._replicas = {of: dict(counts) for of, counts in nodes.replicas.items()}
        self.changes = 0  # how often a pod has come to a node or left one

    def place(self, pod: PodSignature, request: PodRequest | None, *, only: NodeName | None = None) -> Bound | None:
        """Bind a pod that has come, if only one node comes into question to that one; None if no node takes it."""
        self.cluster.came(pod)
        node = self.choose(pod) if only is None else self.cluster.places.get(only)
        return None if node is None or (only and not self.fits(pod, node)) else self.bind(pod, node, request)

    def fits(self, pod: PodSignature, node: int) -> bool:
        """Whether a node takes a pod. It is asked often, of pods that wait for one that has ended."""
        ask, gpus = pod.ask, self.cluster.room(node).gpus
        if pod.is_plain and sum(map(ask.fits, gpus)) < ask.gpus:
            return False
        takes = self._admits(pod)[node] and self.is_welcome(pod, node)
        return bool(takes) and isinstance(self.cluster.verdict(pod, node), Placed)

    def _admits(self, pod: PodSignature) -> Bools:
        found = pod.load.fits(self.used, self.hosts) & self.cluster.enough(pod)
        if pod.terms.allowed is not None:
            allowed = np.zeros(len(found), np.bool_)
            allowed[list(pod.terms.allowed)] = True
            found &= allowed
        return found

    def is_welcome(self, pod: PodSignature, node: int) -> bool:
        return self._affinity is None or pod.affinity is None or self._affinity.admits(pod.affinity)(node)

    def bind(self, pod: PodSignature, node: int, request: PodRequest | None) -> Bound:
        bound = Bound(pod, node, self.cluster.take(pod, node, request))
        self._count(pod, node, 1)
        return bound

    def leave(self, bound: Bound) -> None:
        self.cluster.give(bound.pod, bound.node, bound.allocation)
        self._count(bound.pod, bound.node, -1)

    def _count(self, pod: PodSignature, node: int, change: int) -> None:
        self.changes += 1
        self.used[:, node] += change * np.array(pod.load)
        if self._affinity is not None and pod.affinity is not None:
            self._affinity.add(pod.affinity, node, change)
        if pod.replicas_of is not None:
            counts = self._replicas.setdefault(pod.replicas_of, {})
            counts[node] = counts.get(node, 0) + change

    def choose(self, pod: PodSignature) -> int | None:
        column = self.cluster.column(pod, self._admits(pod))
        fitting = np.flatnonzero(column.fits)
        if self._affinity is not None and pod.affinity is not None:
            admitted = self._affinity.admits(pod.affinity)
            fitting = fitting[[admitted(node) for node in fitting.tolist()]]
        if len(fitting) < 2:
            return int(fitting[0]) if len(fitting) else None
        weight = PER_GRADE * (self._config.weight if pod.ask.gpus else self._config.others_weight)
        others = list(self._of_other_plugins(pod, fitting))
        if pod.ask.gpus and not others and kube_scores.LEAD * weight > kube_scores.MOST_OF_RESOURCES:
            return column.best(fitting)  # whatever the others' grades are
        total = self._points(pod.load, self.used[:, fitting], self.hosts[:, fitting])
        for points, times in others:
            total += times * np.array(points)
        if weight:
            total += weight * column.grades(fitting).astype(np.int64)
        equal = fitting[total == total.max()]
        return int(equal[self._draw(len(equal))] if len(equal) > 1 else equal[0])

    def _of_other_plugins(self, pod: PodSignature, nodes: Ints) -> Iterable[tuple[Ints | list[int], int]]:
        """What plugins think of the nodes that fit, but for CPU and memory, and the weight of each."""
        rules, terms, fitting = self._config.rules, pod.terms, nodes.tolist()
        if terms.repelled:
            yield kube_scores.normalized(terms.repelled, fitting), -rules.weight("TaintToleration")
        if terms.attracted:
            yield kube_scores.normalized(terms.attracted, fitting), rules.weight("NodeAffinity")
        if pod.replicas_of is not None:
            counts = self._replicas.get(pod.replicas_of, {})
            yield kube_scores.spread(rules, counts, self._zones, nodes), UNASKED["PodTopologySpread"]
        if self._affinity is not None and pod.affinity is not None:
            yield self._affinity.points(pod.affinity, fitting), rules.weight("InterPodAffinity")
            yield self._affinity.spread(pod.affinity, fitting), UNASKED["PodTopologySpread"]
