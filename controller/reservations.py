"""Choices that were made but are not yet seen on a pod. Not thread-safe: `controller.state` holds the lock.

One counts from the choice until the pod is seen bound, wherever that is, and its requests have arrived or failed. One
whose reply was lost is never given back on a guess: a retry sends the same again, and a look at the pod later ends it.
"""

import heapq
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from gpushare.cluster.groups import LabelIndex
from gpushare.identity import NodeName, PodUid
from gpushare.model.capacity import NOTHING, FreeHost
from gpushare.model.ledger import Allocation

GONE_GRACE_S: Final = 10.0  # a Binding in doubt when its pod is deleted has arrived or failed by then
READ_AGAIN_S: Final = 10.0

K = TypeVar("K")
L = TypeVar("L")


@dataclass(slots=True, kw_only=True)
class Reservation:
    allocation: Allocation
    since: float  # monotonic time of the last try to bind
    takes: FreeHost = NOTHING  # CPU and memory of the host
    senders: int = 0  # requests that are sending this choice right now
    in_doubt: bool = False  # a Binding was sent and no one knows whether it took effect
    confirmed: bool = False  # the API server has said that the pod is bound so
    bypassed: bool  # the pod was on its node before: the choice is written by a patch and not by a Binding
    read_at: float = float("-inf")  # monotonic time of the last look at the pod


InDoubt = tuple[Reservation, bool]
"""As it was seen, as a later try makes this obsolete, and whether it is old enough to end if its pod is unbound."""


class Reservations:
    def __init__(self, label_index: LabelIndex) -> None:
        self._label_index = label_index
        self._by_pod: dict[PodUid, dict[NodeName, Reservation]] = {}
        self._by_node: dict[NodeName, dict[PodUid, Reservation]] = {}  # also `_outlived` ones
        self._outlived: list[Reservation] = []  # of pods seen on a node since; counted while their requests may arrive

    def of_pod(self, pod: PodUid) -> dict[NodeName, Reservation]:
        """Reservations of a pod. Not to be changed."""
        return self._by_pod.get(pod, {})

    def on_node(self, node: NodeName) -> dict[PodUid, Reservation]:
        """Reservations on a node. Not to be changed."""
        return self._by_node.get(node, {})

    def get(self, pod: PodUid, node: NodeName) -> Reservation | None:
        return self.of_pod(pod).get(node)

    def add(self, reservation: Reservation) -> None:
        """The first of its pod and node."""
        pod, node = reservation.allocation.pod, reservation.allocation.node
        self._by_pod.setdefault(pod.uid, {})[node] = reservation
        self._by_node.setdefault(node, {})[pod.uid] = reservation
        self._label_index.add(pod.namespace, reservation.allocation.labels)

    def correct(self, reservation: Reservation, allocation: Allocation) -> None:
        """The API server has another choice for the same pod and node."""
        self._label_index.remove(reservation.allocation.pod.namespace, reservation.allocation.labels)
        self._label_index.add(allocation.pod.namespace, allocation.labels)
        reservation.allocation = allocation

    def drop(self, pod: PodUid, node: NodeName) -> None:
        if (known := self.get(pod, node)) is None:
            return
        _pop(self._by_pod, pod, node)
        _pop(self._by_node, node, pod)
        self._label_index.remove(known.allocation.pod.namespace, known.allocation.labels)

    def drop_pod(self, pod: PodUid, *, but_bypassed_on: NodeName | None = None) -> list[NodeName]:
        """A pod was seen on a node: its reservations end, or all but a late one. The nodes that they are on.

        A Binding that may still arrive does nothing to this pod now, but servers that do not compare uids (1.20)
        bind another pod of the same name by it. So its memory is counted until it has arrived or failed.
        """
        ended = [known for node, known in self.of_pod(pod).items() if not (known.bypassed and node == but_bypassed_on)]
        for known in ended:
            node = known.allocation.node
            self.drop(pod, node)
            if (known.senders > 0 or known.in_doubt) and not known.bypassed:
                known.allocation = replace(known.allocation, labels={})  # of no one's group
                self._by_node.setdefault(node, {})[pod] = known
                self._outlived.append(known)
        return [known.allocation.node for known in ended]

    def returned(self, known: Reservation) -> list[Reservation]:
        """A request that sent a choice has ended: reservations that end with it."""
        known.senders -= 1
        if known.senders or known.in_doubt:
            return []
        pod, node = known.allocation.pod.uid, known.allocation.node
        if self.get(pod, node) is not known:
            return self._end([known])
        if known.confirmed:
            return []
        self.drop(pod, node)
        return [known]

    def expire(self, now: float) -> list[Reservation]:
        """Forget reservations that have outlived their pods' waiting and of which nothing can still arrive."""
        ended = [known for known in self._outlived if not known.senders]
        return self._end([known for known in ended if not known.in_doubt or now - known.since >= GONE_GRACE_S])

    def _end(self, over: list[Reservation]) -> list[Reservation]:
        self._outlived = [known for known in self._outlived if not any(known is one for one in over)]
        for known in over:
            pod, node = known.allocation.pod.uid, known.allocation.node
            if self.on_node(node).get(pod) is known:
                _pop(self._by_node, node, pod)
        return over

    def in_doubt(self, now: float, *, after_s: float, known: Container[PodUid], most: int) -> list[InDoubt]:
        """Reservations to look at now, at most so many: older than `after_s`, or of a pod that is not `known`."""
        # Those first that were not looked at for the longest time.

        def due(one: Reservation) -> bool:
            age = now - one.since
            gone = age >= GONE_GRACE_S and one.allocation.pod.uid not in known
            return one.senders == 0 and (age >= after_s or gone) and now - one.read_at >= READ_AGAIN_S

        found = heapq.nsmallest(most, filter(due, self.all()), key=lambda one: one.read_at)
        for one in found:
            one.read_at = now
        return [(replace(one), now - one.since >= after_s) for one in found]

    def all(self) -> Iterator[Reservation]:
        """Every reservation of a pod that is not seen on a node."""
        for by_node in self._by_pod.values():
            yield from by_node.values()

    def counted(self) -> list[Allocation]:
        return [known.allocation for by_pod in self._by_node.values() for known in by_pod.values()]


def _pop(outer: dict[K, dict[L, Reservation]], first: K, second: L) -> None:
    inner = outer[first]
    del inner[second]
    if not inner:
        del outer[first]
