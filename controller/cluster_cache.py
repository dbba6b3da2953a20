"""The cluster as the watches tell of it, behind one lock, and questions about it that change nothing."""

import threading
from collections.abc import Iterable

from controller.cluster_index import ClusterIndex
from controller.snapshot import Snapshot
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.records import Bound, Pending, PodRecord
from gpushare.cluster.verdicts import Changes
from gpushare.identity import NodeName, PodUid
from gpushare.resource_config import ResourceConfig


class ClusterCache:
    """Nodes and pods. Safe for use by many threads."""

    def __init__(self, resource_config: ResourceConfig) -> None:
        self._unit = resource_config.unit
        self.lock = threading.Lock()
        self.cluster_index = ClusterIndex(resource_config)
        """Guarded by the lock."""

    # What the watches say.

    def replace_nodes(self, found: Iterable[NodeRecord]) -> None:
        """All nodes of the cluster."""
        with self.lock:
            fresh = {record.name: record for record in found}
            for name in self.cluster_index.nodes.keys() - fresh.keys():
                self.cluster_index.set_node(name, None)
            for name, record in fresh.items():
                self.cluster_index.set_node(name, record)

    def upsert_node(self, record: NodeRecord) -> None:
        """A node was added or changed."""
        with self.lock:
            self.cluster_index.set_node(record.name, record)

    def remove_node(self, name: NodeName) -> None:
        """A node is gone; what its pods hold is remembered for as long as they exist."""
        with self.lock:
            self.cluster_index.set_node(name, None)

    def set_unhealthy(self, node: NodeName, indices: frozenset[int]) -> None:
        """Somebody beside the plugin said which GPUs of a node must not be used: these and no others."""
        with self.lock:
            self.cluster_index.set_unhealthy(node, indices)

    def replace_pods(self, found: Iterable[PodRecord]) -> None:
        """All pods of the cluster that ask for GPUs."""
        with self.lock:
            fresh = {record.ref.uid: record for record in found}
            dirty: set[NodeName] = set()
            for uid in self.cluster_index.pods.keys() - fresh.keys():
                dirty |= self.cluster_index.set_pod(uid, None)
            for uid, record in fresh.items():
                dirty |= self.cluster_index.set_pod(uid, record)
            self.cluster_index.rebuild(dirty, frees=True)

    def upsert_pod(self, record: PodRecord) -> None:
        """A pod was added or changed."""
        with self.lock:
            dirty = self.cluster_index.set_pod(record.ref.uid, record)
            gave_back = isinstance(record, Bound) and record.allocation is None
            self.cluster_index.rebuild(dirty, frees=gave_back or len(dirty) > 1)

    def remove_pod(self, uid: PodUid) -> None:
        """A pod is gone, or asks for nothing any more."""
        with self.lock:
            if uid in self.cluster_index.pods:
                self.cluster_index.rebuild(self.cluster_index.set_pod(uid, None), frees=True)

    # Looking.

    def node(self, name: NodeName) -> NodeRecord | None:
        """What is known of a node."""
        with self.lock:
            return self.cluster_index.nodes.get(name)

    def unhealthy_on(self, name: NodeName) -> frozenset[int]:
        """What `set_unhealthy` was told last."""
        with self.lock:
            return self.cluster_index.unhealthy_on(name)

    def changed_since(self, sequence: int) -> Changes:
        """Nodes that changed after a sequence number; 0 for all."""
        with self.lock:
            changed, now = self.cluster_index.log.since(sequence), self.cluster_index.log.sequence
            if changed is None:
                return Changes(ledgers=dict(self.cluster_index.all_ledgers()), complete=True, sequence=now)
            known = self.cluster_index.nodes
            ledgers = {name: self.cluster_index.ledger(name) if name in known else None for name in changed}
            return Changes(ledgers=ledgers, complete=False, sequence=now)

    def occupants(self, name: NodeName) -> tuple[LedgerOrRefused, list[Bound]]:
        """One node's ledger and the pods on it that ask for GPUs, as of one moment."""
        with self.lock:
            return self.cluster_index.ledger(name), list(self.cluster_index.bound_on(name))

    def pending(self, uid: PodUid) -> Pending | None:
        """A pod that waits for a node."""
        with self.lock:
            record = self.cluster_index.pods.get(uid)
            return record if isinstance(record, Pending) else None

    def reserved_on(self, uid: PodUid) -> frozenset[NodeName]:
        """Nodes on which memory is set aside for a pod that may be bound there already."""
        with self.lock:
            return frozenset(self.cluster_index.reservations.of_pod(uid))

    @property
    def freed(self) -> int:
        """Grows whenever a node may have got more room."""
        return self.cluster_index.freed

    def snapshot(self) -> Snapshot:
        """All of it, as of one moment."""
        with self.lock:
            known, reservations = self.cluster_index, self.cluster_index.reservations
            return Snapshot(
                unit=self._unit,
                nodes=list(known.nodes.values()),
                pods=list(known.pods.values()),
                ledgers=dict(known.all_ledgers()),
                bypassed=[pod for uid, pod in known.bypassed.items() if not reservations.is_confirmed(uid)],
                overridden=list(known.overridden.values()),
                problems={ref: why for on_node in known.problems.values() for ref, why in on_node.items()},
                reserved=reservations.counted(),
                chosen=[one.allocation for one in reservations.all()],
                unconfirmed=sum(not one.confirmed for one in reservations.all()),
                labels=known.label_index.counts(),
            )
