"""Who is where, and which nodes suit a pod for that, as kube-scheduler has it. Pure, but for what it remembers."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpushare.simulation import scores
from gpushare.simulation.scores import Rules
from gpushare_cli.simulate.company import Company, Constraint, Term, selects

_HARD_WEIGHT: Final = 1
"""Of a required affinity of pods that are there, for the scores of nodes."""


class Neighbours:
    """Who is where, as far as pods say anything of each other."""

    def __init__(self, labels: Sequence[Mapping[str, str]], there: Iterable[tuple[Company, int]], rules: Rules) -> None:
        """Labels of the nodes, the pods on them, and how kube-scheduler counts."""
        self._labels, self._rules = labels, rules
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

        even = self._even(pod)

        def admitted(node: int) -> bool:
            labels = self._labels[node]
            if not all(labels.get(key) in values for key, values in even):
                return False
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

    def spread(self, pod: Company, nodes: Sequence[int]) -> list[int]:
        """Of the nodes, 0 to 100, by the constraints that are preferences; all 0 without any."""
        soft = [one for one in pod.spread if not one.required]
        if not soft:
            return [0] * len(nodes)
        whole = [node for node in nodes if all(one.topology in self._labels[node] for one in soft)]
        parts = []
        for one in soft:
            counts = self._counts(pod, one, pod.eligible)
            weight = math.log(len({self._labels[node][one.topology] for node in whole}) + 2)
            parts.append((one.topology, {value: count * weight + one.max_skew - 1 for value, count in counts.items()}))
        found: list[float | None] = [None] * len(nodes)
        known = set(whole)
        for i, node in enumerate(nodes):
            if node in known:
                found[i] = sum(points[self._labels[node][key]] for key, points in parts)
        return scores.evened(self._rules, found)

    def _even(self, pod: Company) -> list[tuple[str, set[str]]]:
        """For every required constraint, where one pod more leaves the skew small enough."""
        hard = [one for one in pod.spread if one.required]
        eligible = [
            node
            for node in (range(len(self._labels)) if pod.eligible is None else pod.eligible)
            if all(one.topology in self._labels[node] for one in hard)
        ]
        found = []
        for one in hard:
            counts = self._counts(pod, one, eligible)
            least = min(counts.values(), default=0) if len(counts) >= one.min_domains else 0
            itself = selects(one.selector, dict(pod.labels))
            found.append(
                (one.topology, {value for value, count in counts.items() if count + itself - least <= one.max_skew})
            )
        return found

    def _counts(self, pod: Company, constraint: Constraint, nodes: Iterable[int] | None) -> dict[str, int]:
        """How many pods that a constraint means are on these nodes, by the value of its label."""
        meant = Term(constraint.topology, (pod.namespace,), constraint.selector)
        places = range(len(self._labels)) if nodes is None else nodes
        counts = {value: 0 for node in places if (value := self._labels[node].get(constraint.topology)) is not None}
        wanted = set(places)
        for other, there in self._there.items():
            if self._means(meant, other):
                for node, count in there.items():
                    if node in wanted and (value := self._labels[node].get(constraint.topology)) is not None:
                        counts[value] += count
        return counts

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
            self._meant[key] = in_reach and selects(term.selector, dict(pod.labels))
        return self._meant[key]
