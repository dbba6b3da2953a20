"""What a policy makes of nodes that are only numbers, as `place` and the table do with the cluster's."""

from collections.abc import Sequence
from typing import NamedTuple

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.placement import costs
from gpushare.placement.costs import Change, Cost
from gpushare.placement.policies import Scoring


def after(node: NodeCapacity, ask: Ask, chosen: Sequence[FreeGpu]) -> NodeCapacity:
    """What is left of a node when a pod gets these of its GPUs."""
    left = list(node.gpus)
    for gpu in chosen:
        left[left.index(gpu)] = gpu.without(ask.need(gpu))
    return NodeCapacity(node.model, tuple(sorted(left)), node.host and node.host.without(ask.host))


class Best(NamedTuple):
    """The best GPUs of a node for a pod."""

    cost: Cost
    gpus: tuple[FreeGpu, ...]


def best(ask: Ask, node: NodeCapacity, policy: Scoring) -> Best | None:
    """What a pod of one container gets of a node; None if GPUs or host have no room for it.

    Whether it accepts the node's model is not looked at.
    """
    fitting = [gpu for gpu in node.gpus if ask.fits(gpu)]
    if (node.host is not None and not ask.host.fits(node.host)) or len(fitting) < ask.gpus:
        return None
    lost = policy.of_gpus([(gpu, ask.need(gpu)) for gpu in fitting])
    gpus = tuple(gpu for _, gpu in sorted(zip(lost, fitting, strict=True))[: ask.gpus])
    return Best(costs.costs_of([Change(node, after(node, ask, gpus))], policy)[0], gpus)
