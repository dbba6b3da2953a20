"""The cluster's books in memory: what nodes have, what pods hold, and what was chosen but is not yet seen on a pod.

One lock guards all of it; under the lock there is arithmetic only, never a request to anybody. Pods and nodes come from
the watches alone; a Binding changes nothing but its own reservation, so the books cannot drift from the pods.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from controller import books, records, views
from controller.records import Bound, NodeRecord, Pending, PodRecord
from controller.reservations import Doubt, Reservation, Reservations
from controller.views import View
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.allocation import Allocation
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest, Policy, RequestShape
from gpushare.model.verdict import RefusalReason, Refused, Verdict
from gpushare.placement.place import place
from gpushare.units import MemoryUnit

__all__ = ["AlreadyBound", "ClusterState", "Doubt", "Reserved", "View"]


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
        self._problems: dict[NodeName, dict[PodRef, str]] = {}
        self._changes: dict[NodeName, int] = {}
        """Number of the last change of each node, the oldest first; also of nodes that are gone."""
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
        with self._lock:
            if (bound := self._bound_to(request.pod.uid)) is not None:
                return bound
            view = self._view(node)
            if isinstance(view, Refused):
                return view
            known = self._reservations.get(request.pod.uid, node)
            if known is None:
                verdict = place(request.shape, view, self.policy)
                if isinstance(verdict, Refused):
                    return verdict
                allocation = Allocation(pod=request.pod, node=node, grants=verdict.grants)
                known = Reservation(allocation=allocation, since=now)
                self._reservations.add(known)
                self._rebuild({node}, frees=False)
            elif (refusal := views.lost_gpus(known.allocation, view.inventory)) is not None:
                return refusal
            known.senders += 1
            known.since = now
            return Reserved(allocation=known.allocation, inventory=view.inventory)

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

    def doubts(self, now: float) -> list[Doubt]:
        """Reservations whose pods are to be looked at now."""
        with self._lock:
            return self._reservations.doubts(now, after_s=self._in_doubt_s, known=self._pods)

    def end(self, doubt: Doubt) -> None:
        """A look at the pod has shown that the Binding did not and will not take effect."""
        with self._lock:
            known = self._reservations.get(doubt.pod.uid, doubt.node)
            if known is not None and known.senders == 0 and known.since == doubt.since:
                self._reservations.drop(doubt.pod.uid, doubt.node)
                self._rebuild({doubt.node}, frees=True)

    # Looking.

    def changed_since(self, sequence: int) -> tuple[dict[NodeName, View | None], int]:
        """Nodes that changed after a sequence number, None for those that are gone, and the number to ask with next."""
        with self._lock:
            found: dict[NodeName, View | None] = {}
            for name, changed in reversed(self._changes.items()):
                if changed <= sequence:
                    break
                found[name] = self._view(name) if name in self._nodes else None
            return found, self._sequence

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

    def problems(self) -> dict[PodRef, str]:
        """Bound pods of which nobody can tell what they hold, and why."""
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

    # Inside the lock.

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
            if (record := self._nodes.get(name)) is None:
                self._views.pop(name, None)
            else:
                self._views[name] = self._look(record)

    def _look(self, record: NodeRecord) -> View:
        reserved = (known.allocation for known in self._reservations.on_node(record.name).values())
        view, problems = views.of_node(record, self._on_node.get(record.name, {}).values(), reserved, self.unit)
        if problems:
            self._problems[record.name] = problems
        return view
