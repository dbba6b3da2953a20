"""Pods that want to be near others, or apart: pod affinity and anti-affinity, as kube-scheduler has them. Pure."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.wire import fields
from gpushare_cli import nodefacts

Object = Mapping[str, Any]
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_HARD_WEIGHT: Final = 1
"""Of a required affinity of pods that are there, for the scores of nodes."""


@dataclass(frozen=True, slots=True)
class Term:
    """Pods, and how near: on nodes with the same value of a label."""

    topology: str
    namespaces: tuple[str, ...] | None
    """None for all."""
    selector: str
    """As JSON; empty if no pod is meant."""
    weight: int = 0
    """Of a preference; negative for pods that are avoided."""


@dataclass(frozen=True, slots=True)
class Company:
    """What pod affinity needs to know of a pod."""

    namespace: str
    labels: tuple[tuple[str, str], ...]
    near: tuple[Term, ...] = ()
    """Required."""
    apart: tuple[Term, ...] = ()
    """Required."""
    liked: tuple[Term, ...] = ()
    """Preferred, both ways."""

    @property
    def has_terms(self) -> bool:
        """Whether it says anything of other pods."""
        return bool(self.near or self.apart or self.liked)


def has_terms(pod: Object) -> bool:
    """Whether a pod says anything of other pods.

    Raises:
        WireError: its affinity is none.
    """
    affinity = fields.mapping(fields.mapping(pod, "spec", "pod"), "affinity", "spec")
    return bool(affinity.get("podAffinity") or affinity.get("podAntiAffinity"))


def company(pod: Object) -> Company:
    """What a pod says of others, and they may say of it.

    Raises:
        WireError: its affinity is none.
    """
    metadata, spec = fields.mapping(pod, "metadata", "pod"), fields.mapping(pod, "spec", "pod")
    namespace = fields.text(metadata, "namespace", "metadata")
    affinity = fields.mapping(spec, "affinity", "spec")
    near, apart = (fields.mapping(affinity, key, "spec.affinity") for key in ("podAffinity", "podAntiAffinity"))
    return Company(
        namespace=namespace,
        labels=tuple(sorted(fields.mapping(metadata, "labels", "metadata").items())),
        near=tuple(_term(term, namespace) for term in fields.objects(near, _REQUIRED, "podAffinity")),
        apart=tuple(_term(term, namespace) for term in fields.objects(apart, _REQUIRED, "podAntiAffinity")),
        liked=(*_weighted(near, namespace, 1), *_weighted(apart, namespace, -1)),
    )


def _weighted(affinity: Object, namespace: str, sign: int) -> Iterator[Term]:
    for each in fields.objects(affinity, _PREFERRED, "spec.affinity"):
        weight = fields.integer(each, "weight", _PREFERRED, default=0)
        yield _term(fields.mapping(each, "podAffinityTerm", _PREFERRED), namespace, sign * weight)


def _term(term: Object, namespace: str, weight: int = 0) -> Term:
    selector = term.get("labelSelector")
    wanted = tuple(str(each) for each in fields.strings(term, "namespaces", "podAffinityTerm"))
    every = term.get("namespaceSelector") == {}
    if selector is not None:
        selector = fields.mapping(term, "labelSelector", "podAffinityTerm")
    return Term(
        topology=fields.text(term, "topologyKey", "podAffinityTerm"),
        namespaces=None if every else wanted or (namespace,),
        selector="" if selector is None else json.dumps(selector, sort_keys=True),
        weight=weight,
    )


class Neighbours:
    """Who is where, as far as pods say anything of each other."""

    def __init__(self, labels: Sequence[Mapping[str, str]], there: Iterable[tuple[Company, int]]) -> None:
        """Labels of the nodes, and the pods on them."""
        self._labels = labels
        self._there: dict[Company, dict[int, int]] = {}
        self._meant: dict[tuple[Term, Company], bool] = {}
        for each, node in there:
            self.add(each, node, 1)

    def add(self, pod: Company, node: int, sign: int) -> None:
        """A pod has come to a node; with sign -1 it has left."""
        counts = self._there.setdefault(pod, {})
        counts[node] = counts.get(node, 0) + sign
        if not counts[node]:
            del counts[node]

    def admits(self, pod: Company) -> Callable[[int], bool]:
        """Whether a node may take a pod, as things are."""
        apart = [(term.topology, self._values(term.topology, self._nodes(self._of(term)))) for term in pod.apart]
        apart += [
            (term.topology, self._values(term.topology, nodes))
            for other, nodes in self._there.items()
            for term in other.apart
            if self._means(term, pod)
        ]
        friends = set.intersection(*(self._of(term) for term in pod.near)) if pod.near else set[tuple[Company, int]]()
        near = [(term.topology, self._values(term.topology, self._nodes(friends))) for term in pod.near]
        first = not any(values for _, values in near) and all(self._means(term, pod) for term in pod.near)

        def admitted(node: int) -> bool:
            labels = self._labels[node]
            return all(key in labels and (first or labels[key] in values) for key, values in near) and not any(
                labels.get(key) in values for key, values in apart
            )

        return admitted

    def points(self, pod: Company, nodes: Sequence[int]) -> list[int]:
        """Of the nodes, 0 to 100; all 0 where no preference makes a difference."""
        sums: dict[tuple[str, str], int] = {}
        for other, counts in self._there.items():
            said = [(term.topology, term.weight) for term in pod.liked if self._means(term, other)]
            said += [(term.topology, term.weight) for term in other.liked if self._means(term, pod)]
            said += [(term.topology, _HARD_WEIGHT) for term in other.near if self._means(term, pod)]
            for key, weight in said:
                for node, count in counts.items():
                    if (value := self._labels[node].get(key)) is not None:
                        sums[key, value] = sums.get((key, value), 0) + weight * count
        found = [
            sum(weight for (key, value), weight in sums.items() if self._labels[node].get(key) == value)
            for node in nodes
        ]
        low, span = min(found, default=0), max(found, default=0) - min(found, default=0)
        return [int(100 * ((each - low) / span)) if span else 0 for each in found]

    def _of(self, term: Term) -> set[tuple[Company, int]]:
        return {(other, node) for other, counts in self._there.items() if self._means(term, other) for node in counts}

    def _nodes(self, pods: Iterable[tuple[Company, int]]) -> set[int]:
        return {node for _, node in pods}

    def _values(self, topology: str, nodes: Iterable[int]) -> set[str]:
        return {value for node in nodes if (value := self._labels[node].get(topology)) is not None}

    def _means(self, term: Term, pod: Company) -> bool:
        key = term, pod
        if key not in self._meant:
            in_reach = term.namespaces is None or pod.namespace in term.namespaces
            self._meant[key] = in_reach and _selects(term.selector, dict(pod.labels))
        return self._meant[key]


def _selects(selector: str, labels: Mapping[str, str]) -> bool:
    if not selector:
        return False
    said: Any = json.loads(selector)
    exact = fields.mapping(said, "matchLabels", "labelSelector")
    conditions = fields.objects(said, "matchExpressions", "labelSelector")
    return all(labels.get(key) == value for key, value in exact.items()) and all(
        nodefacts.holds(each, labels, "labelSelector.matchExpressions") for each in conditions
    )
