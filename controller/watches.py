"""What the controller watches: nodes and pods, and small collections that it can do without.

Of those, what it cannot read counts as empty. What was read before stays: a server that starts refuses for a moment.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from controller.index import Index
from gpushare import names
from gpushare.cluster import budgets, claim_records, node_records, pod_records
from gpushare.cluster.budgets import Budget
from gpushare.cluster.node_records import Marked, NodeRecord
from gpushare.cluster.pod_records import AnyPod
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.kube.watch import Reflector
from gpushare.model.request import Policy
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock
from gpushare.wire import fields

_LOG: Final = logging.getLogger(__name__)
PATIENCE_S: Final = 20.0  # how long to wait for the first list
ASK_AGAIN_S: Final = 60.0  # if reading is forbidden, an administrator may allow it
BUDGETS_V1: Final = "/apis/policy/v1/poddisruptionbudgets"
BUDGETS_V1BETA1: Final = "/apis/policy/v1beta1/poddisruptionbudgets"  # up to 1.20
NAMESPACES: Final = "/api/v1/namespaces"
CONFIG_MAPS: Final = f"/api/v1/namespaces/{names.UNHEALTHY_NAMESPACE}/configmaps"
V = TypeVar("V")
Found = tuple[str, V | None]  # what was read of an object: its key, and what it means; None for nothing


@dataclass(frozen=True, slots=True)
class NodeSink:
    """Sink of the node watch. Most updates of a node are heartbeats, which change nothing here."""

    index: Index
    dra: Index | None = None  # of the same nodes with their GPUs of mode dra

    def read(self, node: JsonObject) -> NodeRecord | None:
        try:
            name = node_records.name_of(node)
            return node_records.read(node, self.index.node(name), self.index.unhealthy_on(name))
        except WireError as error:
            _complain("node", error)
            return None

    def replace(self, nodes: list[NodeRecord]) -> None:
        self.index.replace_nodes(nodes)
        if self.dra is not None:
            self.dra.replace_nodes(view for node in nodes if (view := claim_records.view(node)))

    def upsert(self, node: NodeRecord) -> None:
        if self.dra is not None and node is not self.index.node(node.name):
            self.dra.set_node(node.name, claim_records.view(node))
        self.index.set_node(node.name, node)

    def remove(self, node: NodeRecord) -> None:
        self.index.set_node(node.name, None)
        if self.dra is not None:
            self.dra.set_node(node.name, None)


@dataclass(frozen=True, slots=True)
class PodSink:
    """Sink of the watch of all pods. Of those that ask for no GPU only what they take of their nodes is kept."""

    index: Index
    note: Callable[[JsonObject], None] = lambda _: None  # who else looks at each, and may raise WireError

    def read(self, pod: JsonObject) -> AnyPod | None:
        try:
            self.note(pod)
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


@dataclass(kw_only=True, eq=False)
class OptionalWatch(Generic[V]):
    """Follows one collection, if it may, as the sink of its own reflector."""

    api: KubeApi
    clock: Clock
    paths: Sequence[str]  # of the collection in the versions that servers may have, the best first
    kind: str  # of the objects, for the log
    read_one: Callable[[str, JsonObject], "Found[V] | None"]  # None leaves it out; a WireError is logged
    effect: str  # what is different without, for the log
    right: str  # what is to be granted, for the log
    params: Mapping[str, str] = field(default_factory=dict)  # label selectors
    changed: Callable[[Mapping[str, V], Mapping[str, V]], None] = lambda _before, _now: None
    by_key: Mapping[str, V] = field(init=False, default_factory=dict)  # replaced as a whole: readers take no lock
    is_listed: bool = field(init=False, default=False)  # whether all of it was read once
    _synced: threading.Event = field(init=False, default_factory=threading.Event)
    _refused: threading.Event = field(init=False, default_factory=threading.Event)
    _running: "Reflector[Found[V]] | None" = field(init=False, default=None)
    _path: str = field(init=False, default="")
    _began: float | None = field(init=False, default=None)

    @property
    def path(self) -> str:
        """What it is about, for people."""
        return self.paths[0]

    def values(self) -> Sequence[V]:
        return tuple(self.by_key.values())

    def stale_for(self) -> float:
        """Seconds since the server last answered about the collection; not a number while it is not read."""
        running = self._running
        return running.stale_for() if running else float("nan")

    def settled(self) -> bool:
        """Whether the collection was read, or cannot be read soon."""
        if self._synced.is_set() or self._refused.is_set():
            return True
        return self._began is not None and self.clock.monotonic() - self._began >= PATIENCE_S

    def run(self, stop: threading.Event) -> None:
        """Follow it until `stop` is set. Never raises for what the server or the network does."""
        self._began = self.clock.monotonic()
        backoff = Backoff()
        while not stop.is_set():
            try:
                self._path = self._readable()
            except kube.KubeError as error:
                delay = backoff.next_s()
                logs.event(_LOG, "watch failed", level=logging.WARNING, path=self.path, error=str(error), retry_s=delay)
                self.clock.wait(stop, delay)
                continue
            if self._path:
                started = self.clock.monotonic()
                api, path, clock, params = self.api, self._path, self.clock, dict(self.params)
                self._running = Reflector(
                    api=api, path=path, sink=self, clock=clock, params=params, optional=True, synced=self._synced
                )
                self._running.run(stop)
                self._running = None
                # The server has another version now, or the right was taken away.
                if self.clock.monotonic() - started >= ASK_AGAIN_S:
                    backoff.reset()
                self.clock.wait(stop, backoff.next_s())
            else:
                self._refused.set()
                self.clock.wait(stop, ASK_AGAIN_S)

    # The sink.

    def read(self, obj: JsonObject) -> "Found[V] | None":
        try:
            return self.read_one(self._path, obj)
        except WireError as error:
            _complain(self.kind, error)
            return None

    def replace(self, found: "list[Found[V]]") -> None:
        self.is_listed = True
        self._keep({key: value for key, value in found if value is not None})

    def upsert(self, found: "Found[V]") -> None:
        key, value = found
        rest = {known: kept for known, kept in self.by_key.items() if known != key}
        self._keep(rest if value is None else {**rest, key: value})

    def remove(self, found: "Found[V]") -> None:
        self.upsert((found[0], None))

    def _keep(self, now: Mapping[str, V]) -> None:
        before, self.by_key = self.by_key, now
        self.changed(before, now)

    def _readable(self) -> str:
        """The path to watch; empty if there is none."""
        absent = kube.NotFoundError("")
        for path in self.paths:
            try:
                self.api.get(path, {"limit": "1"})
            except kube.NotFoundError as error:
                absent = error
            except kube.ForbiddenError as error:
                self._complain(error, f"grant the controller {self.right}")
                return ""
            else:
                return path
        self._complain(absent, "none; this server has no such objects")
        return ""

    def _complain(self, error: kube.KubeError, fix: str) -> None:
        effect = "what was read before stays as it was" if self._synced.is_set() else self.effect
        logs.event(_LOG, "not watched", level=logging.WARNING, path=self.path, error=str(error), effect=effect, fix=fix)


def disruption_budgets(*, api: KubeApi, clock: Clock) -> OptionalWatch[Budget]:
    """The cluster's PodDisruptionBudgets, for whom to evict last."""

    def read(path: str, obj: JsonObject) -> Found[Budget]:
        name = f"{obj['metadata'].get('namespace')}/{obj['metadata'].get('name')}"
        try:
            return name, budgets.parse(obj, empty_is_all=path == BUDGETS_V1)
        except WireError as error:
            logs.event(_LOG, "budget left out", level=logging.ERROR, budget=name, error=str(error))
            return name, None

    paths, kind = (BUDGETS_V1, BUDGETS_V1BETA1), "PodDisruptionBudget"
    effect = "preemption takes no account of PodDisruptionBudgets"
    right = "list and watch of poddisruptionbudgets in the API group policy"
    return OptionalWatch(api=api, clock=clock, paths=paths, kind=kind, read_one=read, effect=effect, right=right)


def namespace_policies(*, api: KubeApi, clock: Clock, index: Index) -> OptionalWatch[Policy]:
    """Policies of namespaces, by their label. Without them, those of pods and of the cluster count."""

    def read(_path: str, obj: JsonObject) -> Found[Policy]:
        metadata = fields.mapping(obj, "metadata", "namespace")
        name, labels = fields.text(metadata, "name", "metadata"), fields.mapping(metadata, "labels", "metadata")
        try:
            return name, Policy.parse(str(labels.get(names.LABEL_POLICY, "")))
        except ValueError as error:
            logs.event(_LOG, "label has no effect", level=logging.WARNING, namespace=name, error=str(error))
            return name, None

    def keep(_before: Mapping[str, Policy], now: Mapping[str, Policy]) -> None:
        index.namespace_policies = now

    return OptionalWatch(
        api=api,
        clock=clock,
        paths=(NAMESPACES,),
        params={"labelSelector": names.LABEL_POLICY},
        kind="namespace",
        read_one=read,
        changed=keep,
        effect=f"the label {names.LABEL_POLICY} of namespaces has no effect",
        right="list and watch of namespaces",
    )


def unhealthy_gpus(*, api: KubeApi, clock: Clock, index: Index) -> OptionalWatch[Marked]:
    """Aliyun's way to say which GPUs must not be used: a ConfigMap of other programs' for each node."""

    def read(_path: str, obj: JsonObject) -> Found[Marked] | None:
        marked = node_records.read_unhealthy(obj)
        return None if marked is None else (marked.node, marked)

    def mark(before: Mapping[str, Marked], now: Mapping[str, Marked]) -> None:
        for name in before.keys() | now.keys():
            node, old = NodeName(name), before.get(name)
            new = now.get(name) or Marked(node)
            if new == old:
                continue
            if new.problem and (old is None or old.problem != new.problem):
                which = f"{names.UNHEALTHY_NAMESPACE}/{names.PREFIX_UNHEALTHY}{name}"
                logs.event(_LOG, "unhealthy GPUs unreadable", level=logging.ERROR, config_map=which, error=new.problem)
            if new.gpus != index.unhealthy_on(node):
                logs.event(_LOG, "GPUs called unhealthy", node=name, gpus=sorted(new.gpus))
                index.set_unhealthy(node, new.gpus)

    return OptionalWatch(
        api=api,
        clock=clock,
        paths=(CONFIG_MAPS,),
        kind="ConfigMap",
        read_one=read,
        changed=mark,
        effect=f"ConfigMaps {names.PREFIX_UNHEALTHY}NODE keep no GPU from being used",
        right=f"list and watch of configmaps in namespace {names.UNHEALTHY_NAMESPACE}",
    )


def _complain(kind: str, error: WireError) -> None:
    logs.event(_LOG, "object left out", level=logging.ERROR, kind=kind, error=str(error))
