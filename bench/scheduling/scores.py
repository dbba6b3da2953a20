"""What kube-scheduler's default plugins give a node, 0 to 100 each. Pure.

Formulas of Kubernetes' pkg/scheduler/framework/plugins, noderesources and podtopologyspread; integers are cut as there.
Plugins that give all nodes of a trace the same (images, taints, affinities) are left out. `gpushare_cli.kube_scores`
has the same formulas: what simulate says is compared with what was scored here, so each was written without the other.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.model.capacity import FreeHost

MOST = 100
SPREAD_WEIGHT = 2  # of PodTopologySpread; all others here have 1
_SKEW = 3  # of the system's default constraint on hosts
_DEFAULT = FreeHost(100, 200)  # milli CPU and MiB that count for what a pod does not request

Formula = Callable[[FreeHost, FreeHost, FreeHost], int]
"""Requested of the node before the pod and with it, and what it has: a score."""


def counted(pod: FreeHost) -> FreeHost:
    """What a pod's request counts as."""
    return FreeHost(pod.cpu_milli or _DEFAULT.cpu_milli, pod.memory_mib or _DEFAULT.memory_mib)


def least_allocated(_: FreeHost, requested: FreeHost, has: FreeHost) -> int:
    return (
        sum((most - each) * MOST // most if each <= most else 0 for each, most in zip(requested, has, strict=True)) // 2
    )


def most_allocated(_: FreeHost, requested: FreeHost, has: FreeHost) -> int:
    return sum(min(each, most) * MOST // most for each, most in zip(requested, has, strict=True)) // 2


def balanced(_: FreeHost, requested: FreeHost, has: FreeHost) -> int:
    """BalancedAllocation up to Kubernetes 1.35."""
    cpu, memory = (min(1.0, each / most) for each, most in zip(requested, has, strict=True))
    return int((1 - abs(cpu - memory) / 2) * MOST)


def more_balanced(before: FreeHost, requested: FreeHost, has: FreeHost) -> int:
    """BalancedAllocation since Kubernetes 1.36: by how much the pod changes the balance."""
    return MOST // 2 + (MOST // 2 + balanced(before, requested, has) - balanced(before, before, has)) // 2


@dataclass
class _Known:
    """Scores of all nodes for one kind of pod, as of some moment."""

    seen: int
    scores: list[int]


class ResourceScores:
    """The sum of some formulas for every node; only nodes that have changed are computed again."""

    def __init__(self, has: Sequence[FreeHost], formulas: Sequence[Formula]) -> None:
        self._has = has
        self._formulas = formulas
        self._requested = [FreeHost(0, 0)] * len(has)
        self._changed: list[int] = []
        self._known: dict[FreeHost, _Known] = {}

    def add(self, node: int, pod: FreeHost, sign: int = 1) -> None:
        """A pod comes to a node; with sign -1 it goes."""
        before, asked = self._requested[node], counted(pod)
        self._requested[node] = FreeHost(
            before.cpu_milli + sign * asked.cpu_milli, before.memory_mib + sign * asked.memory_mib
        )
        self._changed.append(node)

    def of(self, pod: FreeHost) -> Sequence[int]:
        """By node."""
        asked = counted(pod)
        known = self._known.get(asked)
        if known is None:
            scores = [self._score(node, asked) for node in range(len(self._has))]
            known = self._known[asked] = _Known(len(self._changed), scores)
        for node in set(self._changed[known.seen :]):
            known.scores[node] = self._score(node, asked)
        known.seen = len(self._changed)
        return known.scores

    def _score(self, node: int, asked: FreeHost) -> int:
        before, has = self._requested[node], self._has[node]
        requested = FreeHost(before.cpu_milli + asked.cpu_milli, before.memory_mib + asked.memory_mib)
        return sum(formula(before, requested, has) for formula in self._formulas)


@dataclass
class Spread:
    """PodTopologySpread with the system's default constraints, in a cluster without zones."""

    pods: dict[object, dict[int, int]] = field(default_factory=dict)
    """Of each owner: how many pods on which node."""

    def add(self, owner: object, node: int, sign: int = 1) -> None:
        counts = self.pods.setdefault(owner, {})
        counts[node] = counts.get(node, 0) + sign

    def of(self, owner: object, nodes: Sequence[int]) -> Sequence[int]:
        """For the nodes on which the pod fits."""
        return spread(self.pods.get(owner, {}), nodes)


def spread(pods: Mapping[int, int], nodes: Sequence[int]) -> Sequence[int]:
    """100 for the nodes that have the fewest of the pods, less for others.

    Args:
        pods: how many of the same owner are on which node.
        nodes: on which the pod fits.
    """
    each = math.log(len(nodes) + 2)
    raw = [math.floor(pods.get(node, 0) * each + _SKEW - 1 + 0.5) for node in nodes]
    high, low = max(raw), min(raw)
    return [MOST * (high + low - one) // high for one in raw]
