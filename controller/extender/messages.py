"""What kube-scheduler sends and what it expects back. Pure.

Go reads keys in any case and writes them as it spells them; so does this module. Everything that comes in is checked
before anybody else looks at it, and what is wrong is said with its path.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gpushare.errors import WireError
from gpushare.identity import NodeName, PodUid
from gpushare.kube.api import JsonObject

MAX_SCORE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArgs:
    """Arguments of filter and prioritize."""

    pod: JsonObject
    names: Sequence[NodeName]
    nodes: Sequence[JsonObject] | None
    """The same nodes as whole objects, if the scheduler does not cache them (nodeCacheCapable: false)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindArgs:
    """Arguments of bind."""

    namespace: str
    name: str
    uid: PodUid
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """Every node of the arguments is in exactly one of the three."""

    fits: Sequence[NodeName]
    failed: Mapping[NodeName, str] = field(default_factory=dict)
    """Preemption may help there."""
    unresolvable: Mapping[NodeName, str] = field(default_factory=dict)
    """Preemption cannot help there."""


def node_args(body: bytes) -> NodeArgs:
    """Decode ExtenderArgs.

    Raises:
        WireError: they are not; says what is wrong where.
    """
    value = _object(_load(body), "the body")
    found = _lower(value)
    if found.get("pod") is None:
        raise WireError("Pod: missing; expected ExtenderArgs {Pod, Nodes, NodeNames}")
    pod = _pod(found["pod"])
    if found.get("nodenames") is not None:
        return NodeArgs(pod=pod, names=_texts(found["nodenames"], "NodeNames"), nodes=None)
    if found.get("nodes") is None:
        return NodeArgs(pod=pod, names=(), nodes=None)
    items = _lower(_object(found["nodes"], "Nodes")).get("items")
    nodes = [_object(node, f"Nodes.items[{i}]") for i, node in enumerate(_list(items, "Nodes.items"))]
    return NodeArgs(pod=pod, names=[_node_name(node, i) for i, node in enumerate(nodes)], nodes=nodes)


def bind_args(body: bytes) -> BindArgs:
    """Decode ExtenderBindingArgs.

    Raises:
        WireError: they are not; says what is wrong where.
    """
    found = _lower(_object(_load(body), "the body"))
    return BindArgs(
        namespace=_text(found.get("podnamespace"), "PodNamespace"),
        name=_text(found.get("podname"), "PodName"),
        uid=PodUid(_text(found.get("poduid"), "PodUID")),
        node=NodeName(_text(found.get("node"), "Node")),
    )


def filter_result(result: FilterResult, args: NodeArgs) -> bytes:
    """Encode ExtenderFilterResult in the form in which the nodes came."""
    answer: JsonObject = {
        "Nodes": None,
        "NodeNames": result.fits,
        "FailedNodes": result.failed,
        "FailedAndUnresolvableNodes": result.unresolvable,
        "Error": "",
    }
    if args.nodes is not None:
        fits = set(result.fits)
        answer["Nodes"] = {
            "metadata": {},
            "items": [node for name, node in zip(args.names, args.nodes, strict=True) if name in fits],
        }
        answer["NodeNames"] = None
    return orjson.dumps(answer)


def filter_error(message: str) -> bytes:
    """Encode an ExtenderFilterResult that fails the attempt."""
    return orjson.dumps(
        {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": message}
    )


def priorities(scores: Iterable[tuple[NodeName, int]]) -> bytes:
    """Encode a HostPriorityList."""
    return orjson.dumps([{"Host": name, "Score": max(0, min(score, MAX_SCORE))} for name, score in scores])


def bind_result(error: str = "") -> bytes:
    """Encode an ExtenderBindingResult."""
    return orjson.dumps({"Error": error})


def _load(body: bytes) -> object:
    if not body:
        raise WireError("the body: empty; expected JSON")
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(f"the body: not JSON (line {error.lineno}, column {error.colno})") from error
    return value


def _lower(value: JsonObject) -> JsonObject:
    return {key.lower(): item for key, item in value.items()}


def _object(value: object, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise WireError(f"{path}: expected an object, found {_kind(value)}")
    return value


def _list(value: object, path: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise WireError(f"{path}: expected a list, found {_kind(value)}")
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise WireError(f"{path}: expected a text, found {_kind(value)}")
    return value


def _texts(value: object, path: str) -> list[NodeName]:
    found = _list(value, path)
    # The list has a few thousand names and is checked on every call.
    if set(map(type, found)) - {str}:
        i = next(i for i, name in enumerate(found) if not isinstance(name, str))
        raise WireError(f"{path}[{i}]: expected a text, found {_kind(found[i])}")
    return found


def _node_name(node: JsonObject, i: int) -> NodeName:
    path = f"Nodes.items[{i}].metadata"
    return NodeName(_text(_object(node.get("metadata"), path).get("name"), f"{path}.name"))


def _pod(value: object) -> JsonObject:
    """A pod that the functions of `gpushare.wire.pods` can read without surprise."""
    pod = _object(value, "Pod")
    metadata = _object(pod.get("metadata"), "Pod.metadata")
    for key in ("labels", "annotations"):
        entries = _optional(metadata, key, "Pod.metadata")
        for name, text in entries.items():
            if not isinstance(text, str):
                raise WireError(f"Pod.metadata.{key}[{name}]: expected a text, found {_kind(text)}")
    spec = _object(pod.get("spec"), "Pod.spec")
    for key in ("initContainers", "containers"):
        for i, item in enumerate(_list(spec.get(key), f"Pod.spec.{key}")):
            path = f"Pod.spec.{key}[{i}]"
            container = _object(item, path)
            _text(container.get("name"), f"{path}.name")
            resources = _optional(container, "resources", path)
            for kind in ("limits", "requests"):
                _optional(resources, kind, f"{path}.resources")
    return pod


def _optional(parent: JsonObject, key: str, path: str) -> JsonObject:
    value = parent.get(key)
    return {} if value is None else _object(value, f"{path}.{key}")


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case str():
            return "a text" if value else "an empty text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"
