"""The cluster as the watches tell of it, behind one lock, and questions about it that change nothing."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.cluster_index import ClusterIndex
from controller.rooms import STEP, Rooms
from controller.snapshot import Snapshot
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.identity import NodeName, PodUid
from gpushare.units import ResourceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Nodes that somebody has not seen as they are now."""

    names: list[NodeName] | None
    """None if no one can tell any more which ones."""
    sequence: int
    """To ask with next."""


class ClusterCache:
    """Nodes and pods, as the sinks of `controller.watches` keep them. Safe for use by many threads."""

    def __init__(self, resource_config: ResourceConfig) -> None:
        self._unit = resource_config.unit
        self.lock = threading.Lock()
        self.cluster_index = ClusterIndex(resource_config)
        """Guarded by the lock."""

    def set_unhealthy(self, node: NodeName, indices: frozenset[int]) -> None:
        """Somebody beside the plugin said which GPUs of a node must not be used: these and no others."""
        with self.lock:
            self.cluster_index.set_unhealthy(node, indices)

    def node(self, name: NodeName) -> NodeRecord | None:
        """What is known of a node."""
        with self.lock:
            return self.cluster_index.nodes.get(name)

    def unhealthy_on(self, name: NodeName) -> frozenset[int]:
        """What `set_unhealthy` was told last."""
        with self.lock:
            return self.cluster_index.unhealthy_on(name)

    @property
    def rooms(self) -> Rooms:
        """What nodes have for simple pods, as of this very moment. To be looked at only."""
        return self.cluster_index.rooms

    def free_mib(self, percent: int) -> Mapping[NodeName, int]:
        """MiB free on each node on the best GPU that surely has so many per cent of compute left. Live."""
        step = -(-percent // STEP) * STEP
        known: Mapping[NodeName, int] | None = self.rooms.with_compute.get(step)
        if known is None:
            with self.lock:
                known = self.cluster_index.rooms.keep(step)
        return known

    def settle(self) -> None:
        """Bring the rooms on nodes (`controller.node_rooms`) up to date."""
        if self.cluster_index.unsettled:
            with self.lock:
                self.cluster_index.settle()

    @property
    def count(self) -> int:
        """Of nodes."""
        return len(self.cluster_index.ledgers)

    @property
    def sequence(self) -> int:
        """Number of the last change of a node."""
        return self.cluster_index.log.sequence

    def changed_since(self, sequence: int) -> Changed:
        """Nodes that changed, came or went after a sequence number."""
        with self.lock:
            log = self.cluster_index.log
            return Changed(names=log.since(sequence), sequence=log.sequence)

    def rooms_changed_since(self, sequence: int) -> Changed:
        """The same of rooms on nodes (`controller.node_rooms`), whose changes have other numbers."""
        with self.lock:
            log = self.cluster_index.node_rooms.log
            return Changed(names=log.since(sequence), sequence=log.sequence)

    def ledgers(self, names: Iterable[NodeName] | None = None) -> dict[NodeName, LedgerOrRefused]:
        """The ledgers of these nodes, as far as they are known, or of all."""
        with self.lock:
            known = self.cluster_index.ledgers
            return dict(known) if names is None else {name: known[name] for name in names if name in known}

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
                ledgers=dict(known.ledgers),
                bypassed=[pod for uid, pod in known.bypassed.items() if not reservations.is_confirmed(uid)],
                overridden=list(known.overridden.values()),
                problems={ref: why for on_node in known.problems.values() for ref, why in on_node.items()},
                reserved=reservations.counted(),
                chosen=[reservation.allocation for reservation in reservations.all()],
                unconfirmed=sum(not reservation.confirmed for reservation in reservations.all()),
                labels=known.label_index.counts(),
            )
