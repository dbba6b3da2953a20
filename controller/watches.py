"""What the watches of nodes and pods feed into the state."""

import logging
from dataclasses import dataclass
from typing import Final

from controller.state import ClusterState
from gpushare.cluster import node_records, records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.records import PodRecord
from gpushare.errors import WireError
from gpushare.kube.api import JsonObject
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeSink:
    """Sink of the node watch. Most updates of a node are heartbeats, which change nothing here."""

    state: ClusterState

    def read(self, node: JsonObject) -> NodeRecord | None:
        """See Sink."""
        try:
            name = node_records.name_of(node)
            return node_records.read(node, self.state.cache.node(name), self.state.cache.unhealthy_on(name))
        except WireError as error:
            _complain("node", error)
            return None

    def replace(self, found: list[NodeRecord]) -> None:
        """See Sink."""
        self.state.cache.replace_nodes(found)

    def upsert(self, found: NodeRecord) -> None:
        """See Sink."""
        self.state.cache.upsert_node(found)

    def remove(self, found: NodeRecord) -> None:
        """See Sink."""
        self.state.cache.remove_node(found.name)


@dataclass(frozen=True, slots=True)
class PodSink:
    """Sink of the watch of all pods; those that ask for no GPU leave no trace."""

    state: ClusterState

    def read(self, pod: JsonObject) -> PodRecord | None:
        """See Sink. What a pod asks for never changes, so one that is left out was never known."""
        try:
            return records.pod_record(pod, self.state.resource_config)
        except WireError as error:
            _complain("pod", error)
            return None

    def replace(self, found: list[PodRecord]) -> None:
        """See Sink."""
        self.state.cache.replace_pods(found)

    def upsert(self, found: PodRecord) -> None:
        """See Sink."""
        self.state.cache.upsert_pod(found)

    def remove(self, found: PodRecord) -> None:
        """See Sink."""
        self.state.cache.remove_pod(found.ref.uid)


def _complain(kind: str, error: WireError) -> None:
    logs.event(_LOG, "object left out", level=logging.ERROR, kind=kind, error=str(error))
