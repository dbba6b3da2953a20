"""What the watches of nodes and pods tell the index."""

import logging
from dataclasses import dataclass
from typing import Final

from controller.index import Index
from gpushare.cluster import node_records, pod_records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import AnyPod
from gpushare.errors import WireError
from gpushare.kube.api import JsonObject
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeSink:
    """Sink of the node watch. Most updates of a node are heartbeats, which change nothing here."""

    index: Index

    def read(self, node: JsonObject) -> NodeRecord | None:
        try:
            name = node_records.name_of(node)
            return node_records.read(node, self.index.node(name), self.index.unhealthy_on(name))
        except WireError as error:
            _complain("node", error)
            return None

    def replace(self, nodes: list[NodeRecord]) -> None:
        self.index.replace_nodes(nodes)

    def upsert(self, node: NodeRecord) -> None:
        self.index.set_node(node.name, node)

    def remove(self, node: NodeRecord) -> None:
        self.index.set_node(node.name, None)


@dataclass(frozen=True, slots=True)
class PodSink:
    """Sink of the watch of all pods. Of those that ask for no GPU only what they take of their nodes is kept."""

    index: Index

    def read(self, pod: JsonObject) -> AnyPod | None:
        try:
            return pod_records.read(pod, self.index.resource_config) or pod_records.non_gpu_pod(pod)
        except WireError as error:
            _complain("pod", error)
            return None

    def replace(self, pods: list[AnyPod]) -> None:
        self.index.replace_pods(pods)

    def upsert(self, pod: AnyPod) -> None:
        self.index.set_pod(pod)

    def remove(self, pod: AnyPod) -> None:
        self.index.forget_pod(pod)


def _complain(kind: str, error: WireError) -> None:
    logs.event(_LOG, "object left out", level=logging.ERROR, kind=kind, error=str(error))
