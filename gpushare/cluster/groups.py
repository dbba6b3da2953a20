"""Which pods that hold GPUs have which labels, and whether one that wants to be beside others may begin alone. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from gpushare.model.request import LabelSelector, Operator, RequestShape

Labels = Mapping[str, str]
LabelSet = frozenset[tuple[str, str]]
Counts = dict[str, dict[LabelSet, int]]
_NONE: Final[frozenset[LabelSet]] = frozenset()


def resolved(shape: RequestShape, labels: Labels, labels_in: Callable[[str], Iterable[Labels]]) -> RequestShape:
    """What a pod asks for, with what depends on all pods of its namespace: whether it may start its own group."""
    # `labels_in` gives the labels of the other pods of a namespace that hold GPUs or are about to, on whatever node.
    affinity = shape.affinity
    if affinity is None or affinity.same is None:
        return shape
    first = affinity.same.matches(labels) and not any(map(affinity.same.matches, labels_in(affinity.namespace)))
    return shape if affinity.first is first else replace(shape, affinity=replace(affinity, first=first))


class LabelIndex:
    """Labels of the pods that hold GPUs or are about to, by namespace. Not thread-safe."""

    # Pods of one workload mostly have the same labels, and a selector mostly says what one label must be: so a question
    # looks at a few sets of labels, however many pods there are.

    def __init__(self, pods: Iterable[tuple[str, Labels]] = ()) -> None:
        self._pods: Counts = {}
        self._having: dict[tuple[str, ...], set[LabelSet]] = {}  # by namespace and label, or a label's key
        for namespace, labels in pods:
            self.add(namespace, labels)

    def add(self, namespace: str, labels: Labels) -> None:
        known, of = self._pods.setdefault(namespace, {}), _set(labels)
        known[of] = known.get(of, 0) + 1
        if known[of] == 1:
            for mark in _marks(namespace, of):
                self._having.setdefault(mark, set()).add(of)

    def remove(self, namespace: str, labels: Labels) -> None:
        known, of = self._pods[namespace], _set(labels)
        known[of] -= 1
        if known[of]:
            return
        del known[of]
        if not known:
            del self._pods[namespace]
        for mark in _marks(namespace, of):
            self._having[mark].discard(of)
            if not self._having[mark]:
                del self._having[mark]

    def like(self, namespace: str, selector: LabelSelector, besides: Iterable[Labels] = ()) -> Iterator[Labels]:
        """The labels of all pods that a selector means, and of some others; each set once. Not to be kept."""
        # `besides` was added, but is not to be counted, as often as it is given.
        known, hidden = self._pods.get(namespace, {}), Counter(map(_set, besides))
        fewest: Sequence[Collection[LabelSet]] = [known]
        for requirement in selector.requirements:
            match requirement.operator:
                case Operator.IN:
                    marks: list[tuple[str, ...]] = [(namespace, requirement.key, of) for of in requirement.values]
                case Operator.EXISTS:
                    marks = [(namespace, requirement.key)]
                case _:
                    continue
            having = [self._having.get(mark, _NONE) for mark in marks]
            fewest = min(fewest, having, key=lambda sets: sum(map(len, sets)))
        return (dict(labels) for labels in chain.from_iterable(fewest) if known[labels] > hidden[labels])

    def counts(self) -> Counts:
        """How many pods of each namespace have which labels. A copy."""
        return {namespace: dict(known) for namespace, known in self._pods.items()}


def _marks(namespace: str, labels: LabelSet) -> Iterator[tuple[str, ...]]:
    for key, value in labels:
        yield namespace, key, value
        yield namespace, key


def _set(labels: Labels) -> LabelSet:
    return frozenset((key, str(value)) for key, value in labels.items())
