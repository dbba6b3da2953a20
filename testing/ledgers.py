"""The ledgers of a cluster from its objects alone, to compare with what a running part of it has."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare.cluster import node_ledger, node_records, pod_records
from gpushare.cluster.node_ledger import Ledgers
from gpushare.units import ResourceConfig


def of_objects(
    nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], resource_config: ResourceConfig
) -> Ledgers:
    """The ledger of each node.

    Args:
        nodes: all nodes, as the API server returns them.
        pods: all pods of all namespaces.
        resource_config: of the cluster.
    """
    return node_ledger.ledgers(map(node_records.read, nodes), (pod_records.read(pod, resource_config) for pod in pods))
