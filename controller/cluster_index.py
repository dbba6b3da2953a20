"""What is known of nodes and pods, and the ledgers that follow. Not thread-safe: `controller.cluster_cache` locks.

Nothing here decides; it is arithmetic that has to be done while no one else may look.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

from controller.changelog import ChangeLog
from controller.hosts import Hosts
from controller.node_rooms import NodeRooms
from controller.reservations import Reservation, Reservations
from controller.rooms import Rooms
from gpushare.cluster import groups, node_ledger, node_records, pod_records
from gpushare.cluster.groups import LabelIndex
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, NonGpuPod, PodRecord, Problem
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.allocation import Allocation, RefusalReason, Refused
from gpushare.model.capacity import Ask, FreeHost
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.placement import room
from gpushare.units import ResourceConfig
from gpushare.wire import host


class ClusterIndex:
    """Nodes and pods as the watches told of them, reservations, and one immutable ledger of each node."""

    def __init__(self, resource_config: ResourceConfig) -> None:
        self.nodes: dict[NodeName, NodeRecord] = {}
        self.pods: dict[PodUid, PodRecord] = {}
        self.bypassed: dict[PodUid, Bound] = {}
        """Pods that got to their nodes without GPUs, or were rejected there: the reconciler looks after them."""
        self.overridden: dict[PodUid, PodRecord] = {}
        """Pods whose authors chose devices themselves, which the webhook has undone."""
        self.label_index = LabelIndex()
        """Labels of all pods that hold GPUs or are about to."""
        self.reservations = Reservations(self.label_index)
        self.log = ChangeLog()
        self.freed = 0
        """Grows whenever a node may have got more room."""
        self.problems: dict[NodeName, dict[PodRef, Problem]] = {}
        self._unhealthy: dict[NodeName, frozenset[int]] = {}
        self.ledgers: dict[NodeName, LedgerOrRefused] = {}
        self.rooms = Rooms()
        self.hosts = Hosts()
        self.node_rooms = NodeRooms()
        """As of the last `settle`."""
        self.asks: Counter[Ask] = Counter()
        """Of all pods that hold GPUs or wait for them."""
        self.changes = 0
        """Of rooms and of `asks`."""
        self.came = 0
        """Pods, with and without GPUs."""
        self.unsettled: set[NodeName] = set()
        """Nodes whose rooms have changed since."""
        self._resource_config = resource_config
        self._on_node: dict[NodeName, dict[PodUid, Bound]] = {}

    def ledger(self, name: NodeName) -> LedgerOrRefused:
        """A node's ledger, or why it has none."""
        return self.ledgers.get(name) or Refused(RefusalReason.NO_INVENTORY, node_records.unknown(name))

    def set_node(self, name: NodeName, record: NodeRecord | None) -> None:
        """A node came, changed or went."""
        if record is not None:
            record = node_records.marked_unhealthy(record, self.unhealthy_on(name))
        if self.nodes.get(name) == record:
            return
        if record is None:
            del self.nodes[name]
        else:
            self.nodes[name] = record
        self.rebuild({name}, frees=True)

    def unhealthy_on(self, name: NodeName) -> frozenset[int]:
        """What `set_unhealthy` was told last."""
        return self._unhealthy.get(name, frozenset())

    def set_unhealthy(self, name: NodeName, indices: frozenset[int]) -> None:
        """Somebody beside the plugin said which GPUs of a node must not be used; it may be known only later."""
        self._unhealthy.pop(name, None)
        if indices:
            self._unhealthy[name] = indices
        if (record := self.nodes.get(name)) is not None:
            self.set_node(name, record)

    def set_pod(self, uid: PodUid, record: PodRecord | None) -> set[NodeName]:
        """A pod came, changed or went. The nodes whose ledger changes by it; `rebuild` has to follow."""
        before = self.pods.get(uid)
        if before == record:
            return set()
        dirty: set[NodeName] = set()
        self.came += before is None
        self._count(before, -1)
        self._count(record, 1)
        if isinstance(before, Bound):
            self.hosts.subtract(before.node, before.ask.host)
            del self._on_node[before.node][uid]
            if not self._on_node[before.node]:
                del self._on_node[before.node]
            if before.holds:
                self.label_index.remove(before.ref.namespace, before.labels)
            self.bypassed.pop(uid, None)
            dirty.add(before.node)
        self.overridden.pop(uid, None)
        if record is None:
            del self.pods[uid]
            return dirty
        self.pods[uid] = record
        if record.overridden:
            self.overridden[uid] = record
        if isinstance(record, Bound):
            dirty |= self._came(record, moved=bool(dirty))
        return dirty

    def reserve(self, reservation: Reservation) -> None:
        """A choice that was made from the node's ledger as it is: only that is added to it."""
        pod, name = reservation.allocation.pod.uid, reservation.allocation.node
        ledger = self.ledgers.get(name)
        self.reservations.add(reservation)
        if isinstance(ledger, NodeLedger) and pod not in ledger.allocations:
            self._unsettle(name)
            self._keep(name, ledger.with_allocation(reservation.allocation))
        else:
            self.rebuild({name}, frees=False)

    def give_back(self, ended: Iterable[Reservation]) -> None:
        """Stop counting reservations that ended. Nothing changes for a pod that is seen with its GPUs."""
        self.rebuild({known.allocation.node for known in ended if not self._is_seen(known)}, frees=True)

    def set_guest(self, guest: NonGpuPod) -> None:
        """A pod without GPUs came to a node, changed or ended."""
        if self.hosts.set_guest(guest):
            self.came += guest.takes != pod_records.NOTHING
            self._unsettle(guest.node)

    def replace_guests(self, guests: Iterable[NonGpuPod]) -> None:
        """There are these pods without GPUs and no others."""
        for name in self.hosts.replace_guests(guests):
            self._unsettle(name)

    def settle(self) -> None:
        """Bring `node_rooms` up to date."""
        while self.unsettled:
            name = self.unsettled.pop()
            if (record := self.nodes.get(name)) is None:
                self.node_rooms.forget(name)
            else:
                self.node_rooms.set(name, self.ledgers[name], self._left(record))

    def rebuild(self, nodes: Iterable[NodeName], *, frees: bool) -> None:
        """Compute the ledgers of nodes that changed; `frees` if they may have more room than before.

        One that is as before is kept, and with it all that follows from it: a pod is seen on its node as it was chosen.
        """
        for name in nodes:
            self.freed += frees
            self._unsettle(name)
            record = self.nodes.get(name)
            self.problems.pop(name, None)
            if record is None:
                self.ledgers.pop(name, None)
                self.rooms.forget(name)
            else:
                ledger = self._compute(record)
                if _is_alike(ledger, self.ledgers.get(name)):
                    continue
                self._keep(name, ledger)
                continue
            self.log.note(name, exists=False)

    def bound_on(self, name: NodeName) -> Iterable[Bound]:
        """The pods on a node that ask for GPUs. Not to be kept."""
        return self._on_node.get(name, {}).values()

    def resolved(self, shape: RequestShape, labels: Mapping[str, str], uid: PodUid | None) -> RequestShape:
        """What a pod asks for, with what depends on all other pods of its namespace (`groups`)."""
        if shape.affinity is None or (same := shape.affinity.same) is None:
            return shape
        own = [] if uid is None else [known.allocation.labels for known in self.reservations.of_pod(uid).values()]
        return groups.resolved(shape, labels, lambda namespace: self.label_index.like(namespace, same, own))

    def _unsettle(self, name: NodeName) -> None:
        self.unsettled.add(name)
        self.changes += 1

    def _count(self, record: PodRecord | None, number: int) -> None:
        ask = pod_records.NO_ASK if record is None else record.ask
        if ask.gpus:
            self.changes += 1
            self.asks[ask] += number
            if not self.asks[ask]:
                del self.asks[ask]

    def _left(self, record: NodeRecord) -> FreeHost | None:
        """What pods leave of a host, with those that are on their way to it."""
        if record.allocatable is None:
            return None
        on_node = self._on_node.get(record.name, {})
        reserved = self.reservations.on_node(record.name).items()
        takes = [known.takes for uid, known in reserved if uid not in on_node]
        return host.left(record.allocatable, [self.hosts.taken_on(record.name), *takes])

    def _came(self, record: Bound, *, moved: bool) -> set[NodeName]:
        """A pod is on a node now, or is another one there (`moved`). The nodes whose ledger changes by it."""
        uid = record.ref.uid
        self._on_node.setdefault(record.node, {})[uid] = record
        self.hosts.add(record.node, record.ask.host)
        if record.holds:
            self.label_index.add(record.ref.namespace, record.labels)
        if record.bypassed is not None or record.failed or record.outdated:
            self.bypassed[uid] = record
        as_chosen = not moved and self._is_as_chosen(record)
        # Seen on a node, a pod cannot be bound again: no choice in a Binding can come true any more. One that is
        # patched into a pod on its node can, for as long as the pod shows nothing of it and lives.
        bypassed_on = record.node if record.bypassed is not None else None
        ended = self.reservations.drop_pod(uid, but_bypassed_on=bypassed_on)
        return set() if as_chosen else {record.node, *ended}

    def _keep(self, name: NodeName, ledger: LedgerOrRefused) -> None:
        self.ledgers[name] = ledger
        self.rooms.set(name, room.of_ledger(ledger))
        self.log.note(name, exists=True)

    def _is_as_chosen(self, record: Bound) -> bool:
        """Whether a pod came to its node with what was reserved there for it and for nothing else: nearly every pod.

        All that its reservation counted for stays as it is.
        """
        chosen = self.reservations.of_pod(record.ref.uid)
        known = chosen.get(record.node)
        if known is None or len(chosen) > 1 or record.problem or record.allocation != known.allocation:
            return False
        return known.takes == record.ask.host and known.allocation.labels == record.labels

    def _is_seen(self, known: Reservation) -> bool:
        record = self._on_node.get(known.allocation.node, {}).get(known.allocation.pod.uid)
        return record is not None and record.allocation is not None

    def _compute(self, record: NodeRecord) -> LedgerOrRefused:
        reserved = (known.allocation for known in self.reservations.on_node(record.name).values())
        unit = self._resource_config.unit
        ledger, self.problems[record.name] = node_ledger.of_node(record, self.bound_on(record.name), reserved, unit)
        return ledger


def _is_alike(ledger: LedgerOrRefused, before: LedgerOrRefused | None) -> bool:
    """Whether nothing follows from a ledger that did not follow before. Ledgers are equal whatever labels pods have."""
    if ledger != before:
        return False
    if not (isinstance(ledger, NodeLedger) and isinstance(before, NodeLedger)):
        return True
    return all(held.labels == before.allocations[uid].labels for uid, held in ledger.allocations.items())


def label_index_of(pods: Iterable[PodRecord], reserved: Iterable[Allocation]) -> LabelIndex:
    """The labels of all that hold GPUs or are about to, from nothing but pods and choices."""
    holding = ((pod.ref.namespace, pod.labels) for pod in pods if isinstance(pod, Bound) and pod.holds)
    return LabelIndex(itertools.chain(holding, ((held.pod.namespace, held.labels) for held in reserved)))
