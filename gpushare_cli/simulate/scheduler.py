"""One pod after another to the node that kube-scheduler would choose. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpushare.identity import NodeName
from gpushare.model.ledger import Allocation, Placed
from gpushare.model.request import DEFAULT_POLICY, PodRequest, Policy
from gpushare.placement.columns import Bools, Ints
from gpushare_cli import kube_scores
from gpushare_cli.kube_scores import PER_GRADE, UNASKED, Rules
from gpushare_cli.simulate.cluster import Cluster, Nodes
from gpushare_cli.simulate.signature import Constraint, PodAffinity, PodSignature, Term

_HARD_WEIGHT: Final = 1  # of a required affinity of pods that are there, for the scores of nodes
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


class AffinityState:
    """Who is where, as far as pods say anything of each other, and which nodes suit a pod for that."""

    def __init__(
        self, labels: Sequence[Mapping[str, str]], there: Iterable[tuple[PodAffinity, int]], rules: Rules
    ) -> None:
        self._labels, self._rules = labels, rules
        self._there: dict[PodAffinity, dict[int, int]] = {}
        self._meant: dict[tuple[Term, PodAffinity], bool] = {}
        for each, node in there:
            self.add(each, node, 1)

    def add(self, pod: PodAffinity, node: int, sign: int) -> None:
        """A pod has come to a node; with sign -1 it has left."""
        counts = self._there.setdefault(pod, {})
        counts[node] = counts.get(node, 0) + sign
        if not counts[node]:
            del counts[node]

    def admits(self, pod: PodAffinity) -> Callable[[int], bool]:
        apart = [
            (term.topology, self._values(term.topology, nodes))
            for other, nodes in self._there.items()
            for terms, meant in ((pod.anti, other), (other.anti, pod))
            for term in terms
            if self._means(term, meant)
        ]
        together = {
            node
            for other, nodes in self._there.items()
            if pod.required and all(self._means(term, other) for term in pod.required)
            for node in nodes
        }
        near = [(term.topology, self._values(term.topology, together)) for term in pod.required]
        first = not any(values for _, values in near) and all(self._means(term, pod) for term in pod.required)
        even = self._even(pod)

        def admitted(node: int) -> bool:
            labels = self._labels[node]
            return (
                all(labels.get(key) in values for key, values in even)
                and all(key in labels and (first or labels[key] in values) for key, values in near)
                and not any(labels.get(key) in values for key, values in apart)
            )

        return admitted

    def points(self, pod: PodAffinity, nodes: Sequence[int]) -> list[int]:
        """Of the nodes, 0 to 100; all 0 where no preference makes a difference."""
        sums: dict[tuple[str, str], int] = {}
        for other, counts in self._there.items():
            said = [(term.topology, term.weight) for term in pod.preferred if self._means(term, other)]
            said += [(term.topology, term.weight) for term in other.preferred if self._means(term, pod)]
            said += [(term.topology, _HARD_WEIGHT) for term in other.required if self._means(term, pod)]
            for key, weight in said:
                for node, count in counts.items():
                    if (value := self._labels[node].get(key)) is not None:
                        sums[key, value] = sums.get((key, value), 0) + weight * count
        labels = [self._labels[node] for node in nodes]
        found = [sum(weight for (key, value), weight in sums.items() if of.get(key) == value) for of in labels]
        low, span = min(found, default=0), max(found, default=0) - min(found, default=0)
        return [int(100 * ((each - low) / span)) if span else 0 for each in found]

    def spread(self, pod: PodAffinity, nodes: Sequence[int]) -> Ints:
        """Of the nodes, 0 to 100, by the constraints that are preferences; all 0 without any."""
        soft = [one for one in pod.spread if not one.required]
        if not soft:
            return np.zeros(len(nodes), np.int64)
        whole = {node for node in nodes if all(one.pods.topology in self._labels[node] for one in soft)}
        parts = []
        for one in soft:
            key = one.pods.topology
            weight = math.log(len({self._labels[node][key] for node in whole}) + 2)
            counts = self._counts(one, pod.eligible)
            parts.append((key, {value: count * weight + one.max_skew - 1 for value, count in counts.items()}))
        found = [
            sum(points[self._labels[node][key]] for key, points in parts) if node in whole else None for node in nodes
        ]
        return kube_scores.evened(self._rules, np.array(found, np.float64))

    def _even(self, pod: PodAffinity) -> list[tuple[str, set[str]]]:
        """For every required constraint, where one pod more leaves the skew small enough."""
        hard = [one for one in pod.spread if one.required]
        places = range(len(self._labels)) if pod.eligible is None else pod.eligible
        eligible = [node for node in places if all(one.pods.topology in self._labels[node] for one in hard)]
        found = []
        for one in hard:
            counts = self._counts(one, eligible)
            least = min(counts.values(), default=0) if len(counts) >= one.min_domains else 0
            most = one.max_skew + least - self._means(one.pods, pod)
            found.append((one.pods.topology, {value for value, count in counts.items() if count <= most}))
        return found

    def _counts(self, constraint: Constraint, nodes: Iterable[int] | None) -> dict[str, int]:
        """How many pods that a constraint means are on these nodes, by the value of its label."""
        key = constraint.pods.topology
        values = {
            node: value
            for node in (range(len(self._labels)) if nodes is None else nodes)
            if (value := self._labels[node].get(key)) is not None
        }
        counts = dict.fromkeys(values.values(), 0)
        for other, there in self._there.items():
            if self._means(constraint.pods, other):
                for node in there.keys() & values.keys():
                    counts[values[node]] += there[node]
        return counts

    def _values(self, topology: str, nodes: Iterable[int]) -> set[str]:
        return {value for node in nodes if (value := self._labels[node].get(topology)) is not None}

    def _means(self, term: Term, pod: PodAffinity) -> bool:
        key = term, pod
        if key not in self._meant:
            in_reach = term.namespaces is None or pod.namespace in term.namespaces
            self._meant[key] = in_reach and term.selector is not None and term.selector.matches(dict(pod.labels))
        return self._meant[key]
