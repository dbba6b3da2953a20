"""The cluster as the watches tell of it, behind one lock, and questions about it that change nothing."""

import threading
from collections.abc import Iterable

from controller import cluster_index
from controller.cluster_index import ClusterIndex
from controller.label_index import Counts
from gpushare.cluster import cluster_ledger, node_records
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.records import Bound, Pending, PodRecord, Problem
from gpushare.cluster.verdicts import Changes
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.ledger import NodeLedger
from gpushare.resource_config import ResourceConfig
from gpushare.units import MemoryUnit


class ClusterCache:
    """Nodes and pods. Safe for use by many threads."""

    def __init__(self, *, resource_config: ResourceConfig) -> None:
        self.resource_config = resource_config
        self._lock = threading.Lock()
        self._index = ClusterIndex(resource_config)

    @property
    def unit(self) -> MemoryUnit:
        """What one `aliyun.com/gpu-mem` stands for."""
        return self.resource_config.unit

    # What the watches say.

    def replace_nodes(self, found: Iterable[NodeRecord]) -> None:
        """All nodes of the cluster."""
        with self._lock:
            fresh = {record.name: record for record in found}
            for name in self._index.nodes.keys() - fresh.keys():
                self._index.set_node(name, None)
            for name, record in fresh.items():
                self._index.set_node(name, record)

    def upsert_node(self, record: NodeRecord) -> None:
        """A node was added or changed."""
        with self._lock:
            self._index.set_node(record.name, record)

    def remove_node(self, name: NodeName) -> None:
        """A node is gone; what its pods hold is remembered for as long as they exist."""
        with self._lock:
            self._index.set_node(name, None)

    def set_unhealthy(self, node: NodeName, indices: frozenset[int]) -> None:
        """Somebody beside the plugin said which GPUs of a node must not be used: these and no others."""
        with self._lock:
            self._index.set_unhealthy(node, indices)

    def replace_pods(self, found: Iterable[PodRecord]) -> None:
        """All pods of the cluster that ask for GPUs."""
        with self._lock:
            fresh = {record.ref.uid: record for record in found}
            dirty: set[NodeName] = set()
            for uid in self._index.pods.keys() - fresh.keys():
                dirty |= self._index.set_pod(uid, None)
            for uid, record in fresh.items():
                dirty |= self._index.set_pod(uid, record)
            self._index.rebuild(dirty, frees=True)

    def upsert_pod(self, record: PodRecord) -> None:
        """A pod was added or changed."""
        with self._lock:
            dirty = self._index.set_pod(record.ref.uid, record)
            gave_back = isinstance(record, Bound) and record.allocation is None
            self._index.rebuild(dirty, frees=gave_back or len(dirty) > 1)

    def remove_pod(self, uid: PodUid) -> None:
        """A pod is gone, or asks for nothing any more."""
        with self._lock:
            if uid in self._index.pods:
                self._index.rebuild(self._index.set_pod(uid, None), frees=True)

    # Looking.

    def node(self, name: NodeName) -> NodeRecord | None:
        """What is known of a node."""
        with self._lock:
            return self._index.nodes.get(name)

    def unhealthy_on(self, name: NodeName) -> frozenset[int]:
        """What `set_unhealthy` was told last."""
        with self._lock:
            return self._index.unhealthy_on(name)

    def changed_since(self, sequence: int) -> Changes:
        """Nodes that changed after a sequence number; 0 for all."""
        with self._lock:
            changed, now = self._index.log.since(sequence), self._index.log.sequence
            if changed is None:
                return Changes(ledgers=dict(self._index.all_ledgers()), complete=True, sequence=now)
            known = self._index.nodes
            ledgers = {name: self._index.ledger(name) if name in known else None for name in changed}
            return Changes(ledgers=ledgers, complete=False, sequence=now)

    def ledger(self, name: NodeName) -> LedgerOrRefused:
        """One node's ledger, or why it has none."""
        with self._lock:
            return self._index.ledger(name)

    def occupants(self, name: NodeName) -> tuple[LedgerOrRefused, list[Bound]]:
        """One node's ledger and the pods on it that ask for GPUs, as of one moment."""
        with self._lock:
            return self._index.ledger(name), list(self._index.bound_on(name))

    def all_ledgers(self) -> dict[NodeName, LedgerOrRefused]:
        """Every known node."""
        with self._lock:
            return dict(self._index.all_ledgers())

    def pending(self, uid: PodUid) -> Pending | None:
        """A pod that waits for a node."""
        with self._lock:
            record = self._index.pods.get(uid)
            return record if isinstance(record, Pending) else None

    def all_pending(self) -> list[Pending]:
        """All pods that wait for a node."""
        with self._lock:
            return [record for record in self._index.pods.values() if isinstance(record, Pending)]

    def bypassed(self) -> list[Bound]:
        """Pods that got to their nodes without GPUs, or were rejected there; none that was just given them."""
        with self._lock:
            given = self._index.reservations.is_confirmed
            return [record for uid, record in self._index.bypassed.items() if not given(uid)]

    def overridden(self) -> list[PodRecord]:
        """Pods whose authors chose devices themselves, which the webhook has undone."""
        with self._lock:
            return list(self._index.overridden.values())

    def reserved_on(self, uid: PodUid) -> frozenset[NodeName]:
        """Nodes on which memory is set aside for a pod that may be bound there already."""
        with self._lock:
            return frozenset(self._index.reservations.of_pod(uid))

    def problems(self) -> dict[PodRef, Problem]:
        """Bound pods whose allocations cannot be read."""
        with self._lock:
            return {ref: why for on_node in self._index.problems.values() for ref, why in on_node.items()}

    def unknown_gpus(self) -> dict[NodeName, str]:
        """Nodes of which somebody has cordoned, or called unhealthy, GPUs that they do not have: which ones."""
        with self._lock:
            marked = [record for record in self._index.nodes.values() if record.cordon or record.unhealthy]
        return {record.name: ", ".join(found) for record in marked if (found := _unknown_gpus(record))}

    def unconfirmed(self) -> int:
        """Reservations whose request is being sent or in doubt."""
        with self._lock:
            return sum(not known.confirmed for known in self._index.reservations.all())

    @property
    def freed(self) -> int:
        """Grows whenever a node may have got more room."""
        return self._index.freed

    def audit(self) -> list[str]:
        """Differences between the ledger as it is kept and as computed from nodes and pods alone: none, ever."""
        with self._lock:
            nodes, pods = list(self._index.nodes.values()), list(self._index.pods.values())
            kept = {
                name: ledger for name, ledger in self._index.all_ledgers().items() if isinstance(ledger, NodeLedger)
            }
            reserved = self._index.reservations.counted()
            waiting = [known.allocation for known in self._index.reservations.all()]
            labels = self._index.label_index.counts()
        expected = cluster_ledger.from_records(nodes, pods)
        for allocation in reserved:
            if (ledger := expected.get(allocation.node)) is not None and allocation.pod.uid not in ledger.allocations:
                expected[allocation.node] = ledger.with_allocation(allocation)
        usable = {name: ledger for name, ledger in expected.items() if ledger.inventory.unit == self.unit}
        return cluster_ledger.differences(usable, kept) + _other_labels(
            cluster_index.label_index_of(pods, waiting).counts(), labels
        )


def _other_labels(expected: Counts, found: Counts) -> list[str]:
    wrong = [name for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name)]
    return [f"namespace {name}: disagree about the labels of pods that hold GPUs" for name in wrong]


def _unknown_gpus(record: NodeRecord) -> list[str]:
    if record.inventory is None:
        return []
    known = {gpu.index for gpu in record.inventory.gpus}
    return [*node_records.unknown_gpus(record), *(str(index) for index in sorted(record.unhealthy - known))]
