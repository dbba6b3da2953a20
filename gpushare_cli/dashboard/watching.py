"""A copy of as much of the cluster as a picture needs, kept equal to it by watches."""

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from gpushare import names
from gpushare.cluster import claim_records, node_records, pod_records
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.cluster.pod_records import NonGpuPod
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.kube.watch import Reflector
from gpushare.runtime.clock import Clock
from gpushare.wire import fields, pods as pods_wire
from gpushare_cli import reading
from gpushare_cli.dashboard.access import Scope, path_of
from gpushare_cli.dashboard.views import first_of_each
from gpushare_cli.reading import Objects

T = TypeVar("T")
Object = Mapping[str, Any]
_CLAIMS: Final = "ResourceClaims"
_PODS_ONLY: Final = {"fieldSelector": "involvedObject.kind=Pod"}
_STALE_S: Final = 150.0  # all is well below some 100 s: see `Reflector.stale_for`
_TROUBLE_S: Final = 10.0  # a stream that is cut, and taken up again at the next try, is nothing to tell
_MOST_EVENTS: Final = 2000
_OTHERS_EVENTS: Final = frozenset({"Preempted", "Evicted", "TaintManagerEviction", "UnexpectedAdmissionError"})
_LONGEST: Final = 1024
_LONGEST_NAME: Final = 253
_OF_NODE: Final = (
    ("metadata", ("name", "labels", ("annotations", (names.ANNOTATION_INVENTORY, names.ANNOTATION_CORDON)))),
    ("spec", ("taints", "unschedulable")),
    ("status", ("addresses", "allocatable")),
)
_OF_POD: Final = (
    *("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp", "ownerReferences"),
    ("annotations", reading.own_annotations),
)
_OF_BOUND_SPEC: Final = ("nodeName", "schedulerName", "priority")
_NOT_OF_SPEC: Final = frozenset({"initContainers", "containers", "ephemeralContainers", "volumes"})
"""Of pods that wait: what decides nothing about a place and may be large, and what is reduced."""
_OF_EVENT: Final = ("lastTimestamp", "eventTime", "firstTimestamp")


def _visible_devices(entry: Object) -> Object:
    return entry if entry.get("name") == names.ENV_VISIBLE_DEVICES else {}


_OF_CONTAINER: Final = ("name", "resources", "restartPolicy", ("env", _visible_devices))


@dataclass(eq=False, kw_only=True)
class Collection(Generic[T]):
    """The sink of one watch: by key, what its objects are reduced to."""

    reduce: Callable[[JsonObject], tuple[str, T] | None]  # None for what is of no interest
    changed: Callable[[str, T | None, T | None], None]  # told key, former and new value under the lock, if they differ
    lock: threading.Lock  # of all collections, and of what `changed` does
    items: dict[str, T] = field(default_factory=dict)

    def read(self, obj: JsonObject) -> tuple[str, T] | None:
        with contextlib.suppress(WireError):
            return self.reduce(obj)
        return None

    def replace(self, found: list[tuple[str, T]]) -> None:
        with self.lock:
            for key in self.items.keys() - dict(found).keys():
                self._put(key, None)
            for key, value in found:
                self._put(key, value)

    def upsert(self, found: tuple[str, T]) -> None:
        with self.lock:
            self._put(*found)

    def remove(self, found: tuple[str, T]) -> None:
        with self.lock:
            self._put(found[0], None)

    def _put(self, key: str, value: T | None) -> None:
        before = self.items.get(key)
        if before == value:
            return
        if value is None:
            del self.items[key]
        else:
            self.items[key] = value
        self.changed(key, before, value)


class _Events(Collection[Object]):  # the latest ones; that they expire does not make undone what they say
    def _put(self, key: str, value: Object | None) -> None:
        if value is not None:
            self.items[key] = value
            if len(self.items) > 2 * _MOST_EVENTS:
                newest = reversed(self.items.items())
                kept = first_of_each(newest, lambda item: item[1]["involvedObject"]["namespace"], _MOST_EVENTS // 20)
                self.items = dict(reversed(list(itertools.islice(kept, _MOST_EVENTS))))


@dataclass(eq=False)
class Changes:
    """What somebody who sees a scope was not told yet. They are collected as long as somebody holds them."""

    scope: Scope
    nodes: set[str] = field(default_factory=set)
    gone: list[Object] = field(default_factory=list)


class Watched:
    """All that was read, for those who see as much of it as a scope has. Safe for threads."""

    def __init__(self, api: KubeApi, scope: Scope, clock: Clock) -> None:
        self.reflectors: dict[str, Reflector[Any]] = {}
        self._lock = threading.Lock()
        self._on_node: dict[str, dict[str, Object]] = {}  # pods that concern GPUs by node, empty for none, and UID
        self._told = weakref.WeakSet[Changes]()
        self._nodes = Collection(
            reduce=_keyed("name", partial(reading.kept, wanted=_OF_NODE)), changed=self._mark, lock=self._lock
        )
        self._unhealthy = Collection(reduce=_unhealthy, changed=self._mark, lock=self._lock)
        self._claims = Collection(reduce=_claim, changed=self._claim_changed, lock=self._lock)
        self._claims_on: dict[str, dict[str, ClaimRecord]] = {}  # by node and UID
        self._ended: set[str] = set()
        self._events = _Events(reduce=_keyed("uid", reduced_event), changed=self._mark, lock=self._lock)
        self._pods: list[Collection[Object | NonGpuPod]] = []

        def add(what: str, path: str, sink: Collection[Any], params: Mapping[str, str] | None = None) -> None:
            optional = what.startswith(("Events", "ConfigMaps", _CLAIMS))
            self.reflectors[what] = Reflector(
                api=api, path=path, sink=sink, clock=clock, params=dict(params or {}), optional=optional
            )

        if scope.nodes:
            add("nodes", "/api/v1/nodes", self._nodes)
            add("ConfigMaps", reading.CONFIG_MAPS, self._unhealthy)
            if scope.complete:
                add(_CLAIMS, reading.CLAIMS, self._claims)
        for namespace in ("",) if scope.namespaces is None else scope.namespaces:
            of = f" of {namespace}" if namespace else ""
            self._pods.append(Collection(reduce=_keyed("uid", reduced_pod), changed=self._pod_changed, lock=self._lock))
            add(f"pods{of}", path_of(namespace, "pods"), self._pods[-1])
            add(f"Events{of}", path_of(namespace, "events"), self._events, _PODS_ONLY)

    def start(self, stop: threading.Event) -> None:
        for name, reflector in self.reflectors.items():
            threading.Thread(target=self._run, args=(name, reflector, stop), name=name, daemon=True).start()

    def _run(self, name: str, reflector: Reflector[Any], stop: threading.Event) -> None:
        reflector.run(stop)
        self._ended.add(name)  # it must not be read, or is not there

    @property
    def is_read(self) -> bool:
        needed = {name: each for name, each in self.reflectors.items() if not each.optional or name == _CLAIMS}
        return all(each.synced.is_set() or name in self._ended for name, each in needed.items())

    @property
    def problem(self) -> str:
        needed = {name: each for name, each in self.reflectors.items() if not each.optional}
        failing = {name: why for name, each in needed.items() if (why := each.failing(_TROUBLE_S))}
        if failing:
            return f"this may be old: {', '.join(failing)} cannot be read ({next(iter(failing.values()))})"
        late = [name for name, each in needed.items() if each.stale_for() > _STALE_S]
        return f"the API server has not answered for minutes about {', '.join(late)}" if late else ""

    def follow(self, scope: Scope) -> Changes:
        with self._lock:
            changes = Changes(scope, {*self._nodes.items, *self._on_node})
            self._told.add(changes)
            return changes

    def take_changes(self, of: Changes) -> tuple[set[str], list[Object]]:
        """Since this was last called: nodes, empty for none, whose objects or pods have changed, and deleted pods."""
        with self._lock:
            found = of.nodes, of.gone
            of.nodes, of.gone = set(), []
            return found

    def mark(self, nodes: Iterable[str], of: Changes) -> None:
        with self._lock:
            of.nodes.update(nodes)

    def claims(self, node: str, scope: Scope) -> Sequence[ClaimRecord] | None:
        """Those on a node; None if they are not read."""
        if (reflector := self.reflectors.get(_CLAIMS)) is None or not reflector.synced.is_set():
            return None
        with self._lock:
            every = [claim for _, claim in sorted(self._claims_on.get(node, {}).items())]
        return [claim for claim in every if scope.shows(claim.pod.namespace)]

    def node(self, name: str, scope: Scope) -> tuple[Object | None, Sequence[Object], frozenset[int]]:
        """A node, its pods that concern GPUs, and the numbers of GPUs that Aliyun's ConfigMap calls unhealthy."""
        with self._lock:
            pods = [pod for _, pod in sorted(self._on_node.get(name, {}).items()) if scope.shows(_namespace(pod))]
            return self._nodes.items.get(name), pods, self._unhealthy.items.get(name, frozenset())

    def events(self, scope: Scope) -> Sequence[Object]:
        with self._lock:
            every = list(self._events.items.values())
        return [each for each in every if scope.shows_events(each["involvedObject"]["namespace"])]

    def objects(self, scope: Scope) -> Objects:
        """Pods alone, where it does not have everything."""
        with self._lock:
            pods = list(itertools.chain.from_iterable(each.items.values() for each in self._pods))
            if not scope.complete:
                ours = (pod for pod in pods if not isinstance(pod, NonGpuPod) and scope.shows(_namespace(pod)))
                return Objects(pods=tuple(map(dict, ours)))
            return Objects(
                nodes=tuple(map(dict, self._nodes.items.values())),
                pods=tuple(dict(pod) for pod in pods if not isinstance(pod, NonGpuPod)),
                others=tuple(pod for pod in pods if isinstance(pod, NonGpuPod)),
                unhealthy={NodeName(node): gpus for node, gpus in self._unhealthy.items.items()},
            )

    def _mark(self, node: str, _before: object, _after: object) -> None:
        for each in self._told:
            each.nodes.add(node)

    def _claim_changed(self, uid: str, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        for claim in filter(None, (before, after)):
            self._claims_on.setdefault(claim.node or "", {}).pop(uid, None)
            self._mark(claim.node or "", before, after)
        if after is not None:
            self._claims_on[after.node or ""][uid] = after

    def _pod_changed(self, uid: str, before: Object | NonGpuPod | None, after: Object | NonGpuPod | None) -> None:
        if isinstance(before, Mapping):
            self._on_node[pods_wire.node_of(before) or ""].pop(uid, None)
        if isinstance(after, Mapping):
            self._on_node.setdefault(pods_wire.node_of(after) or "", {})[uid] = after
        for pod in (each for each in (before, after) if isinstance(each, Mapping)):
            for told in self._told:
                if told.scope.shows(_namespace(pod)):
                    told.nodes.add(pods_wire.node_of(pod) or "")
                    told.gone += [pod] if after is None else []


def _namespace(pod: Object) -> str:
    return str(pod["metadata"]["namespace"])


def _keyed(key: str, reduce: Callable[[Object], T | None]) -> Callable[[JsonObject], tuple[str, T] | None]:
    def reduced(obj: JsonObject) -> tuple[str, T] | None:
        value = reduce(obj)
        metadata = fields.mapping(obj, "metadata", "object")
        return None if value is None else (fields.needed(metadata, key, "metadata"), value)

    return reduced


def _claim(obj: JsonObject) -> tuple[str, ClaimRecord] | None:
    claim = claim_records.read(obj)
    return None if claim is None else (claim.uid, claim)


def _unhealthy(obj: JsonObject) -> tuple[str, frozenset[int]] | None:
    marked = node_records.read_unhealthy(obj)
    return None if marked is None else (marked.node, marked.gpus)


def reduced_pod(obj: Object) -> Object | NonGpuPod | None:
    """A pod that asks for GPUs, less of one that has a node; of others what they take of their node, if anything."""
    if not reading.may_hold_gpus(obj):
        return pod_records.non_gpu_pod(obj)
    whole = fields.mapping(obj, "spec", "pod")
    spec = _OF_BOUND_SPEC if pods_wire.node_of(obj) is not None else whole.keys() - _NOT_OF_SPEC
    containers = (("initContainers", _OF_CONTAINER), ("containers", _OF_CONTAINER))
    return reading.kept(obj, (("metadata", _OF_POD), ("spec", (*spec, *containers)), ("status", dict)))


def reduced_event(obj: Object) -> Object | None:
    """An Event on a pod that is of this system or means that a pod was moved away; None for all others.

    Anyone who may write Events decides how long each of their texts is: the API server limits only the whole.
    """
    reason = fields.text(obj, "reason", "event")
    if not (reason.startswith(names.EVENT_PREFIX) or reason in _OTHERS_EVENTS):
        return None
    uid = fields.text(fields.mapping(obj, "metadata", "event"), "uid", "metadata")
    about = fields.mapping(obj, "involvedObject", "event")
    return {
        **reading.kept(obj, _OF_EVENT),
        "metadata": {"uid": uid},
        "type": "Warning" if obj.get("type") == "Warning" else "Normal",
        "reason": reason[:_LONGEST_NAME],
        "message": fields.text(obj, "message", "event")[:_LONGEST],
        "involvedObject": {key: fields.text(about, key, "event")[:_LONGEST_NAME] for key in ("namespace", "name")},
    }
