"""The cluster's ledger in memory: what nodes have, what pods hold, and what was chosen but is not yet seen on a pod.

Pods and nodes come from the watches alone; a Binding changes its own reservation only, so the ledger cannot drift.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from controller.index import Index
from controller.reservations import InDoubt, Reservation
from gpushare.cluster import node_ledger
from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName, PodUid
from gpushare.model.capacity import FreeHost
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Allocation, NodeLedger, Placed, RefusalReason, Refused
from gpushare.model.request import DEFAULT_POLICY, PodRequest, Policy, RequestShape
from gpushare.placement import explain
from gpushare.placement.policies import Policies
from gpushare.units import ResourceConfig

TRIES: Final = 5  # to choose GPUs while a node's ledger stays as it was


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Memory was set aside; send this, then tell the state how it went."""

    allocation: Allocation
    inventory: NodeInventory
    reservation: Reservation = field(repr=False)  # for the state: another of the same pod may follow before the end


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyBound:
    """The pod is on a node already, with GPUs given to it or without."""

    node: NodeName
    granted: bool


class _Start(NamedTuple):
    """What GPUs are chosen by: a node as it is, and the pod's request, resolved."""

    ledger: NodeLedger
    shape: RequestShape

    def is_as(self, before: "_Start") -> bool:
        return self.ledger is before.ledger and self.shape == before.shape


class ClusterState:
    """The ledgers, with the reservations of this leader. Times are monotonic seconds. Safe for use by many threads."""

    def __init__(
        self,
        *,
        resource_config: ResourceConfig,
        policy: Policy = DEFAULT_POLICY,
        in_doubt_s: float = 120.0,
        reduced: bool = False,
    ) -> None:
        self.resource_config = resource_config
        self.reduced = reduced  # whether authors of pods are told nothing of what others have
        self.policies = Policies(policy)  # replaced as a whole; whether a pod fits never depends on it
        self.index = Index(resource_config)  # what the watches say, for everybody; reservations are made here alone
        self._in_doubt_s = in_doubt_s

    def public(self, shape: RequestShape) -> Callable[[Refused], Refused]:
        """Makes refusals of this request what the author of a pod may read: to be called before any is shown."""
        if not self.reduced:
            return lambda refused: refused
        texts = explain.reduced(shape, self.resource_config.unit)
        return lambda refused: replace(refused, message=texts[refused.reason])

    def bound(self, uid: PodUid) -> AlreadyBound | None:
        with self.index.lock:
            return self._bound_to(uid)

    def reserve(
        self, request: PodRequest, node: NodeName, *, now: float, bypassed: bool = False
    ) -> Reserved | AlreadyBound | Refused:
        """Choose GPUs and set their memory aside. Every `Reserved` must be ended by confirm, mark_in_doubt or undo.

        A bypassed pod is on the node already, without GPUs, and is not `AlreadyBound` for that.
        """

        def set_aside(start: _Start, verdict: Placed) -> Reserved:
            allocation = Allocation(pod=request.pod, node=node, grants=verdict.grants, labels=request.labels)
            takes = FreeHost.of(request)
            known = Reservation(allocation=allocation, since=now, takes=takes, bypassed=bypassed)
            self.index.reserve(known)
            return _sending(known, start.ledger, now=now)

        chosen: tuple[_Start, Placed] | None = None
        for tried in range(TRIES + 1):
            with self.index.lock:
                start = self._start(request, node, now=now, bypassed=bypassed)
                if not isinstance(start, _Start):
                    return start
                if chosen is not None and start.is_as(chosen[0]):
                    return set_aside(*chosen)
                if tried == TRIES and len(request.shape.containers) == 1:
                    # The ledger changes all the time, but one container is placed by sorting a few numbers.
                    verdict = node_ledger.verdict(start.shape, start.ledger, self.policies)
                    return verdict if isinstance(verdict, Refused) else set_aside(start, verdict)
            if tried < TRIES:
                # A search for many containers takes long; the ledger is immutable, so no one has to wait for it.
                verdict = node_ledger.verdict(start.shape, start.ledger, self.policies)
                if isinstance(verdict, Refused):
                    return verdict
                chosen = start, verdict
        message = f"{node} changed {TRIES} times while GPUs were chosen for {request.pod}; it is tried again"
        return Refused(RefusalReason.SEARCH_TOO_LONG, message)

    def confirm(self, reserved: Reserved, allocation: Allocation) -> None:
        """The API server says that the pod is bound like this."""
        with self.index.lock:
            known, reservations = reserved.reservation, self.index.reservations
            known.confirmed = True
            # If the watch was faster, the pod itself is in the ledger.
            if known.allocation != allocation and reservations.get(allocation.pod.uid, allocation.node) is known:
                reservations.correct(known, allocation)
                self.index.rebuild({allocation.node}, frees=True)
            self._returned(known)

    def mark_in_doubt(self, reserved: Reserved) -> None:
        """No one knows whether what was sent took effect: keep the memory."""
        with self.index.lock:
            reserved.reservation.in_doubt = True
            self._returned(reserved.reservation)

    def undo(self, reserved: Reserved) -> None:
        """What was sent did not take effect: give the memory back, unless an earlier request may still arrive."""
        with self.index.lock:
            self._returned(reserved.reservation)

    def in_doubt(self, now: float, *, most: int) -> list[InDoubt]:
        """Reservations whose pods are to be looked at now, so many at most."""
        with self.index.lock:
            self.index.give_back(self.index.reservations.expire(now))
            known = self.index.pods
            return self.index.reservations.in_doubt(now, after_s=self._in_doubt_s, known=known, most=most)

    def end(self, seen: Reservation) -> None:
        """A look at the pod has shown that what was sent did not and will not take effect."""
        with self.index.lock:
            uid, node = seen.allocation.pod.uid, seen.allocation.node
            known = self.index.reservations.get(uid, node)
            if known is not None and known.senders == 0 and known.since == seen.since:
                self.index.reservations.drop(uid, node)
                self.index.rebuild({node}, frees=True)

    # Inside the lock.

    def _returned(self, known: Reservation) -> None:
        self.index.give_back(self.index.reservations.returned(known))

    def _start(
        self, request: PodRequest, node: NodeName, *, now: float, bypassed: bool
    ) -> _Start | Reserved | AlreadyBound | Refused:
        """What holds before any choice; else what to choose from."""
        uid = request.pod.uid
        record, known = self.index.pods.get(uid), self.index.reservations.get(uid, node)
        waits = isinstance(record, Bound) and record.node == node and record.bypassed is not None
        is_late = bypassed and waits and (known is None or not known.confirmed)
        if not is_late and (bound := self._bound_to(uid)) is not None:
            return bound
        ledger = self.index.ledger(node)
        if isinstance(ledger, Refused):
            return ledger
        if known is None:
            return _Start(ledger, self.index.resolved(request.shape, request.labels, request.pod))
        if (refusal := node_ledger.lost_gpus(known.allocation, ledger.inventory)) is not None:
            return refusal
        return _sending(known, ledger, now=now)

    def _bound_to(self, uid: PodUid) -> AlreadyBound | None:
        # A confirmed choice tells more than a pod that was seen on its node before it was made.
        for node, known in self.index.reservations.of_pod(uid).items():
            if known.confirmed:
                return AlreadyBound(node=node, granted=True)
        record = self.index.pods.get(uid)
        if isinstance(record, Bound):
            granted = record.allocation is not None or record.interop_pod is not None
            return AlreadyBound(node=record.node, granted=granted)
        return None


def _sending(known: Reservation, ledger: NodeLedger, *, now: float) -> Reserved:
    """One more request sends this choice."""
    known.senders += 1
    known.since = now
    return Reserved(allocation=known.allocation, inventory=ledger.inventory, reservation=known)
