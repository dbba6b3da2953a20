"""For which waiting pods a node is asked for by a placeholder, and when that ends. Pure."""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from controller.refusals import Refusal
from gpushare.identity import NodeName, PodUid

ASK_AFTER_S: Final = 10.0  # a pod that ends may make room
REPLACE_AFTER_S: Final = 30.0
ATTEMPTS: Final = 3
"""Nodes that may come in vain for one pod: an autoscaler takes any node whose sum suffices, whatever its GPUs are."""
MOST_IN_VAIN: Final = 10
"""The same for all pods of a namespace together, within `REST_S`: a pod that is created again has no attempts."""
REST_S: Final = 3600.0
"""How long no node is asked for, for a pod for which none has come, or none that helped."""


class Why(Enum):
    """What ends a placeholder."""

    DONE = "its pod is bound or gone"
    OFF = "no nodes are asked for any more"
    EXPIRED = "no node has come"
    OUTDATED = "a node came that has no room for its pod either"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A placeholder that is there."""

    nodes: frozenset[NodeName]
    """On which it must not be."""
    attempt: int
    age_s: float
    namespace: str
    """Of its pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The administrator's."""

    most: int
    """Placeholders at a time; 0: none."""
    life_s: float


OFF: Final = Limits(most=0, life_s=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the decision is about; by the UID of the pod that waits."""

    waiting: Set[PodUid]
    """On no node."""
    refused: Mapping[PodUid, Refusal]
    """Those of `waiting` that kube-scheduler has given up on, for want of GPUs alone."""
    asked: Mapping[PodUid, Asked]
    attempts: Mapping[PodUid, int]
    """Made so far, where no placeholder tells."""
    resting: Mapping[PodUid, float]
    """Until when, in monotonic seconds."""
    in_vain: Mapping[str, int] = field(default_factory=dict)
    """How many have ended of late without a node for their pod, by namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is to be done, removals first."""

    remove: Mapping[PodUid, Why]
    ask: Mapping[PodUid, int]
    """With the number of the attempt: of namespaces with few placeholders first, then those that wait longest."""


def decide(known: Known, limits: Limits, now: float) -> Steps:
    """The next steps; `now` is monotonic seconds."""
    remove = {pod: why for pod in known.asked if (why := _ends(pod, known, limits)) is not None}
    room = limits.most - (len(known.asked) - len(remove))
    ready = [
        pod
        for pod, refusal in known.refused.items()
        if pod not in known.asked
        and pod in known.waiting
        and now - refusal.since >= ASK_AFTER_S
        and known.resting.get(pod, now) <= now
    ]
    ready.sort(key=lambda pod: (known.refused[pod].since, pod))
    counts = Counter(known.asked[pod].namespace for pod in known.asked.keys() - remove.keys())
    places: dict[PodUid, int] = {}
    for pod in ready:
        namespace = known.refused[pod].namespace
        if counts[namespace] + known.in_vain.get(namespace, 0) < MOST_IN_VAIN:
            places[pod] = counts[namespace]
            counts[namespace] += 1
    ready = sorted(places, key=lambda pod: places[pod])
    return Steps(remove=remove, ask={pod: known.attempts.get(pod, 0) + 1 for pod in ready[: max(room, 0)]})


def rests(why: Why, attempt: int) -> bool:
    """Whether no node is asked for, for a while, after a placeholder has ended."""
    return why is Why.EXPIRED or (why is Why.OUTDATED and attempt >= ATTEMPTS)


def costs(why: Why, *, bound: bool) -> bool:
    """Whether a node may have come, by the time a placeholder has ended, that its pod has no use for."""
    return why is Why.OUTDATED or (why is Why.DONE and not bound)


def _ends(pod: PodUid, known: Known, limits: Limits) -> Why | None:
    asked, refusal = known.asked[pod], known.refused.get(pod)
    if limits.most <= 0:
        return Why.OFF
    if pod not in known.waiting:
        return Why.DONE
    if asked.age_s >= limits.life_s:
        return Why.EXPIRED
    if refusal is not None and asked.age_s >= REPLACE_AFTER_S and not asked.nodes.issuperset(refusal.nodes):
        return Why.OUTDATED
    return None
