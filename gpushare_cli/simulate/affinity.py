"""Affinity, anti-affinity and topology spread: what pods say of each other, and which nodes suit them. Pure."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpushare.cluster import budgets
from gpushare.model.request import LabelSelector
from gpushare.placement.columns import Ints
from gpushare.wire import fields
from gpushare_cli import kube_scores, schedulable
from gpushare_cli.kube_scores import Rules
from gpushare_cli.schedulable import NodeFacts

Object = Mapping[str, Any]
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_CONSTRAINTS: Final = "topologySpreadConstraints"
_HARD_WEIGHT: Final = 1  # of a required affinity of pods that are there, for the scores of nodes


@dataclass(frozen=True, slots=True)
class Term:  # pods, and how near: on nodes with the same value of a label
    topology: str
    namespaces: tuple[str, ...] | None  # None for all
    selector: LabelSelector | None  # None if no pod is meant
    weight: int = 0  # of a preference; negative for pods that are avoided


@dataclass(frozen=True, slots=True)
class Constraint:  # how evenly pods that are meant are spread over the values of a label
    pods: Term
    max_skew: int
    required: bool
    min_domains: int = 0


@dataclass(frozen=True, slots=True)
class PodAffinity:  # what a pod says of others, and they may say of it
    namespace: str
    labels: tuple[tuple[str, str], ...]
    required: tuple[Term, ...] = ()
    anti: tuple[Term, ...] = ()  # required anti-affinity
    preferred: tuple[Term, ...] = ()  # both ways
    spread: tuple[Constraint, ...] = ()
    eligible: frozenset[int] | None = None  # with constraints: nodes that its selector and affinity mean; None for all


def is_said(pod: Object) -> bool:
    spec = fields.mapping(pod, "spec", "pod")
    affinity = fields.mapping(spec, "affinity", "spec")
    return bool(affinity.get("podAffinity") or affinity.get("podAntiAffinity") or spec.get(_CONSTRAINTS))


def read(pod: Object, nodes: Sequence[NodeFacts]) -> PodAffinity:
    metadata, spec = fields.mapping(pod, "metadata", "pod"), fields.mapping(pod, "spec", "pod")
    namespace = fields.text(metadata, "namespace", "metadata")
    affinity = fields.mapping(spec, "affinity", "spec")
    near, apart = (fields.mapping(affinity, key, "spec.affinity") for key in ("podAffinity", "podAntiAffinity"))
    spread = tuple(_constraint(each, namespace) for each in fields.objects(spec, _CONSTRAINTS, "spec"))
    meant = frozenset(i for i, node in enumerate(nodes) if spread and not any(schedulable.unselected(pod, node)))
    return PodAffinity(
        namespace=namespace,
        labels=tuple(sorted(fields.mapping(metadata, "labels", "metadata").items())),
        required=tuple(_term(term, namespace) for term in fields.objects(near, _REQUIRED, "podAffinity")),
        anti=tuple(_term(term, namespace) for term in fields.objects(apart, _REQUIRED, "podAntiAffinity")),
        preferred=(*_weighted(near, namespace, 1), *_weighted(apart, namespace, -1)),
        spread=spread,
        eligible=None if len(meant) == len(nodes) or not spread else meant,
    )


def _constraint(said: Object, namespace: str) -> Constraint:
    return Constraint(
        pods=Term(fields.text(said, "topologyKey", _CONSTRAINTS), (namespace,), _selector(said)),
        max_skew=max(fields.integer(said, "maxSkew", _CONSTRAINTS, default=1), 1),
        required=fields.text(said, "whenUnsatisfiable", _CONSTRAINTS) != "ScheduleAnyway",
        min_domains=fields.integer(said, "minDomains", _CONSTRAINTS, default=0),
    )


def _weighted(affinity: Object, namespace: str, sign: int) -> Iterator[Term]:
    for each in fields.objects(affinity, _PREFERRED, "spec.affinity"):
        weight = fields.integer(each, "weight", _PREFERRED, default=0)
        yield _term(fields.mapping(each, "podAffinityTerm", _PREFERRED), namespace, sign * weight)


def _term(term: Object, namespace: str, weight: int = 0) -> Term:
    wanted = tuple(str(each) for each in fields.strings(term, "namespaces", "podAffinityTerm"))
    namespaces = None if term.get("namespaceSelector") == {} else wanted or (namespace,)
    return Term(fields.text(term, "topologyKey", "podAffinityTerm"), namespaces, _selector(term), weight)


def _selector(said: Object) -> LabelSelector | None:
    if said.get("labelSelector") is None:
        return None
    return budgets.label_selector(fields.mapping(said, "labelSelector", "term"), "labelSelector")


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
