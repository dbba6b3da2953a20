"""The cluster's objects as the watches have them, and what has changed since somebody last asked. Safe for threads."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.cluster.pod_records import NonGpuPod
from gpushare.identity import NodeName
from gpushare.wire import pods as pods_wire
from gpushare_cli.reading import Objects

Object = Mapping[str, Any]
_MOST_EVENTS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Since the last look."""

    nodes: frozenset[str]
    """Whose objects or pods have changed."""
    gone: tuple[Object, ...]
    """Pods that were deleted while they were on a node; their last states."""


@dataclass(eq=False)
class State:
    """All that was read."""

    changed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _nodes: dict[str, Object] = field(init=False, default_factory=dict)
    _pods: dict[str, Object | NonGpuPod] = field(init=False, default_factory=dict)
    """By UID; of those without GPUs what they take of their node."""
    _on_node: dict[str, set[str]] = field(init=False, default_factory=dict)
    _events: dict[str, Object] = field(init=False, default_factory=dict)
    _unhealthy: dict[NodeName, frozenset[int]] = field(init=False, default_factory=dict)
    _dirty: set[str] = field(init=False, default_factory=set)
    _gone: list[Object] = field(init=False, default_factory=list)

    # What the watches tell.

    def put_node(self, name: str, node: Object | None) -> None:
        """A node was added or changed; None if it is gone."""
        with self._lock:
            if self._nodes.get(name) == node:
                return
            if node is None:
                del self._nodes[name]
            else:
                self._nodes[name] = node
            self._mark(name)

    def put_pod(self, uid: str, pod: "Object | NonGpuPod | None") -> None:
        """A pod was added or changed; None if it is gone."""
        with self._lock:
            before = self._pods.get(uid)
            if before == pod:
                return
            if pod is None:
                del self._pods[uid]
            else:
                self._pods[uid] = pod
            if pod is None and before is not None and not isinstance(before, NonGpuPod):
                self._gone.append(before)
            for each, add in ((before, False), (pod, True)):
                if each is not None and not isinstance(each, NonGpuPod):
                    node = pods_wire.node_of(each) or ""
                    (set.add if add else set.discard)(self._on_node.setdefault(node, set()), uid)
                    self._mark(node)
            self.changed.set()

    def put_event(self, uid: str, event: Object | None) -> None:
        """An Event; None if it has expired, which does not make undone what it says."""
        with self._lock:
            if event is not None:
                self._events[uid] = event
                while len(self._events) > _MOST_EVENTS:
                    del self._events[next(iter(self._events))]
            self.changed.set()

    def put_unhealthy(self, node: str, gpus: frozenset[int] | None) -> None:
        """Numbers of a node's GPUs that Aliyun's ConfigMap calls unhealthy; None if there is no such ConfigMap."""
        with self._lock:
            if gpus is None:
                self._unhealthy.pop(NodeName(node), None)
            else:
                self._unhealthy[NodeName(node)] = gpus
            self._mark(node)

    def mark(self, nodes: Sequence[str]) -> None:
        """Something else about these nodes has changed."""
        with self._lock:
            for name in nodes:
                self._mark(name)

    def _mark(self, node: str) -> None:
        self._dirty.add(node)
        self.changed.set()

    # What the picture is made of.

    def take_changes(self) -> Changes:
        """What has changed since this was last called."""
        with self._lock:
            found = Changes(nodes=frozenset(self._dirty), gone=tuple(self._gone))
            self._dirty.clear()
            self._gone.clear()
            return found

    def node(self, name: str) -> tuple[Object | None, Sequence[Object], frozenset[int]]:
        """A node, its pods that concern GPUs, and the numbers of GPUs that Aliyun's ConfigMap calls unhealthy."""
        with self._lock:
            pods = [self._pods[uid] for uid in sorted(self._on_node.get(name, ()))]
            on_it = [pod for pod in pods if not isinstance(pod, NonGpuPod)]
            return self._nodes.get(name), on_it, self._unhealthy.get(NodeName(name), frozenset())

    def events(self) -> Sequence[Object]:
        """All that are kept."""
        with self._lock:
            return list(self._events.values())

    def cluster(self) -> Objects:
        """Everything but the events, as other commands read it once."""
        with self._lock:
            pods = list(self._pods.values())
            return Objects(
                nodes=tuple(map(dict, self._nodes.values())),
                pods=tuple(dict(pod) for pod in pods if not isinstance(pod, NonGpuPod)),
                others=tuple(pod for pod in pods if isinstance(pod, NonGpuPod)),
                unhealthy=dict(self._unhealthy),
            )
