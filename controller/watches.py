"""What the watches of nodes and pods feed into the state."""

import logging
from dataclasses import dataclass, field
from typing import Final

from controller.state import ClusterState
from gpushare.cluster import node_records, records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.records import PodRecord
from gpushare.errors import WireError
from gpushare.identity import PodUid
from gpushare.kube.api import JsonObject
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as pods_wire

_LOG: Final = logging.getLogger(__name__)


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
        """Reduce a Node to what matters as soon as it was read. What is no node is left out."""
        try:
            name = node_records.name_of(node)
            return {"record": node_records.read(node, self.state.node(name), self.state.unhealthy_on(name))}
        except WireError as error:
            _complain("node", error)
            return {"record": None}

    def replace(self, objects: list[JsonObject]) -> None:
        """See Sink."""
        found = (_record(obj) for obj in objects)
        self.state.replace_nodes(record for record in found if record is not None)
        self.freshness.touch()

    def upsert(self, obj: JsonObject) -> None:
        """See Sink."""
        if (record := _record(obj)) is not None:
            self.state.upsert_node(record)
        self.freshness.touch()

    def remove(self, obj: JsonObject) -> None:
        """See Sink."""
        if (record := _record(obj)) is not None:
            self.state.remove_node(record.name)
        self.freshness.touch()


@dataclass(frozen=True, slots=True)
class PodSink:
    """Sink of the watch of all pods; those that ask for no GPU leave no trace."""

    state: ClusterState
    freshness: Freshness

    def keep(self, pod: JsonObject) -> JsonObject:
        """Reduce a Pod to what matters as soon as it was read. What is no pod is left out."""
        try:
            return {"uid": pods_wire.ref(pod).uid, "record": records.pod_record(pod, self.state.dialect)}
        except WireError as error:
            _complain("pod", error)
            return {"uid": PodUid(""), "record": None}

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


def _complain(kind: str, error: WireError) -> None:
    logs.event(_LOG, "object left out", level=logging.ERROR, kind=kind, error=str(error))


def _record(obj: JsonObject) -> NodeRecord | None:
    record: NodeRecord | None = obj["record"]
    return record


def _pod(obj: JsonObject) -> PodRecord | None:
    record: PodRecord | None = obj["record"]
    return record
