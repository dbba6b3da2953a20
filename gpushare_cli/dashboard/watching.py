"""What may be read of the cluster, and the watches that keep the state equal to it. Changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.kube.watch import Reflector
from gpushare.runtime.clock import Clock
from gpushare.wire import fields, unhealthy
from gpushare_cli import reading
from gpushare_cli.dashboard import objects
from gpushare_cli.dashboard.state import State

Found = tuple[str, Any]
_PODS_ONLY: Final = {"fieldSelector": "involvedObject.kind=Pod"}
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is read."""

    nodes: bool = True
    namespaces: tuple[str, ...] = ()
    """Whose pods; empty for all."""

    @property
    def complete(self) -> bool:
        """All nodes and pods are read."""
        return self.nodes and not self.namespaces

    @property
    def words(self) -> str:
        """What is left out; empty if nothing is."""
        left_out = []
        if self.namespaces:
            left_out.append(f"only pods of {', '.join(self.namespaces)} are shown; others may hold the rest of a GPU")
        if not self.nodes:
            left_out.append("nodes may not be read: only GPUs that these pods hold are shown")
        return "; ".join(left_out)


def scope(api: KubeApi, namespaces: Sequence[str], own: Callable[[], str]) -> Scope:
    """What the user may read.

    Args:
        api: with the user's rights.
        namespaces: those that are asked for; empty for all that may be read.
        own: the namespace of a user who names none, who may not read all.

    Raises:
        KubeError: the cluster cannot be read; ForbiddenError if not even the pods of one namespace may be.
    """
    wanted = tuple(namespaces)
    if not wanted and not _may_list(api, "/api/v1/pods"):
        wanted = (own(),)
    for namespace in wanted:
        _probe(api, _pods(namespace))
    return Scope(nodes=_may_list(api, "/api/v1/nodes"), namespaces=wanted)


def reflectors(api: KubeApi, scope: Scope, state: State, clock: Clock) -> Mapping[str, Reflector[Found]]:
    """All watches that the scope allows, by what they are of."""
    found: dict[str, Reflector[Found]] = {}

    def add(what: str, path: str, reduce: "Reduce", put: "Put", params: Mapping[str, str] | None = None) -> None:
        sink = Kept(reduce, put)
        optional = what.startswith(("Events", "ConfigMaps"))
        found[what] = Reflector(
            api=api, path=path, sink=sink, clock=clock, params=dict(params or {}), optional=optional
        )

    if scope.nodes:
        add("nodes", "/api/v1/nodes", _node, state.put_node)
        add("ConfigMaps", reading.CONFIG_MAPS, _unhealthy, state.put_unhealthy)
    for namespace in scope.namespaces or ("",):
        of = f" of {namespace}" if namespace else ""
        add(f"pods{of}", _pods(namespace), _pod, state.put_pod)
        add(f"Events{of}", _pods(namespace).removesuffix("pods") + "events", _event, state.put_event, _PODS_ONLY)
    return found


Reduce = Callable[[JsonObject], Found | None]
Put = Callable[[str, Any], None]


@dataclass(eq=False)
class Kept:
    """A sink that knows which objects its collection has, so that a new list removes the others."""

    reduce: Reduce
    put: Put
    _keys: set[str] = field(init=False, default_factory=set)

    def read(self, obj: JsonObject) -> Found | None:
        """Reduced; None if it is of no interest or cannot be read."""
        try:
            return self.reduce(obj)
        except WireError:
            return None

    def replace(self, found: list[Found]) -> None:
        """The whole collection."""
        keys = {key for key, _ in found}
        for key in self._keys - keys:
            self.put(key, None)
        self._keys = keys
        for key, value in found:
            self.put(key, value)

    def upsert(self, found: Found) -> None:
        """Added or changed."""
        self._keys.add(found[0])
        self.put(*found)

    def remove(self, found: Found) -> None:
        """Gone."""
        self._keys.discard(found[0])
        self.put(found[0], None)


def _node(obj: JsonObject) -> Found:
    return _metadata(obj, "name"), objects.node(obj)


def _pod(obj: JsonObject) -> Found | None:
    pod = objects.pod(obj)
    return None if pod is None else (_metadata(obj, "uid"), pod)


def _event(obj: JsonObject) -> Found | None:
    event = objects.event(obj)
    return None if event is None else (_metadata(obj, "uid"), event)


def _unhealthy(obj: JsonObject) -> Found | None:
    marked = unhealthy.parse(obj)
    return None if marked is None else (marked.node, marked.gpus)


def _metadata(obj: JsonObject, key: str) -> str:
    return fields.needed(fields.mapping(obj, "metadata", "object"), key, "metadata")


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else "/api/v1/pods"


def _may_list(api: KubeApi, path: str) -> bool:
    try:
        _probe(api, path)
    except kube.ForbiddenError:
        return False
    return True


def _probe(api: KubeApi, path: str) -> None:
    api.list_page(path, {"limit": "1"}, keep=lambda _: None, timeout_s=_TIMEOUT_S)
