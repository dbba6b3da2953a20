"""Which labels the pods of each namespace have that hold GPUs or are about to. Not thread-safe, as all of the index.

Pods of one workload mostly have the same labels, and a selector mostly says what one label must be. So the question
whether anybody is meant looks at a few sets of labels, however many pods there are.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from gpushare.model.selector import LabelSelector, Operator

Labels = Mapping[str, str]
Counts = dict[str, dict["_Set", int]]
_Set = frozenset[tuple[str, str]]
_NONE: Final[frozenset[_Set]] = frozenset()


class _Namespace:
    """Sets of labels, each with the number of its pods."""

    def __init__(self) -> None:
        self.pods: dict[_Set, int] = {}
        self._having: dict[tuple[str, ...], set[_Set]] = {}
        """By each label, and by each label's key alone."""

    def add(self, labels: _Set) -> None:
        self.pods[labels] = self.pods.get(labels, 0) + 1
        if self.pods[labels] == 1:
            for mark in _marks(labels):
                self._having.setdefault(mark, set()).add(labels)

    def remove(self, labels: _Set) -> None:
        self.pods[labels] -= 1
        if self.pods[labels]:
            return
        del self.pods[labels]
        for mark in _marks(labels):
            self._having[mark].discard(labels)
            if not self._having[mark]:
                del self._having[mark]

    def like(self, selector: LabelSelector, besides: Mapping[_Set, int]) -> Iterator[Labels]:
        """All sets that are meant, and some others; none that only so many pods have as are not to be counted."""
        fewest: Sequence[Collection[_Set]] = [self.pods]
        for requirement in selector.requirements:
            match requirement.operator:
                case Operator.IN:
                    marks: list[tuple[str, ...]] = [(requirement.key, value) for value in requirement.values]
                case Operator.EXISTS:
                    marks = [(requirement.key,)]
                case _:
                    continue
            having = [self._having.get(mark, _NONE) for mark in marks]
            fewest = min(fewest, having, key=lambda sets: sum(map(len, sets)))
        return (dict(labels) for labels in chain.from_iterable(fewest) if self.pods[labels] > besides.get(labels, 0))


class LabelIndex:
    """All namespaces."""

    def __init__(self, pods: Iterable[tuple[str, Labels]] = ()) -> None:
        """So many pods, each by its namespace and its labels."""
        self._namespaces: dict[str, _Namespace] = {}
        for namespace, labels in pods:
            self.add(namespace, labels)

    def add(self, namespace: str, labels: Labels) -> None:
        """One more pod holds GPUs."""
        self._namespaces.setdefault(namespace, _Namespace()).add(_set(labels))

    def remove(self, namespace: str, labels: Labels) -> None:
        """One that was added does not any more."""
        known = self._namespaces[namespace]
        known.remove(_set(labels))
        if not known.pods:
            del self._namespaces[namespace]

    def like(self, namespace: str, selector: LabelSelector, besides: Iterable[Labels] = ()) -> Iterator[Labels]:
        """The labels of all pods that a selector means, and of some others; each set once. Not to be kept.

        What is given as `besides` was added, but is not to be counted, as often as it is given.
        """
        known = self._namespaces.get(namespace)
        return iter(()) if known is None else known.like(selector, Counter(map(_set, besides)))

    def counts(self) -> Counts:
        """How many pods of each namespace have which labels. A copy."""
        return {namespace: dict(known.pods) for namespace, known in self._namespaces.items()}


def _marks(labels: _Set) -> Iterator[tuple[str, ...]]:
    for label in labels:
        yield label
        yield label[:1]


def _set(labels: Labels) -> _Set:
    return frozenset((key, str(value)) for key, value in labels.items())
