"""What kube-scheduler sends and what it expects back. Pure.

Go reads the keys of its own structures in any case and writes them as it spells them, and so does this module. Keys of
maps and of Kubernetes' objects are exact.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import orjson

from controller.extender import name_lists
from controller.extender.name_lists import NameList, NameLists
from controller.preemption import Victims
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodUid
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare.wire.fields import JsonObject

MAX_SCORE: Final = 10
_HOST: Final = '{"Host":"'
_SCORES: Final = [f'","Score":{score}}},' for score in range(MAX_SCORE + 1)]
_MAX_INT32: Final = 2**31 - 1
_KEYS: Final = {
    key.lower(): key
    for key in (
        "Pod", "Nodes", "NodeNames", "items",
        "NodeNameToVictims", "NodeNameToMetaVictims", "Pods", "NumPDBViolations", "UID",
        "PodNamespace", "PodName", "PodUID", "Node",
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArgs:
    """Arguments of filter and prioritize."""

    pod: JsonObject
    names: Sequence[NodeName]
    nodes: Sequence[JsonObject] | None
    """The same nodes as whole objects, if the scheduler does not cache them (nodeCacheCapable: false)."""
    known: NameList | None = None
    """The names as a list that was answered with before, if they are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptArgs:
    """Arguments of preempt."""

    pod: JsonObject
    priority: int
    victims: Mapping[NodeName, Victims]
    """Whom the scheduler would evict from each node where that makes room for all that it counts itself."""


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


def node_args(body: bytes, lists: NameLists | None = None) -> NodeArgs:
    """Decode ExtenderArgs.

    Args:
        body: of the request.
        lists: lists of names that need not be decoded again.

    Raises:
        WireError: they are not; says what is wrong where.
    """
    head, sent = name_lists.split(body)
    if lists is not None and sent and (known := lists.get(sent)) is not None:
        given = _object(head)
        args = _spelled(given)
        # Of two keys that are the same in Go, the later one counts: both must be read.
        if len(args) == len(given) and args.get("NodeNames", sent) is None:
            pod = _pod(args, "ExtenderArgs {Pod, Nodes, NodeNames}")
            return NodeArgs(pod=pod, names=known.names, nodes=None, known=known)
    args = _load(body)
    pod = _pod(args, "ExtenderArgs {Pod, Nodes, NodeNames}")
    if args.get("NodeNames") is not None:
        names = cast(Sequence[NodeName], fields.strings(args, "NodeNames", ""))
        return NodeArgs(pod=pod, names=names, nodes=None)
    if args.get("Nodes") is None:
        return NodeArgs(pod=pod, names=(), nodes=None)
    nodes = fields.objects(_spelled(fields.mapping(args, "Nodes", "")), "items", "Nodes")
    return NodeArgs(pod=pod, names=[_node_name(node, i) for i, node in enumerate(nodes)], nodes=nodes)


def preempt_args(body: bytes) -> PreemptArgs:
    """Decode ExtenderPreemptionArgs, with whole pods (nodeCacheCapable: false) or with their UIDs.

    Raises:
        WireError: they are not; says what is wrong where.
    """
    args = _load(body)
    pod = _pod(args, "ExtenderPreemptionArgs {Pod, NodeNameToVictims, NodeNameToMetaVictims}")
    is_meta = args.get("NodeNameToMetaVictims") is not None
    key, uid_of = ("NodeNameToMetaVictims", _uid) if is_meta else ("NodeNameToVictims", _uid_of_whole)
    nodes = fields.mapping(args, key, "")
    return PreemptArgs(
        pod=pod,
        priority=_int32(pod["spec"], "priority", "Pod.spec", least=-_MAX_INT32 - 1),
        victims={NodeName(name): _victims(victims, f"{key}[{name}]", uid_of) for name, victims in nodes.items()},
    )


def bind_args(body: bytes) -> BindArgs:
    """Decode ExtenderBindingArgs.

    Raises:
        WireError: they are not; says what is wrong where.
    """
    args = _load(body)
    return BindArgs(
        namespace=fields.needed(args, "PodNamespace", ""),
        name=fields.needed(args, "PodName", ""),
        uid=PodUid(fields.needed(args, "PodUID", "")),
        node=NodeName(fields.needed(args, "Node", "")),
    )


def filter_result(result: FilterResult, args: NodeArgs, lists: NameLists | None = None) -> bytes:
    """Encode ExtenderFilterResult in the form in which the nodes came.

    What no preemption helps is in both maps, where the second counts: Kubernetes 1.20 knows the first one only, and its
    kube-scheduler would say nothing of these nodes.

    Args:
        result: what to say.
        args: of the request.
        lists: remembers the names that fit, which prioritize is asked about next.
    """
    if args.nodes is not None:
        chosen = set(result.fits)
        items = [node for name, node in zip(args.names, args.nodes, strict=True) if name in chosen]
        nodes, fits = orjson.dumps({"metadata": {}, "items": items}), b"null"
    else:
        everywhere = args.known is not None and len(result.fits) == len(args.names)
        nodes, fits = b"null", args.known.sent if args.known and everywhere else orjson.dumps(result.fits)
        if lists is not None:
            lists.keep(fits, result.fits)
    failed, unresolvable = _entries(result.failed), _entries(result.unresolvable)
    return b"".join(
        (
            b'{"Nodes":',
            nodes,
            b',"NodeNames":',
            fits,
            b',"FailedNodes":{',
            failed,
            b"," if failed and unresolvable else b"",
            unresolvable,
            b'},"FailedAndUnresolvableNodes":{',
            unresolvable,
            b'},"Error":""}',
        )
    )


class Entries(Mapping[NodeName, str]):
    """Entries of a JSON object, ready to be sent."""

    def __init__(self, count: int, sent: bytes) -> None:
        """So many entries with commas between them; no name comes twice."""
        self.sent = sent
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._decoded())

    def __getitem__(self, name: NodeName) -> str:
        return self._decoded()[name]

    def _decoded(self) -> dict[NodeName, str]:
        return cast(dict[NodeName, str], orjson.loads(b"{%s}" % self.sent))


def _entries(texts: Mapping[NodeName, str]) -> bytes:
    return texts.sent if isinstance(texts, Entries) else orjson.dumps(texts)[1:-1]


def filter_error(message: str) -> bytes:
    """Encode an ExtenderFilterResult that fails the attempt."""
    return orjson.dumps(
        {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": message}
    )


def priorities(names: Sequence[NodeName], scores: Iterable[int]) -> bytes:
    """Encode a HostPriorityList; the scores are 0 to MAX_SCORE."""
    ends = [_SCORES[score] for score in scores]
    plain: Iterable[str] = names
    if not _is_plain("".join(names)):
        plain = [orjson.dumps(name).decode()[1:-1] for name in names]
    # Three times as quick as a string for each, and twelve times as an object for each.
    entries = _HOST.join(map(operator.add, plain, ends))
    return f"[{_HOST if entries else ''}{entries[:-1]}]".encode()


def _is_plain(text: str) -> bool:
    """Whether JSON has the string as it is. The names of nodes are."""
    return text.isprintable() and '"' not in text and "\\" not in text


def preempt_result(victims: Mapping[NodeName, Victims]) -> bytes:
    """Encode ExtenderPreemptionResult. It has no place for an error: without nodes, no one is evicted."""
    return orjson.dumps(
        {
            "NodeNameToMetaVictims": {
                node: {"Pods": [{"UID": uid} for uid in each.pods], "NumPDBViolations": each.violations}
                for node, each in victims.items()
            }
        }
    )


def bind_result(error: str = "") -> bytes:
    """Encode an ExtenderBindingResult."""
    return orjson.dumps({"Error": error})


def _load(body: bytes) -> JsonObject:
    return _spelled(_object(body))


def _object(body: bytes) -> JsonObject:
    if not body:
        raise WireError("the body: empty; expected JSON")
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(f"the body: not JSON (line {error.lineno}, column {error.colno})") from error
    return fields.an_object(value, "the body")


def _spelled(value: JsonObject) -> JsonObject:
    """The same with keys as Go spells them."""
    return {_KEYS.get(key.lower(), key): item for key, item in value.items()}


def _pod(args: JsonObject, expected: str) -> JsonObject:
    """A pod that the functions of `gpushare.wire.pods` can read without surprise."""
    if args.get("Pod") is None:
        raise WireError(f"Pod: missing; expected {expected}")
    pod = fields.needed_mapping(args, "Pod", "")
    fields.needed_mapping(pod, "metadata", "Pod")
    for path, problem in pods_wire.problems(pod, "Pod"):
        raise WireError(f"{path}: {problem}")
    return pod


def _int32(parent: JsonObject, key: str, path: str, *, least: int = 0) -> int:
    return fields.integer(parent, key, path, least=least, most=_MAX_INT32, default=0)


def _node_name(node: JsonObject, i: int) -> NodeName:
    path = f"Nodes.items[{i}]"
    return NodeName(fields.needed(fields.needed_mapping(node, "metadata", path), "name", f"{path}.metadata"))


def _victims(value: object, path: str, uid_of: Callable[[JsonObject, str], str]) -> Victims:
    if value is None:
        return Victims(pods=())
    victims = _spelled(fields.an_object(value, path))
    pods = [uid_of(pod, f"{path}.Pods[{i}]") for i, pod in enumerate(fields.objects(victims, "Pods", path))]
    return Victims(
        pods=tuple(PodUid(uid) for uid in dict.fromkeys(pods)), violations=_int32(victims, "NumPDBViolations", path)
    )


def _uid(pod: JsonObject, path: str) -> str:
    """Of a MetaPod."""
    return fields.needed(_spelled(pod), "UID", path)


def _uid_of_whole(pod: JsonObject, path: str) -> str:
    """Of a whole pod. Nothing else of it is looked at: what it holds is in the ledger."""
    return fields.needed(fields.needed_mapping(pod, "metadata", path), "uid", f"{path}.metadata")
