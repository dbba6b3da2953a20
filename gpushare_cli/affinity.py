"""Whether a pod that wants to be beside others may begin on its own. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpushare.model.request import PodRequest, RequestShape


def resolve(request: PodRequest, holders: Iterable[Mapping[str, str]]) -> RequestShape:
    """The shape with which placement is asked.

    Args:
        request: the pod.
        holders: labels of the pods in its namespace that hold GPUs, on whatever node.
    """
    shape = request.shape
    affinity = shape.affinity
    if affinity is None or affinity.same is None:
        return shape
    first = affinity.same.matches(request.labels) and not any(map(affinity.same.matches, holders))
    return replace(shape, affinity=replace(affinity, first=first))
