"""What the watches of nodes and pods feed into the state."""

from dataclasses import dataclass, field

from controller import records
from controller.records import NodeRecord, PodRecord
from controller.state import ClusterState
from gpushare.identity import NodeName, PodUid
from gpushare.kube.api import JsonObject
from gpushare.runtime.clock import Clock


@dataclass(slots=True)
class Freshness:
    """When a watch last said anything."""

    clock: Clock
    at: float = field(default=float("nan"))

    def touch(self) -> None:
        """It just did."""
        self.at = self.clock.monotonic()

    def age_s(self) -> float:
        """Seconds since; not a number before the first word."""
        return self.clock.monotonic() - self.at


@dataclass(frozen=True, slots=True)
class NodeSink:
    """Sink of the node watch. Most updates of a node are heartbeats, which change nothing here."""

    state: ClusterState
    freshness: Freshness

    def keep(self, node: JsonObject) -> JsonObject:
        """Reduce a Node to what matters as soon as it was read."""
        return {"record": records.node_record(node, self.state.node(NodeName(node["metadata"]["name"])))}

    def replace(self, objects: list[JsonObject]) -> None:
        """See Sink."""
        self.state.replace_nodes(_record(obj) for obj in objects)
        self.freshness.touch()

    def upsert(self, obj: JsonObject) -> None:
        """See Sink."""
        self.state.upsert_node(_record(obj))
        self.freshness.touch()

    def remove(self, obj: JsonObject) -> None:
        """See Sink."""
        self.state.remove_node(_record(obj).name)
        self.freshness.touch()


@dataclass(frozen=True, slots=True)
class PodSink:
    """Sink of the watch of all pods; those that ask for no GPU leave no trace."""

    state: ClusterState
    freshness: Freshness

    def keep(self, pod: JsonObject) -> JsonObject:
        """Reduce a Pod to what matters as soon as it was read."""
        return {"uid": pod["metadata"]["uid"], "record": records.pod_record(pod, self.state.unit)}

    def replace(self, objects: list[JsonObject]) -> None:
        """See Sink."""
        found = (_pod(obj) for obj in objects)
        self.state.replace_pods(record for record in found if record is not None)
        self.freshness.touch()

    def upsert(self, obj: JsonObject) -> None:
        """See Sink."""
        record = _pod(obj)
        if record is not None:
            self.state.upsert_pod(record)
        self.freshness.touch()

    def remove(self, obj: JsonObject) -> None:
        """See Sink."""
        self.state.remove_pod(PodUid(obj["uid"]))
        self.freshness.touch()


def _record(obj: JsonObject) -> NodeRecord:
    record: NodeRecord = obj["record"]
    return record


def _pod(obj: JsonObject) -> PodRecord | None:
    record: PodRecord | None = obj["record"]
    return record
