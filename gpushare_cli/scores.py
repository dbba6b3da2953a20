"""Points that kube-scheduler's own plugins give to nodes, and the weight that an extender needs against them. Pure.

Source: the default plugins and prioritizeNodes of kube-scheduler 1.16 to 1.36. Every plugin gives 0 to 100, times its
weight; an extender gives 0 to 10, times ten, times its weight. The highest sum wins, and chance decides among equals.
"""

from collections.abc import Mapping
from typing import Any, Final

from gpushare.placement import grade

_POINTS: Final = 100
_POINTS_OF_EXTENDER: Final = 10
LEAD: Final = grade.BEST - grade.NEXT
"""Of the controller's best node before all others."""

UNASKED: Final[Mapping[str, int]] = {
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "PodTopologySpread": 2,
}
"""Weights of the plugins that rank nodes for a pod although no one has asked for it. PodTopologySpread does so for pods
of a Service or with an owner, from 1.20 on. Until 1.22 the first is called NodeResourcesLeastAllocated."""
UNASKED_BY_POLICY_FILE: Final[Mapping[str, int]] = {**UNASKED, "SelectorSpread": 1}
"""The same under a Policy file."""
PREFERENCES: Final[Mapping[str, int]] = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "InterPodAffinity": 2,
    "DynamicResources": 2,
    "VolumeBinding": 1,
}
"""Weights of those that follow what authors and administrators ask for without insisting, as of 1.36. Before 1.23 each
has 1."""

CLIENT_QPS: Final = 50
CLIENT_BURST: Final = 100
"""Requests to the API server, a second and at once, that kube-scheduler allows itself if nothing else is configured."""


def points(weights: Mapping[str, int]) -> int:
    """By how much two nodes can differ."""
    return _POINTS * sum(weights.values())


def needed(weights: Mapping[str, int]) -> int:
    """The least weight of an extender at which its best node wins, whatever these plugins think."""
    return points(weights) // (LEAD * _POINTS_OF_EXTENDER) + 1


def most_allocated(api_version: str) -> dict[str, Any]:
    """The part of a profile by which nodes with less free CPU and memory come first."""
    if api_version == "v1beta1":  # two plugins, of which one is on by default
        off, on = {"name": "NodeResourcesLeastAllocated"}, {"name": "NodeResourcesMostAllocated", "weight": 1}
        return {"plugins": {"score": {"disabled": [off], "enabled": [on]}}}
    resources = [{"name": name, "weight": 1} for name in ("cpu", "memory")]
    strategy = {"type": "MostAllocated", "resources": resources}
    return {"pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}]}


def priorities_most_allocated() -> list[dict[str, Any]]:
    """The defaults of a Policy file, which names all or none, with MostRequested in the place of LeastRequested."""
    weights = {
        "SelectorSpreadPriority": 1,
        "InterPodAffinityPriority": 1,
        "MostRequestedPriority": 1,
        "BalancedResourceAllocation": 1,
        "NodePreferAvoidPodsPriority": 10_000,
        "NodeAffinityPriority": 1,
        "TaintTolerationPriority": 1,
        "ImageLocalityPriority": 1,
        "EvenPodsSpreadPriority": 2,
    }
    return [{"name": name, "weight": weight} for name, weight in weights.items()]
