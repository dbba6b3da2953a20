"""The whole cluster's ledger from nothing but nodes and pods. Pure; what the running state must always be equal to."""

from collections.abc import Iterable

from gpushare.cluster import pod_records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, PodRecord
from gpushare.identity import NodeName
from gpushare.model.ledger import NodeLedger

Ledgers = dict[NodeName, NodeLedger]


def from_records(nodes: Iterable[NodeRecord], pods: Iterable[PodRecord | None]) -> Ledgers:
    """The ledger from what was kept of the objects.

    Nodes without a readable inventory, and those with a pod of which no one can tell what it holds or where, have none.
    """
    on_node: dict[NodeName, list[Bound]] = {}
    for pod in pods:
        if isinstance(pod, Bound):
            on_node.setdefault(pod.node, []).append(pod)
    ledgers: Ledgers = {}
    for node in nodes:
        if node.inventory is not None:
            pods_there = on_node.get(node.name, ())
            held, problems = pod_records.all_held(pods_there, node.inventory.unit)
            foreign = any(map(pod_records.has_foreign_gpus, pods_there))
            if not foreign and all(problem.counted for problem in problems.values()):
                ledgers[node.name] = NodeLedger.of(node.inventory, held)
    return ledgers


def differences(expected: Ledgers, actual: Ledgers) -> list[str]:
    """What two ledgers disagree about, in words; empty if they are equal."""
    lines: list[str] = []
    for name in sorted(expected.keys() | actual.keys()):
        left, right = expected.get(name), actual.get(name)
        if left is None or right is None:
            lines.append(f"node {name}: {'not expected' if left is None else 'missing'}")
        elif left.inventory.gpus != right.inventory.gpus:
            lines.append(f"node {name}: other GPUs")
        elif dict(left.allocations) != dict(right.allocations):
            wrong = set(left.allocations).symmetric_difference(right.allocations) or left.allocations
            pods = ", ".join(sorted(str((left.allocations.get(uid) or right.allocations[uid]).pod) for uid in wrong))
            lines.append(f"node {name}: disagree about {pods}")
    return lines
