"""For which waiting pods a node is asked for by a placeholder, and when that ends. Pure, but for `Refusals`' lock.

An autoscaler counts sums and asks no extender: where no single GPU has room it sees room still, and adds no node.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final

from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.runtime.clock import Clock

FORGET_S: Final = 60.0  # filter may know of a pod before the watch does
MOST_NODES: Final = 1000  # of one pod; anyone who reaches the port may name more than there are
MOST: Final = 256  # pods; a namespace with few of them takes a place from the one with most
ASK_AFTER_S: Final = 10.0  # a pod that ends may make room
REPLACE_AFTER_S: Final = 30.0
ATTEMPTS: Final = 3  # nodes in vain for one pod: an autoscaler takes any whose sum suffices, whatever its GPUs
MOST_IN_VAIN: Final = 10  # for a namespace, within `REST_S`: a pod that is created again has no attempts
REST_S: Final = 3600.0  # how long no node is asked for, for a pod for which none has come, or none that helped
REFUSED: Final = "placeholder that makes an autoscaler add a node; it is never scheduled"  # why no node takes one


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How kube-scheduler's last question about a pod ended."""

    since: float  # monotonic seconds, of the first such question
    asked: float  # of the last one
    nodes: Sequence[NodeName]  # those that it named, the first `MOST_NODES` of them
    left_out: int = 0  # how many it named beside these
    namespace: str = ""  # of the pod


class Refusals:
    """Written by filter, read by the chores. Safe for use by many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[PodUid, Refusal] = {}

    def note(self, pod: PodRef, nodes: Sequence[NodeName], *, fits: bool) -> None:
        with self._lock:
            if fits or not nodes:
                self._known.pop(pod.uid, None)
                return
            known = self._known.get(pod.uid)
            if known is not None or len(self._known) < MOST or self._makes_place(pod.namespace):
                now = self._clock.monotonic()
                since = now if known is None else known.since
                left_out = max(len(nodes) - MOST_NODES, 0)
                kept = nodes[:MOST_NODES] if left_out else nodes
                refusal = Refusal(since=since, asked=now, nodes=kept, left_out=left_out, namespace=pod.namespace)
                self._known[pod.uid] = refusal

    def _makes_place(self, namespace: str) -> bool:
        """Forget the newest pod of the namespace with most, unless this one would then have as many."""
        counts = Counter(each.namespace for each in self._known.values())
        largest, most = counts.most_common(1)[0]
        if counts[namespace] + 1 >= most:
            return False
        del self._known[max((each.since, uid) for uid, each in self._known.items() if each.namespace == largest)[1]]
        return True

    def of(self, waiting: Set[PodUid]) -> Mapping[PodUid, Refusal]:
        """Those of pods that wait; others are forgotten after a while."""
        now = self._clock.monotonic()
        with self._lock:
            for pod in self._known.keys() - waiting:
                if now - self._known[pod].asked >= FORGET_S:
                    del self._known[pod]
            return {pod: known for pod, known in self._known.items() if pod in waiting}


class Why(Enum):
    DONE = "its pod is bound or gone"
    OFF = "nodes are no longer asked for"
    EXPIRED = "no node has come"
    OUTDATED = "a node came that has no room for its pod either"
    TURN = "pods of other namespaces have their turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    uid: PodUid
    pod: PodUid  # the pod that it stands for
    nodes: frozenset[NodeName]  # on which it must not be
    attempt: int
    created: datetime
    namespace: str  # of that pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    most: int  # placeholders at a time; 0: none
    life_s: float


OFF: Final = Limits(most=0, life_s=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the decision is about; by the UID of the pod that waits."""

    waiting: Set[PodUid]  # on no node
    refused: Mapping[PodUid, Refusal]  # those of `waiting` that kube-scheduler has given up on, for want of GPUs alone
    asked: Mapping[PodUid, Placeholder]
    today: datetime  # by the clock of placeholders' creation
    attempts: Mapping[PodUid, int]  # made so far, where no placeholder tells
    resting: Mapping[PodUid, float]  # until when, in monotonic seconds
    in_vain: Mapping[str, int] = field(default_factory=dict)  # ended of late without a node for their pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:  # removals first
    remove: Mapping[PodUid, Why]
    ask: Mapping[PodUid, int]  # with the number of the attempt; first namespaces with few, then those that wait longest


def decide(known: Inputs, limits: Limits, now: float) -> Steps:
    remove = {pod: why for pod in known.asked if (why := _ends(pod, known, limits)) is not None}
    staying = {pod: each for pod, each in known.asked.items() if pod not in remove}
    room = limits.most - len(staying)
    ready = [
        pod
        for pod, refusal in known.refused.items()
        if pod not in known.asked
        and pod in known.waiting
        and now - refusal.since >= ASK_AFTER_S
        and known.resting.get(pod, now) <= now
    ]
    ready.sort(key=lambda pod: (known.refused[pod].since, pod))
    counts = Counter(each.namespace for each in staying.values())
    [(largest, most)] = counts.most_common(1) or [("", 0)]
    places: dict[PodUid, int] = {}
    for pod in ready:
        namespace = known.refused[pod].namespace
        if counts[namespace] + known.in_vain.get(namespace, 0) < MOST_IN_VAIN:
            places[pod] = counts[namespace]
            counts[namespace] += 1
    ready = sorted(places, key=lambda pod: places[pod])
    if ready and room <= 0 and places[ready[0]] + 1 < most:
        newest = max((each.created, pod) for pod, each in staying.items() if each.namespace == largest)[1]
        remove[newest] = Why.TURN  # its place is free, for the quota too, in a later tick
    return Steps(remove=remove, ask={pod: known.attempts.get(pod, 0) + 1 for pod in ready[: max(room, 0)]})


def rests(why: Why, attempt: int) -> bool:
    """Whether no node is asked for, for a while, after a placeholder has ended."""
    return why is Why.EXPIRED or (why is Why.OUTDATED and attempt >= ATTEMPTS)


def costs(why: Why, *, bound: bool) -> bool:
    """Whether a node may have come, by the time a placeholder has ended, that its pod has no use for."""
    return why is Why.OUTDATED or (why is Why.DONE and not bound)


def _ends(pod: PodUid, known: Inputs, limits: Limits) -> Why | None:
    asked, refusal = known.asked[pod], known.refused.get(pod)
    age_s = (known.today - asked.created).total_seconds()
    if limits.most <= 0:
        return Why.OFF
    if pod not in known.waiting:
        return Why.DONE
    if age_s >= limits.life_s:
        return Why.EXPIRED
    if refusal is not None and age_s >= REPLACE_AFTER_S and not asked.nodes.issuperset(refusal.nodes):
        return Why.OUTDATED
    return None
