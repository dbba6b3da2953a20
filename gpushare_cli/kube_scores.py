"""Points that kube-scheduler's plugins give to nodes, and the weight that an extender needs against them. Pure.

Source: the default plugins and prioritizeNodes of kube-scheduler 1.16 to 1.36. Every plugin gives 0 to 100, times its
weight; an extender gives 0 to 10, times ten, times its weight. The highest sum wins, and chance decides among equals.
ImageLocality gives every node the same where all have the same images, so a simulation leaves it out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushare.placement import costs
from gpushare.placement.columns import Bools, Ints

Floats = NDArray[np.float64]  # whole numbers of CPU and memory, which are exact up to 2**53

MOST: Final = 100  # points of one plugin, before its weight
PER_GRADE: Final = MOST // costs.BEST
MOST_OF_RESOURCES: Final = 2 * MOST  # of the two that look at CPU and memory
LEAD: Final = costs.BEST - costs.NEXT  # of the controller's best node before all others

UNASKED: Final[Mapping[str, int]] = {  # weights of plugins that rank nodes although no pod has asked for it
    "NodeResourcesFit": 1,  # until 1.22 NodeResourcesLeastAllocated
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "PodTopologySpread": 2,  # of pods of a Service or with an owner, from 1.20 on
}
UNASKED_BY_POLICY_FILE: Final[Mapping[str, int]] = {**UNASKED, "SelectorSpread": 1}  # the same under a Policy file
PREFERENCES: Final[Mapping[str, int]] = {  # of those that follow what is asked for without insisting, as of 1.36
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "InterPodAffinity": 2,
    "DynamicResources": 2,
    "VolumeBinding": 1,
}

CLIENT_QPS: Final = 50  # requests to the API server that kube-scheduler allows itself if nothing is configured
CLIENT_BURST: Final = 100  # of them at once

_HOST_SKEW: Final = 3
_ZONE_SKEW: Final = 5
DEFAULT_CPU_MILLI: Final = 100  # what scores count for a container that requests no CPU
DEFAULT_MEMORY_MIB: Final = 200
_MERGED: Final = 23  # from 1.23 on weights differ, and balance is half the difference of requests, without defaults
_ROUNDED: Final = 24  # from 1.24 on the points of PodTopologySpread are rounded, not cut
_BEST_EFFORT: Final = 34  # from 1.34 on the balance of a pod that requests nothing does not matter
_CHANGE: Final = 36  # from 1.36 on the change of the balance counts, not what it is then


def points(weights: Mapping[str, int]) -> int:
    """By how much two nodes can differ."""
    return MOST * sum(weights.values())


def needed(weights: Mapping[str, int]) -> int:
    """The least weight of an extender at which its best node wins, whatever these plugins think."""
    return points(weights) // (LEAD * PER_GRADE) + 1


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


class Fit(Enum):  # how NodeResourcesFit ranks nodes
    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"


class Load(NamedTuple):  # what a pod takes of a node, or all pods on it do
    cpu_milli: int = 0
    memory_mib: int = 0
    scored_cpu_milli: int = 0  # for scores, with a default for containers that request none; as the next
    scored_memory_mib: int = 0
    pods: int = 1

    def fits(self, used: Floats, hosts: Floats) -> Bools:
        """Which nodes have room for it beside what is used. What a pod does not request is not looked at."""
        found: Bools = used[4] + self.pods <= hosts[2]
        if self.cpu_milli:
            found &= used[0] + self.cpu_milli <= hosts[0]
        if self.memory_mib:
            found &= used[1] + self.memory_mib <= hosts[1]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:  # of one kube-scheduler
    minor: int = _CHANGE  # of its version 1.x
    fit: Fit = Fit.LEAST_ALLOCATED

    def weight(self, plugin: str) -> int:
        return PREFERENCES[plugin] if self.minor >= _MERGED else 1  # before 1.23 each has 1


def resources(rules: Rules) -> Callable[[Load, Floats, Floats], Floats]:
    """Points for CPU and memory, 0 to MOST_OF_RESOURCES.

    Of a pod's load, those of all pods on nodes, `[field of Load, node]`, and what nodes have, `[CPU or memory, node]`.
    """
    share = _least if rules.fit is Fit.LEAST_ALLOCATED else _most
    balance = _changed if rules.minor >= _CHANGE else _balanced if rules.minor >= _MERGED else _balanced_at_first
    skips = rules.minor >= _BEST_EFFORT

    def points(pod: Load, used: Floats, hosts: Floats) -> Floats:
        cpu = share(used[2] + pod.scored_cpu_milli, hosts[0])
        memory = share(used[3] + pod.scored_memory_mib, hosts[1])
        half: Floats = (cpu + memory) // 2
        return half if skips and not pod.cpu_milli and not pod.memory_mib else half + balance(pod, used, hosts)

    return points


def _least(requested: Floats, has: Floats) -> Floats:
    return np.where((requested > has) | (has == 0), 0, (has - requested) * MOST // np.maximum(has, 1))


def _most(requested: Floats, has: Floats) -> Floats:
    return np.minimum(requested, has) * MOST // np.maximum(has, 1)


def _changed(pod: Load, used: Floats, hosts: Floats) -> Floats:
    change = _balanced(pod, used, hosts) - _even(used[0], used[1], hosts)
    found: Floats = MOST // 2 + (MOST // 2 + change) // 2
    return found


def _balanced(pod: Load, used: Floats, hosts: Floats) -> Floats:
    return _even(used[0] + pod.cpu_milli, used[1] + pod.memory_mib, hosts)


def _even(cpu_milli: Floats, memory_mib: Floats, hosts: Floats) -> Floats:
    cpu, memory = (
        np.minimum(of / np.maximum(has, 1), 1) for of, has in zip((cpu_milli, memory_mib), hosts, strict=False)
    )
    return np.where((hosts[0] == 0) | (hosts[1] == 0), MOST, np.floor((1 - np.abs(cpu - memory) / 2) * MOST))


def _balanced_at_first(pod: Load, used: Floats, hosts: Floats) -> Floats:
    cpu, memory = used[2] + pod.scored_cpu_milli, used[3] + pod.scored_memory_mib
    apart = np.abs(cpu / np.maximum(hosts[0], 1) - memory / np.maximum(hosts[1], 1))
    return np.where((cpu >= hosts[0]) | (memory >= hosts[1]), 0, np.floor((1 - apart) * MOST))


def spread(rules: Rules, counts: Mapping[int, int], zones: Ints, fitting: Ints) -> Ints:
    """PodTopologySpread's points of the fitting nodes by its system defaults.

    Counts are the pod's replicas on a node, where there are any; zones those of every node by number, 0 without the
    label.
    """
    here = np.zeros(len(zones))
    here[list(counts)] = list(counts.values())
    own_zones = zones[fitting]
    host_weight, zone_weight = math.log(len(fitting) + 2), math.log(len(np.unique(own_zones)) + 2)
    points = here[fitting] * host_weight + _HOST_SKEW - 1
    if own_zones.any():
        in_zone = np.bincount(zones, here)[own_zones]
        points += np.where(own_zones > 0, in_zone * zone_weight + _ZONE_SKEW - 1, 0)
    return evened(rules, points)


def evened(rules: Rules, found: Floats) -> Ints:
    """PodTopologySpread's points: the most for nodes with the fewest replicas around, 0 for those without a number."""
    counted = ~np.isnan(found)
    half = 0.5 if rules.minor >= _ROUNDED else 0.0
    cut = np.floor(np.where(counted, found, 0) + half).astype(np.int64)
    if not counted.any():
        return np.zeros(len(cut), np.int64)
    high, low = int(cut[counted].max()), int(cut[counted].min())
    points = MOST * (high + low - cut) // high if high else np.full(len(cut), MOST)
    return np.where(counted, points, 0)


def normalized(counts: Mapping[int, int], nodes: Sequence[int]) -> list[int]:
    """Points of nodes in proportion to the largest of their counts; none where all are 0."""
    found = [counts.get(node, 0) for node in nodes]
    high = max(found, default=0)
    return [MOST * count // high if high else 0 for count in found]
