"""The cluster's books in memory: what nodes have, what pods hold, and what was chosen but is not yet seen on a pod.

One lock guards all of it; under the lock there is arithmetic only, never a request to anybody. Pods and nodes come from
the watches alone; a Binding changes nothing but its own reservation, so the books cannot drift from the pods.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controller.reservations import Doubt, Reservation, Reservations
from gpushare.cluster import books, records, views
from gpushare.cluster.records import Bound, NodeRecord, Pending, PodRecord, Problem
from gpushare.cluster.views import View
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.allocation import Allocation
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest, Policy, RequestShape
from gpushare.model.verdict import Placed, RefusalReason, Refused, Verdict
from gpushare.placement.place import place
from gpushare.units import MemoryUnit

__all__ = ["AlreadyBound", "Changes", "ClusterState", "Doubt", "Reserved", "View"]

TRIES: Final = 5  # to choose GPUs while a node's books stay as they were
MAX_GONE: Final = 1000  # nodes that are remembered as gone; scaling a cluster up and down makes ever new names


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Memory was set aside; send this, then tell the state how it went."""

    allocation: Allocation
    inventory: NodeInventory


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyBound:
    """The pod is on a node already, with GPUs given to it or without."""

    node: NodeName
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed since somebody asked last."""

    views: dict[NodeName, View | None]
    """None for nodes that are gone."""
    complete: bool
    """These are all nodes that there are: some that went are forgotten, and others may not be known any more."""
    sequence: int
    """To ask with next."""


class ClusterState:
    """See the module. Safe for use by many threads."""

    def __init__(self, *, unit: MemoryUnit, policy: Policy = Policy.BINPACK, in_doubt_s: float = 120.0) -> None:
        self.unit = unit
        self.policy = policy
        self._in_doubt_s = in_doubt_s
        self._lock = threading.Lock()
        self._nodes: dict[NodeName, NodeRecord] = {}
        self._pods: dict[PodUid, PodRecord] = {}
        self._on_node: dict[NodeName, dict[PodUid, Bound]] = {}
        self._reservations = Reservations()
        self._views: dict[NodeName, View] = {}
        self._problems: dict[NodeName, dict[PodRef, Problem]] = {}
        self._changes: dict[NodeName, int] = {}
        """Number of the last change of each node, the oldest first; also of nodes that are gone."""
        self._gone: dict[NodeName, None] = {}
        """Nodes in `_changes` that do not exist, in the same order."""
        self._forgotten = 0
        """Number of the last change that was dropped from `_changes`."""
        self._sequence = 0
        self._freed = 0

    # What the watches say.

    def replace_nodes(self, found: Iterable[NodeRecord]) -> None:
        """All nodes of the cluster."""
        with self._lock:
            fresh = {record.name: record for record in found}
            for name in self._nodes.keys() - fresh.keys():
                self._set_node(name, None)
            for name, record in fresh.items():
                self._set_node(name, record)

    def node(self, name: NodeName) -> NodeRecord | None:
        """What is known of a node."""
        with self._lock:
            return self._nodes.get(name)

    def upsert_node(self, record: NodeRecord) -> None:
        """A node was added or changed."""
        with self._lock:
            self._set_node(record.name, record)

    def remove_node(self, name: NodeName) -> None:
        """A node is gone; what its pods hold is remembered for as long as they exist."""
        with self._lock:
            self._set_node(name, None)

    def replace_pods(self, found: Iterable[PodRecord]) -> None:
        """All pods of the cluster that ask for GPUs."""
        with self._lock:
            fresh = {record.ref.uid: record for record in found}
            dirty: set[NodeName] = set()
            for uid in self._pods.keys() - fresh.keys():
                dirty |= self._set_pod(uid, None)
            for uid, record in fresh.items():
                dirty |= self._set_pod(uid, record)
            self._rebuild(dirty, frees=True)

    def upsert_pod(self, record: PodRecord) -> None:
        """A pod was added or changed."""
        with self._lock:
            dirty = self._set_pod(record.ref.uid, record)
            gave_back = isinstance(record, Bound) and record.allocation is None
            self._rebuild(dirty, frees=gave_back or len(dirty) > 1)

    def remove_pod(self, uid: PodUid) -> None:
        """A pod is gone, or asks for nothing any more."""
        with self._lock:
            self._rebuild(self._set_pod(uid, None), frees=True)

    # Binding.

    def bound(self, uid: PodUid) -> AlreadyBound | None:
        """Where a pod is bound, as far as is known."""
        with self._lock:
            return self._bound_to(uid)

    def reserve(self, request: PodRequest, node: NodeName, *, now: float) -> Reserved | AlreadyBound | Refused:
        """Choose GPUs and set their memory aside. Every `Reserved` must be ended by confirm, doubt or undo.

        Args:
            request: the pod and what it asks for.
            node: where the scheduler wants it.
            now: monotonic time.
        """
        for _ in range(TRIES):
            with self._lock:
                view = self._view(node)
                standing = self._standing(request, node, view, now=now)
            if not isinstance(standing, NodeLedger):
                return standing
            # A search for many containers takes long; the books are immutable, so nobody has to wait for it.
            verdict = self.verdict(request.shape, standing)
            if isinstance(verdict, Refused):
                return verdict
            with self._lock:
                if self._view(node) is view:
                    return self._set_aside(request, node, standing, verdict, now=now)
        return self._reserve_at_once(request, node, now=now)

    def confirm(self, allocation: Allocation) -> None:
        """The API server says that the pod is bound like this."""
        with self._lock:
            known = self._reservations.get(allocation.pod.uid, allocation.node)
            if known is None:
                return  # the watch was faster, and the pod itself is in the books
            known.senders -= 1
            known.confirmed = True
            if known.allocation != allocation:
                known.allocation = allocation
                self._rebuild({allocation.node}, frees=True)

    def doubt(self, pod: PodUid, node: NodeName) -> None:
        """Nobody knows whether the Binding took effect: keep the memory."""
        with self._lock:
            if (known := self._reservations.get(pod, node)) is not None:
                known.senders -= 1
                known.doubtful = True

    def undo(self, pod: PodUid, node: NodeName) -> None:
        """The Binding did not take effect: give the memory back, unless an earlier one may still arrive."""
        with self._lock:
            known = self._reservations.get(pod, node)
            if known is None:
                return
            known.senders -= 1
            if known.senders <= 0 and not known.doubtful and not known.confirmed:
                self._reservations.drop(pod, node)
                self._rebuild({node}, frees=True)

    def doubts(self, now: float, *, most: int) -> list[Doubt]:
        """Reservations whose pods are to be looked at now, so many at most."""
        with self._lock:
            return self._reservations.doubts(now, after_s=self._in_doubt_s, known=self._pods, most=most)

    def end(self, doubt: Doubt) -> None:
        """A look at the pod has shown that the Binding did not and will not take effect."""
        with self._lock:
            known = self._reservations.get(doubt.pod.uid, doubt.node)
            if known is not None and known.senders == 0 and known.since == doubt.since:
                self._reservations.drop(doubt.pod.uid, doubt.node)
                self._rebuild({doubt.node}, frees=True)

    # Looking.

    def changed_since(self, sequence: int) -> Changes:
        """Nodes that changed after a sequence number; 0 for all."""
        with self._lock:
            if sequence < self._forgotten:
                return Changes(views={n: self._view(n) for n in self._nodes}, complete=True, sequence=self._sequence)
            found: dict[NodeName, View | None] = {}
            for name, changed in reversed(self._changes.items()):
                if changed <= sequence:
                    break
                found[name] = self._view(name) if name in self._nodes else None
            return Changes(views=found, complete=False, sequence=self._sequence)

    def verdict(self, shape: RequestShape, view: View) -> Verdict:
        """Whether a pod fits. Pure."""
        return view if isinstance(view, Refused) else place(shape, view, self.policy)

    def all_views(self) -> dict[NodeName, View]:
        """Every known node."""
        with self._lock:
            return {name: self._view(name) for name in self._nodes}

    def pending(self, uid: PodUid) -> Pending | None:
        """A pod that waits for a node."""
        with self._lock:
            record = self._pods.get(uid)
            return record if isinstance(record, Pending) else None

    def all_pending(self) -> list[Pending]:
        """All pods that wait for a node."""
        with self._lock:
            return [record for record in self._pods.values() if isinstance(record, Pending)]

    def reserved_on(self, uid: PodUid) -> frozenset[NodeName]:
        """Nodes on which memory is set aside for a pod that may be bound there already."""
        with self._lock:
            return frozenset(self._reservations.of_pod(uid))

    def problems(self) -> dict[PodRef, Problem]:
        """Bound pods whose allocations cannot be read."""
        with self._lock:
            return {ref: why for on_node in self._problems.values() for ref, why in on_node.items()}

    def unconfirmed(self) -> int:
        """Reservations whose Binding is being sent or in doubt."""
        with self._lock:
            return sum(not known.confirmed for known in self._reservations.all())

    @property
    def freed(self) -> int:
        """Grows whenever a node may have got more room."""
        return self._freed

    def audit(self) -> list[str]:
        """Differences between the books as they are kept and as computed from nodes and pods alone: none, ever."""
        with self._lock:
            nodes, pods = list(self._nodes.values()), list(self._pods.values())
            kept = {name: view for name, view in self._views.items() if isinstance(view, NodeLedger)}
            reserved = [known.allocation for known in self._reservations.all()]
        expected = books.of_records(nodes, pods)
        for allocation in reserved:
            if (ledger := expected.get(allocation.node)) is not None and allocation.pod.uid not in ledger.allocations:
                expected[allocation.node] = ledger.with_allocation(allocation)
        usable = {name: ledger for name, ledger in expected.items() if ledger.inventory.unit == self.unit}
        return books.differences(usable, kept)

    def _reserve_at_once(self, request: PodRequest, node: NodeName, *, now: float) -> Reserved | AlreadyBound | Refused:
        """As `reserve`, while the books change all the time: one container is placed by sorting a few numbers."""
        if len(request.shape.containers) > 1:
            message = f"{node} changed {TRIES} times while GPUs were chosen for {request.pod}; it is tried again"
            return Refused(RefusalReason.SEARCH_TOO_LONG, message)
        with self._lock:
            standing = self._standing(request, node, self._view(node), now=now)
            if not isinstance(standing, NodeLedger):
                return standing
            verdict = self.verdict(request.shape, standing)
            if isinstance(verdict, Refused):
                return verdict
            return self._set_aside(request, node, standing, verdict, now=now)

    # Inside the lock.

    def _standing(
        self, request: PodRequest, node: NodeName, view: View, *, now: float
    ) -> NodeLedger | Reserved | AlreadyBound | Refused:
        """What holds before any choice; else the books to choose from."""
        if (bound := self._bound_to(request.pod.uid)) is not None:
            return bound
        if isinstance(view, Refused):
            return view
        known = self._reservations.get(request.pod.uid, node)
        if known is None:
            return view
        if (refusal := views.lost_gpus(known.allocation, view.inventory)) is not None:
            return refusal
        return _sending(known, view, now=now)

    def _set_aside(
        self, request: PodRequest, node: NodeName, ledger: NodeLedger, verdict: Placed, *, now: float
    ) -> Reserved | AlreadyBound:
        """Keep a choice that was made from the node's books as they are."""
        if (bound := self._bound_to(request.pod.uid)) is not None:
            return bound  # meanwhile, to another node
        allocation = Allocation(pod=request.pod, node=node, grants=verdict.grants)
        known = Reservation(allocation=allocation, since=now)
        self._reservations.add(known)
        self._rebuild({node}, frees=False)
        return _sending(known, ledger, now=now)

    def _bound_to(self, uid: PodUid) -> AlreadyBound | None:
        record = self._pods.get(uid)
        if isinstance(record, Bound):
            granted = record.allocation is not None or record.legacy is not None
            return AlreadyBound(node=record.node, granted=granted)
        for node, known in self._reservations.of_pod(uid).items():
            if known.confirmed:
                return AlreadyBound(node=node, granted=True)
        return None

    def _set_node(self, name: NodeName, record: NodeRecord | None) -> None:
        if self._nodes.get(name) == record:
            return
        if record is None:
            del self._nodes[name]
        else:
            self._nodes[name] = record
        self._rebuild({name}, frees=True)

    def _set_pod(self, uid: PodUid, record: PodRecord | None) -> set[NodeName]:
        """Nodes whose books change by it."""
        before = self._pods.get(uid)
        if before == record:
            return set()
        dirty: set[NodeName] = set()
        if isinstance(before, Bound):
            self._on_node[before.node].pop(uid, None)
            dirty.add(before.node)
        if record is None:
            del self._pods[uid]
            return dirty
        self._pods[uid] = record
        if isinstance(record, Bound):
            self._on_node.setdefault(record.node, {})[uid] = record
            # Seen on a node, a pod cannot be bound again: no other choice can come true any more.
            dirty |= {record.node, *self._reservations.drop_pod(uid)}
        return dirty

    def _view(self, name: NodeName) -> View:
        return self._views.get(name) or Refused(RefusalReason.NO_INVENTORY, records.unknown_node(name))

    def _rebuild(self, nodes: Iterable[NodeName], *, frees: bool) -> None:
        for name in nodes:
            self._sequence += 1
            self._freed += frees
            self._changes.pop(name, None)
            self._changes[name] = self._sequence
            self._problems.pop(name, None)
            if not self._on_node.get(name):
                self._on_node.pop(name, None)
            self._gone.pop(name, None)
            if (record := self._nodes.get(name)) is not None:
                self._views[name] = self._look(record)
                continue
            self._views.pop(name, None)
            self._gone[name] = None
            if len(self._gone) > MAX_GONE:
                oldest = next(iter(self._gone))
                del self._gone[oldest]
                self._forgotten = self._changes.pop(oldest)

    def _look(self, record: NodeRecord) -> View:
        reserved = (known.allocation for known in self._reservations.on_node(record.name).values())
        view, problems = views.of_node(record, self._on_node.get(record.name, {}).values(), reserved, self.unit)
        if problems:
            self._problems[record.name] = problems
        return view


def _sending(known: Reservation, ledger: NodeLedger, *, now: float) -> Reserved:
    """One more request sends this choice."""
    known.senders += 1
    known.since = now
    return Reserved(allocation=known.allocation, inventory=ledger.inventory)
