"""The ledgers of a cluster from its objects alone, to compare with what a running part of it has."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare.cluster import books, node_records, records
from gpushare.cluster.books import Books
from gpushare.dialect import Dialect


def of_objects(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], dialect: Dialect) -> Books:
    """The ledger of each node.

    Args:
        nodes: all nodes, as the API server returns them.
        pods: all pods of all namespaces.
        dialect: of the cluster.
    """
    return books.of_records(map(node_records.read, nodes), (records.pod_record(pod, dialect) for pod in pods))
