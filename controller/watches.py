"""What the watches of nodes and pods feed into the cluster cache."""

import logging
from dataclasses import dataclass
from typing import Final

from controller.state import ClusterState
from gpushare.cluster import node_records, pod_records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import AnyPod, Bound, NonGpuPod
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeSink:
    """Sink of the node watch. Most updates of a node are heartbeats, which change nothing here."""

    state: ClusterState

    def read(self, node: JsonObject) -> NodeRecord | None:
        """The GPUs of a node; None if it is no node."""
        cache = self.state.cache
        try:
            name = node_records.name_of(node)
            return node_records.read(node, cache.node(name), cache.unhealthy_on(name))
        except WireError as error:
            _complain("node", error)
            return None

    def replace(self, nodes: list[NodeRecord]) -> None:
        """Keep these nodes and no others."""
        fresh = {record.name: record for record in nodes}
        with self.state.cache.lock:
            index = self.state.cache.cluster_index
            for name in index.nodes.keys() - fresh.keys():
                index.set_node(name, None)
            for name, record in fresh.items():
                index.set_node(name, record)
            index.settle()

    def upsert(self, node: NodeRecord) -> None:
        """Keep a node that was added or changed."""
        with self.state.cache.lock:
            self.state.cache.cluster_index.set_node(node.name, node)

    def remove(self, node: NodeRecord) -> None:
        """Forget a node; what its pods hold is remembered for as long as they exist."""
        with self.state.cache.lock:
            self.state.cache.cluster_index.set_node(node.name, None)


@dataclass(frozen=True, slots=True)
class PodSink:
    """Sink of the watch of all pods. Of those that ask for no GPU only what they take of their nodes is kept."""

    state: ClusterState

    def read(self, pod: JsonObject) -> AnyPod | None:
        """What a pod asks for and holds. Which of the two it is never changes, and a node is never left."""
        try:
            return pod_records.read(pod, self.state.resource_config) or pod_records.non_gpu_pod(pod)
        except WireError as error:
            _complain("pod", error)
            return None

    def replace(self, pods: list[AnyPod]) -> None:
        """Keep these pods and no others."""
        fresh = {record.ref.uid: record for record in pods if not isinstance(record, NonGpuPod)}
        dirty: set[NodeName] = set()
        with self.state.cache.lock:
            index = self.state.cache.cluster_index
            for uid in index.pods.keys() - fresh.keys():
                dirty |= index.set_pod(uid, None)
            for uid, record in fresh.items():
                dirty |= index.set_pod(uid, record)
            index.rebuild(dirty, frees=True)
            index.replace_guests(record for record in pods if isinstance(record, NonGpuPod))
            index.settle()  # no request has to do it for all nodes

    def upsert(self, pod: AnyPod) -> None:
        """Keep a pod that was added or changed."""
        with self.state.cache.lock:
            index = self.state.cache.cluster_index
            if isinstance(pod, NonGpuPod):
                index.set_guest(pod)
                return
            dirty = index.set_pod(pod.ref.uid, pod)
            gave_back = isinstance(pod, Bound) and pod.allocation is None
            index.rebuild(dirty, frees=gave_back or len(dirty) > 1)

    def remove(self, pod: AnyPod) -> None:
        """Forget a pod that is gone, or asks for nothing any more."""
        with self.state.cache.lock:
            index = self.state.cache.cluster_index
            if isinstance(pod, NonGpuPod):
                index.set_guest(pod._replace(takes=pod_records.NOTHING))
            elif pod.ref.uid in index.pods:
                index.rebuild(index.set_pod(pod.ref.uid, None), frees=True)


def _complain(kind: str, error: WireError) -> None:
    logs.event(_LOG, "object left out", level=logging.ERROR, kind=kind, error=str(error))
