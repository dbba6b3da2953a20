"""Nodes and pods as the watches told of them, reservations, and one immutable ledger of each node.

One lock guards it, under which there is arithmetic only, never a request or a wait. Methods take it, but those of the
last part, which `controller.state` calls while it holds the lock.
"""

import functools
import itertools
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from controller.reservations import Reservation, Reservations
from gpushare.cluster import groups, node_ledger, node_records
from gpushare.cluster.groups import Counts, LabelIndex
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import AnyPod, Bound, NonGpuPod, Pending, PodRecord, Problem
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.capacity import NOTHING, Ask, FreeHost
from gpushare.model.ledger import Allocation, LedgerOrRefused, NodeLedger, RefusalReason, Refused
from gpushare.model.request import Policy, RequestShape
from gpushare.units import ResourceConfig


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The cluster at one moment, for readers that look at all of it. Copies; what they hold is immutable."""

    nodes: Collection[NodeRecord]
    pods: Collection[PodRecord]
    ledgers: Mapping[NodeName, LedgerOrRefused]
    confirmed: Collection[PodUid]  # the API server has said that they have their GPUs, and the watch has not
    problems: Mapping[PodRef, Problem]  # bound pods whose allocations cannot be read
    reserved: Collection[Allocation]  # choices whose memory is counted, also of pods that were seen on nodes
    chosen: Collection[Allocation]  # those of pods that were not seen with GPUs yet
    labels: Counts  # of pods that hold GPUs or are about to, as they are counted

    @functools.cached_property
    def pending(self) -> list[Pending]:
        return [pod for pod in self.pods if isinstance(pod, Pending)]

    @functools.cached_property
    def bypassed(self) -> list[Bound]:
        """Pods that got to their nodes without GPUs, or were rejected there, or can never start there."""
        bound = (pod for pod in self.pods if isinstance(pod, Bound) and pod.ref.uid not in self.confirmed)
        return [pod for pod in bound if pod.bypassed is not None or pod.failed or pod.outdated]

    @functools.cached_property
    def overridden(self) -> list[PodRecord]:
        """Pods whose authors chose devices themselves, which the webhook has undone."""
        return [pod for pod in self.pods if pod.overridden]


class Demand(NamedTuple):
    """What pods ask for at one moment."""

    asks: Counter[Ask]  # of all pods that hold GPUs or wait for them, and of those without GPUs on nodes
    changes: int
    came: int


class ChangedNode(NamedTuple):
    """What follows from a node for those who keep it elsewhere."""

    name: NodeName
    ledger: LedgerOrRefused | None  # None for a node that is gone
    left: FreeHost | None  # CPU and memory that pods leave of it; None if it is not known, as the next
    has: FreeHost | None  # CPU and memory that it gives to pods


class Index:
    """Safe for use by many threads. What has no `_` and is no method may be looked at, not changed."""

    def __init__(self, resource_config: ResourceConfig) -> None:
        self.lock = threading.Lock()
        self.freed = 0  # grows whenever a node may have got more room
        self.changes = 0  # of nodes and of requests
        self.came = 0  # pods, with and without GPUs
        self.pods: dict[PodUid, PodRecord] = {}
        self.label_index = LabelIndex()  # of all pods that hold GPUs or are about to
        self.reservations = Reservations(self.label_index)
        self.resource_config = resource_config
        self.namespace_policies: Mapping[str, Policy] = {}  # what namespaces say of their pods; replaced as a whole
        self._nodes: dict[NodeName, NodeRecord] = {}
        self._unhealthy: dict[NodeName, frozenset[int]] = {}
        self._ledgers: dict[NodeName, LedgerOrRefused] = {}
        self._problems: dict[NodeName, dict[PodRef, Problem]] = {}
        self._on_node: dict[NodeName, dict[PodUid, Bound]] = {}
        self._others = OtherPods()
        self._changed: set[NodeName] = set()  # nodes since the last `take_changed`

    # What the watches tell.

    def replace_nodes(self, nodes: Iterable[NodeRecord]) -> None:
        fresh = {record.name: record for record in nodes}
        with self.lock:
            for name in self._nodes.keys() - fresh.keys():
                self._set_node(name, None)
            for name, record in fresh.items():
                self._set_node(name, record)

    def set_node(self, name: NodeName, record: NodeRecord | None) -> None:
        """A node came, changed or went. What its pods hold is remembered for as long as they exist."""
        with self.lock:
            self._set_node(name, record)

    def set_unhealthy(self, name: NodeName, indices: frozenset[int]) -> None:
        """Somebody beside the plugin said which GPUs of a node must not be used; it may be known only later."""
        with self.lock:
            self._unhealthy.pop(name, None)
            if indices:
                self._unhealthy[name] = indices
            if (record := self._nodes.get(name)) is not None:
                self._set_node(name, record)

    def replace_pods(self, pods: Collection[AnyPod]) -> None:
        others = [pod for pod in pods if isinstance(pod, NonGpuPod)]
        fresh = {pod.ref.uid: pod for pod in pods if not isinstance(pod, NonGpuPod)}
        with self.lock:
            dirty: set[NodeName] = set()
            for uid in self.pods.keys() - fresh.keys():
                dirty |= self._set_pod(uid, None)
            for uid, record in fresh.items():
                dirty |= self._set_pod(uid, record)
            self.rebuild(dirty, frees=True)
            for name in self._others.replace(others):
                self._mark(name)

    def set_pod(self, pod: AnyPod) -> None:
        """A pod was added or changed. Whether it asks for GPUs never changes, and a node is never left."""
        with self.lock:
            if isinstance(pod, NonGpuPod):
                self._set_other(pod)
                return
            dirty = self._set_pod(pod.ref.uid, pod)
            gave_back = isinstance(pod, Bound) and pod.allocation is None
            self.rebuild(dirty, frees=gave_back or len(dirty) > 1)

    def forget_pod(self, pod: AnyPod) -> None:
        with self.lock:
            if isinstance(pod, NonGpuPod):
                self._set_other(pod._replace(takes=NOTHING))
            elif pod.ref.uid in self.pods:
                self.rebuild(self._set_pod(pod.ref.uid, None), frees=True)

    # Questions.

    def node(self, name: NodeName) -> NodeRecord | None:
        with self.lock:
            return self._nodes.get(name)

    def unhealthy_on(self, name: NodeName) -> frozenset[int]:
        with self.lock:
            return self._unhealthy.get(name, frozenset())

    def occupants(self, name: NodeName) -> tuple[LedgerOrRefused, list[Bound]]:
        """One node's ledger and the pods on it that ask for GPUs, as of one moment."""
        with self.lock:
            return self.ledger(name), list(self._on_node.get(name, {}).values())

    def pending(self, uid: PodUid) -> Pending | None:
        with self.lock:
            record = self.pods.get(uid)
            return record if isinstance(record, Pending) else None

    def reserved_on(self, uid: PodUid) -> frozenset[NodeName]:
        """Nodes on which memory is set aside for a pod that may be bound there already."""
        with self.lock:
            return frozenset(self.reservations.of_pod(uid))

    def resolve(self, shape: RequestShape, labels: Mapping[str, str], pod: PodRef | None = None) -> RequestShape:
        """What a pod asks for, with what its namespace says: the policy, and whether it may start its own group.

        Its own reservations are no members of that. Without a pod the answer is for all of a kind, and has no policy,
        on which what fits does not depend.
        """
        with self.lock:
            return self.resolved(shape, labels, pod)

    def unconfirmed(self) -> int:
        with self.lock:
            return sum(not reservation.confirmed for reservation in self.reservations.all())

    def snapshot(self) -> Snapshot:
        with self.lock:
            return Snapshot(
                nodes=list(self._nodes.values()),
                pods=list(self.pods.values()),
                ledgers=dict(self._ledgers),
                confirmed={known.allocation.pod.uid for known in self.reservations.all() if known.confirmed},
                problems={ref: why for on_node in self._problems.values() for ref, why in on_node.items()},
                reserved=self.reservations.counted(),
                chosen=[reservation.allocation for reservation in self.reservations.all()],
                labels=self.label_index.counts(),
            )

    def demand(self) -> Demand:
        with self.lock:
            pods, others, changes, came = list(self.pods.values()), self._others.counts(), self.changes, self.came
        asks = Counter(ask for pod in pods if (ask := pod.ask).gpus)
        for takes, number in others.items():
            asks[Ask.of_host(takes)] += number
        return Demand(asks, changes, came)

    def take_changed(self) -> list[ChangedNode]:
        """Nodes that have changed since the last call, as they are."""
        if not self._changed:
            return []
        with self.lock:
            names, self._changed = self._changed, set()
            return [
                ChangedNode(name, self._ledgers[name], self._left(record), record.allocatable)
                if (record := self._nodes.get(name)) is not None
                else ChangedNode(name, None, None, None)
                for name in names
            ]

    def mark_changed(self, names: Iterable[NodeName]) -> None:
        """What was taken of these was lost on the way."""
        with self.lock:
            self._changed.update(names)

    # Inside the lock, for `controller.state`.

    def ledger(self, name: NodeName) -> LedgerOrRefused:
        return self._ledgers.get(name) or Refused(RefusalReason.NO_INVENTORY, node_records.unknown(name))

    def reserve(self, reservation: Reservation) -> None:
        self.reservations.add(reservation)
        self.rebuild({reservation.allocation.node}, frees=False)

    def give_back(self, ended: Iterable[Reservation]) -> None:
        """Stop counting reservations that ended. Nothing changes for a pod that is seen with its GPUs."""
        self.rebuild({known.allocation.node for known in ended if not self._is_seen(known)}, frees=True)

    def rebuild(self, nodes: Iterable[NodeName], *, frees: bool) -> None:
        """Compute the ledgers of nodes that changed; `frees` if they may have more room than before."""
        # One that is as before is kept, and all that follows from it: a pod is seen on its node as it was chosen.
        for name in nodes:
            self.freed += frees
            self._mark(name)
            if (record := self._nodes.get(name)) is None:
                self._problems.pop(name, None)
                self._ledgers.pop(name, None)
            else:
                on_node = self._on_node.get(name, {}).values()
                reserved = (known.allocation for known in self.reservations.on_node(name).values())
                unit = self.resource_config.unit
                before = self._ledgers.get(name)
                ledger, self._problems[name] = node_ledger.of_node(record, on_node, reserved, unit, before)
                if not _is_alike(ledger, before):
                    self._ledgers[name] = ledger

    def resolved(self, shape: RequestShape, labels: Mapping[str, str], pod: PodRef | None) -> RequestShape:
        policy = None if pod is None else self.namespace_policies.get(pod.namespace)
        if policy is not None and shape.policy is None:
            shape = replace(shape, policy=policy)
        if shape.affinity is None or (same := shape.affinity.same) is None:
            return shape
        reserved = {} if pod is None else self.reservations.of_pod(pod.uid)
        own = [known.allocation.labels for known in reserved.values()]
        return groups.resolved(shape, labels, lambda namespace: self.label_index.like(namespace, same, own))

    def _set_node(self, name: NodeName, record: NodeRecord | None) -> None:
        if record is not None:
            record = node_records.marked_unhealthy(record, self._unhealthy.get(name, frozenset()))
        if self._nodes.get(name) == record:
            return
        if record is None:
            del self._nodes[name]
        else:
            self._nodes[name] = record
        self.rebuild({name}, frees=True)

    def _set_pod(self, uid: PodUid, record: PodRecord | None) -> set[NodeName]:
        """A pod came, changed or went. The nodes whose ledger changes by it; `rebuild` has to follow."""
        before, dirty = self.pods.get(uid), set[NodeName]()
        if before == record:
            return dirty
        self.came += before is None
        self.changes += 1
        if isinstance(before, Bound):
            del self._on_node[before.node][uid]
            if not self._on_node[before.node]:
                del self._on_node[before.node]
            if before.holds:
                self.label_index.remove(before.ref.namespace, before.labels)
            dirty.add(before.node)
        if record is None:
            del self.pods[uid]
            return dirty
        self.pods[uid] = record
        if isinstance(record, Bound):
            self._on_node.setdefault(record.node, {})[uid] = record
            if record.holds:
                self.label_index.add(record.ref.namespace, record.labels)
            # Seen on a node, a pod cannot be bound again: no choice in a Binding can still come true. One that is
            # patched into a pod on its node can, for as long as the pod shows nothing of it and lives.
            bypassed_on = record.node if record.bypassed is not None else None
            dirty |= {record.node, *self.reservations.drop_pod(uid, but_bypassed_on=bypassed_on)}
        return dirty

    def _set_other(self, pod: NonGpuPod) -> None:
        if self._others.put(pod):
            self.came += pod.takes != NOTHING
            self._mark(pod.node)

    def _mark(self, name: NodeName) -> None:
        self._changed.add(name)
        self.changes += 1

    def _left(self, record: NodeRecord) -> FreeHost | None:
        if record.allocatable is None:
            return None
        on_node = self._on_node.get(record.name, {})
        reserved = self.reservations.on_node(record.name).items()
        coming = (known.takes for uid, known in reserved if uid not in on_node)
        there = (pod.ask.host for pod in on_node.values())
        return record.allocatable.left_by(itertools.chain(there, coming, self._others.takes_on(record.name)))

    def _is_seen(self, known: Reservation) -> bool:
        record = self._on_node.get(known.allocation.node, {}).get(known.allocation.pod.uid)
        return record is not None and record.allocation is not None


def _is_alike(ledger: LedgerOrRefused, before: LedgerOrRefused | None) -> bool:
    """Whether nothing follows from a ledger that did not follow before. Ledgers are equal whatever labels pods have."""
    if ledger != before:
        return False
    if not (isinstance(ledger, NodeLedger) and isinstance(before, NodeLedger)):
        return True
    return all(held.labels == before.allocations[uid].labels for uid, held in ledger.allocations.items())


class OtherPods:
    """Pods without GPUs on every node, whether it is known or not, by what they take of its CPU and memory."""

    # They are ten times as many as others, so of each only a hash of its UID and a shared amount is kept.

    def __init__(self) -> None:
        self._on_node: dict[NodeName, dict[int, FreeHost]] = {}  # hashes are seeded: no two UIDs can be made to collide

    def takes_on(self, node: NodeName) -> Iterable[FreeHost]:
        return self._on_node.get(node, {}).values()

    def counts(self) -> Counter[FreeHost]:
        return Counter(itertools.chain.from_iterable(there.values() for there in self._on_node.values()))

    def put(self, pod: NonGpuPod) -> bool:
        """A pod came, changed or ended. Whether its node has another amount left."""
        there = self._on_node.setdefault(pod.node, {})
        before = there.pop(hash(pod.uid), NOTHING)
        if pod.takes != NOTHING:
            there[hash(pod.uid)] = pod.takes
        elif not there:
            del self._on_node[pod.node]
        return before != pod.takes

    def replace(self, pods: Iterable[NonGpuPod]) -> set[NodeName]:
        """There are these pods and no others. Nodes that may have another amount left."""
        nodes = set(self._on_node)
        self._on_node = {}
        for pod in pods:
            self.put(pod)
        return nodes | set(self._on_node)
