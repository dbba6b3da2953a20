"""The cluster at one moment, for readers that look at all of it. Pure; nothing here waits for a lock."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controller import cluster_index
from gpushare.cluster import cordons, node_records
from gpushare.cluster import world as cluster_world
from gpushare.cluster.groups import Counts
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, PodRecord, Problem
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import Allocation
from gpushare.model.ledger import NodeLedger
from gpushare.units import MemoryUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Copies; what they hold is immutable."""

    unit: MemoryUnit
    nodes: Collection[NodeRecord]
    pods: Collection[PodRecord]
    ledgers: Mapping[NodeName, LedgerOrRefused]
    bypassed: Collection[Bound]
    """Pods that got to their nodes without GPUs, or were rejected there, or can never start there; none that was just
    given GPUs."""
    overridden: Collection[PodRecord]
    """Pods whose authors chose devices themselves, which the webhook has undone."""
    problems: Mapping[PodRef, Problem]
    """Bound pods whose allocations cannot be read."""
    reserved: Collection[Allocation]
    """Choices whose memory is counted; some may still arrive though their pods were seen on nodes."""
    chosen: Collection[Allocation]
    """Those of pods that were not seen with GPUs yet."""
    unconfirmed: int
    """Of those, how many are being sent or in doubt."""
    labels: Counts
    """Of the pods that hold GPUs or are about to, as they are counted."""

    def unknown_gpus(self) -> dict[NodeName, str]:
        """Nodes of which somebody has cordoned, or called unhealthy, GPUs that they do not have: which ones."""
        return {record.name: ", ".join(unknown) for record in self.nodes if (unknown := _unknown_gpus(record))}

    def differences(self) -> list[str]:
        """Between the ledger as it is kept and as computed from nodes and pods alone: none, ever."""
        kept = {name: ledger for name, ledger in self.ledgers.items() if isinstance(ledger, NodeLedger)}
        expected = cluster_world.ledgers(self.nodes, self.pods)
        for allocation in self.reserved:
            if (ledger := expected.get(allocation.node)) is not None and allocation.pod.uid not in ledger.allocations:
                expected[allocation.node] = ledger.with_allocation(allocation)
        usable = {name: ledger for name, ledger in expected.items() if ledger.inventory.unit == self.unit}
        labels = cluster_index.label_index_of(self.pods, self.chosen).counts()
        return cluster_world.differences(usable, kept) + _other_labels(labels, self.labels)


def _other_labels(expected: Counts, actual: Counts) -> list[str]:
    wrong = [name for name in sorted(expected.keys() | actual.keys()) if expected.get(name) != actual.get(name)]
    return [f"namespace {name}: disagree about the labels of pods that hold GPUs" for name in wrong]


def _unknown_gpus(record: NodeRecord) -> list[str]:
    if record.inventory is None or not (record.cordon or record.unhealthy):
        return []
    known = {number for gpu in record.inventory.gpus for number in cordons.numbers(gpu)}
    return [*node_records.unknown_gpus(record), *(str(index) for index in sorted(record.unhealthy - known))]
