"""Pods for which kube-scheduler has named nodes, all of which refused: the nodes' sums suffice, and their GPUs do not.

An autoscaler counts sums as kube-scheduler does, and asks no extender: it sees room for such a pod, and adds no node.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.runtime.clock import Clock

FORGET_S: Final = 60.0  # filter may know of a pod before the watch does
MOST_NODES: Final = 1000  # of one pod; anyone who reaches the port may name more than there are
MOST: Final = 256  # pods; a namespace with few of them takes a place from the one with most


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How kube-scheduler's last question about a pod ended."""

    since: float
    """Monotonic seconds, of the first such question."""
    asked: float
    """Of the last one."""
    nodes: Sequence[NodeName]
    """Those that it named, the first `MOST_NODES` of them."""
    left_out: int = 0
    """How many it named beside these."""
    namespace: str = ""
    """Of the pod."""


class Refusals:
    """Written by filter, read by the chores. Safe for use by many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[PodUid, Refusal] = {}

    def note(self, pod: PodRef, nodes: Sequence[NodeName], *, fits: bool) -> None:
        """kube-scheduler has asked about a pod."""
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
