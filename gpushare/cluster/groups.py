"""Whether a pod that wants to be beside others may begin on its own. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gpushare.model.request import RequestShape

Labels = Mapping[str, str]


def resolved(shape: RequestShape, labels: Labels, labels_in: Callable[[str], Iterable[Labels]]) -> RequestShape:
    """What a pod asks for, with what depends on all pods of its namespace: whether it may start its own group.

    `labels_in` gives the labels of the other pods of a namespace that hold GPUs or are about to, on whatever node.
    """
    affinity = shape.affinity
    if affinity is None or affinity.same is None:
        return shape
    first = affinity.same.matches(labels) and not any(map(affinity.same.matches, labels_in(affinity.namespace)))
    return shape if affinity.first is first else replace(shape, affinity=replace(affinity, first=first))
