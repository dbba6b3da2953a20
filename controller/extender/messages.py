"""What kube-scheduler sends and what it expects back. Nothing here waits or asks anyone.

Go reads the keys of its own structures in any case and writes them as it spells them, and so does this module. Keys of
maps and of Kubernetes' objects are exact.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from controller.cluster_table import FilterResult
from controller.preemption import PreemptArgs, Victims
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.ledger import NodeLedger
from gpushare.placement.costs import BEST
from gpushare.placement.table import NodeNames
from gpushare.wire import fields, pods as pods_wire
from gpushare.wire.fields import JsonObject

_MAX_INT32: Final = 2**31 - 1
_KEYS: Final = {
    key.lower(): key
    for key in (
        "Pod", "Nodes", "NodeNames", "items",
        "NodeNameToVictims", "NodeNameToMetaVictims", "Pods", "NumPDBViolations", "UID",
        "PodNamespace", "PodName", "PodUID", "Node",
    )
}  # fmt: skip

_KEY: Final = b'"NodeNames":['
_OTHER: Final = b'nodenames"'
"""Keys count whatever their case, and which of two counts is told by reading both."""
_STRUCTURE: Final = (b"[", b"]", b"{", b"}", b"\\")
MAX_BYTES: Final = 2**19
"""Of all lists together in JSON; with all that is kept of them they take some 12 times as much."""


class NodeList(NodeNames):
    """Nodes of a question. What filter has answered is what prioritize is asked about next: it is not decoded again."""

    @cached_property
    def sent(self) -> bytes:
        return orjson.dumps(self)

    def priorities(self, scores: NDArray[np.uint8]) -> bytes:
        """A HostPriorityList of scores from 0 to 10 in the order of the names, without the nodes of the lowest one.

        kube-scheduler sums scores up: only distances count, a missing node has 0, and long lists take it long to read.
        """
        above = scores - scores.min(initial=BEST)
        places = above.nonzero()[0]
        found = zip(places.tolist(), above[places].tolist(), strict=True)
        return orjson.dumps([{"Host": self[at], "Score": score} for at, score in found])


class NodeLists:
    """The lists that were kept last. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lists: OrderedDict[bytes, NodeList] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def find(self, body: bytes) -> tuple[bytes, NodeList | None]:
        """A request that ends with a known list, with null in its place, and the list; else the request as it is.

        Go writes such a list last. If what is in front is an object with that key, the list is its value: what follows
        the key has no structure but commas, so that the last two brackets close the list and the whole.
        """
        at = body.find(_KEY)
        if at < 0 or not body.endswith(b"]}") or _OTHER in body[:at].lower() or body[:at].endswith(b"\\"):
            return body, None
        begin = at + len(_KEY) - 1
        inside = body[begin + 1 : -2]
        if any(mark in inside for mark in _STRUCTURE):
            return body, None
        with self._lock:
            known = self._lists.get(body[begin:-1])
        return (body, None) if known is None else (body[:begin] + b"null}", known)

    def keep(self, answered: NodeList) -> None:
        """Remember a list that was answered with.

        None by what a sender calls so: anyone may send requests, and would choose which nodes the scheduler asks about.
        """
        sent = answered.sent
        with self._lock:
            if sent in self._lists:
                self._lists.move_to_end(sent)
                return
            self._lists[sent] = answered
            self._size += len(sent)
            while self._size > MAX_BYTES:
                forgotten, _ = self._lists.popitem(last=False)
                self._size -= len(forgotten)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArgs:
    pod: JsonObject
    names: NodeList
    nodes: Sequence[JsonObject] | None = None  # the same as whole objects, if the scheduler does not cache them


@dataclass(frozen=True, slots=True, kw_only=True)
class BindArgs:
    pod: PodRef
    node: NodeName


def node_args(body: bytes, lists: NodeLists) -> NodeArgs:
    """Decode ExtenderArgs; `lists` are of names that need not be decoded again. WireError says what is wrong where."""
    rest, known = lists.find(body)
    given = fields.body(rest)
    args = _spelled(given)
    if known is not None and (len(args) < len(given) or args.get("NodeNames", rest) is not None):
        # Of two keys that are the same in Go, the later one counts: both must be read.
        args, known = _load(body), None
    pod = _pod(args, "ExtenderArgs {Pod, Nodes, NodeNames}")
    if known is not None:
        return NodeArgs(pod=pod, names=known)
    if args.get("NodeNames") is not None:
        return NodeArgs(pod=pod, names=NodeList(map(NodeName, fields.strings(args, "NodeNames", ""))))
    if args.get("Nodes") is None:
        return NodeArgs(pod=pod, names=NodeList())
    nodes = fields.objects(_spelled(fields.mapping(args, "Nodes", "")), "items", "Nodes")
    return NodeArgs(pod=pod, names=NodeList(_node_name(node, i) for i, node in enumerate(nodes)), nodes=nodes)


def preempt_args(body: bytes) -> PreemptArgs:
    """Decode ExtenderPreemptionArgs, with whole pods (nodeCacheCapable: false) or with their UIDs."""
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
    """Decode ExtenderBindingArgs."""
    args = _load(body)
    namespace, name, uid, node = (fields.needed(args, key, "") for key in ("PodNamespace", "PodName", "PodUID", "Node"))
    return BindArgs(pod=PodRef(namespace=namespace, name=name, uid=PodUid(uid)), node=NodeName(node))


def filter_result(result: FilterResult, args: NodeArgs, lists: NodeLists) -> bytes:
    """Encode ExtenderFilterResult as the nodes came; `lists` remembers those that fit, for prioritize."""
    if args.nodes is not None:
        chosen = set(result.fits)
        items = [node for name, node in zip(args.names, args.nodes, strict=True) if name in chosen]
        answer: JsonObject = {"Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    else:
        fits = args.names if len(result.fits) == len(args.names) else NodeList(result.fits)
        lists.keep(fits)
        answer = {"Nodes": None, "NodeNames": orjson.Fragment(fits.sent)}
    # What no preemption helps is in both maps, where the second counts: the kube-scheduler of Kubernetes 1.20 knows the
    # first one only, and would say nothing of these nodes.
    answer["FailedNodes"] = {**result.failed, **result.unresolvable}
    return orjson.dumps({**answer, "FailedAndUnresolvableNodes": result.unresolvable, "Error": ""})


def filter_error(message: str) -> bytes:
    none: JsonObject = {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}}
    return orjson.dumps({**none, "Error": message})


def preempt_result(victims: Mapping[NodeName, Victims]) -> bytes:
    """Encode ExtenderPreemptionResult. It has no place for an error: without nodes, no one is evicted."""
    nodes = {
        node: {"Pods": [{"UID": uid} for uid in each.pods], "NumPDBViolations": each.violations}
        for node, each in victims.items()
    }
    return orjson.dumps({"NodeNameToMetaVictims": nodes})


def bind_result(error: str = "") -> bytes:
    return orjson.dumps({"Error": error})


def _load(body: bytes) -> JsonObject:
    return _spelled(fields.body(body))


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
    pods = [PodUid(uid_of(pod, f"{path}.Pods[{i}]")) for i, pod in enumerate(fields.objects(victims, "Pods", path))]
    return Victims(pods=tuple(dict.fromkeys(pods)), violations=_int32(victims, "NumPDBViolations", path))


def _uid(pod: JsonObject, path: str) -> str:
    return fields.needed(_spelled(pod), "UID", path)


def _uid_of_whole(pod: JsonObject, path: str) -> str:
    """Of a whole pod. Nothing else of it is looked at: what it holds is in the ledger."""
    return fields.needed(fields.needed_mapping(pod, "metadata", path), "uid", f"{path}.metadata")


def inspected(ledgers: Mapping[NodeName, NodeLedger], only: NodeName | None = None) -> JsonObject:
    """The ledger as Aliyun gpushare's `inspect` has it, in whole units: all nodes with GPUs, or one."""
    # `uuid` is an addition of this project; Aliyun's tools ignore it.
    if only is not None and only not in ledgers:
        return {"nodes": [], "error": f"node {only} has no GPUs that gpushare knows of"}
    return {"nodes": [_inspected_node(ledgers[name]) for name in (sorted(ledgers) if only is None else [only])]}


def _inspected_node(ledger: NodeLedger) -> JsonObject:
    unit, pods = ledger.inventory.unit, dict[GpuUuid, list[JsonObject]]()
    for held in ledger.allocations.values():
        for gpu, share in ledger.held(held).items():
            if share.memory_mib:
                used = unit.ceil(share.memory_mib)
                entry = {"name": held.pod.name, "namespace": held.pod.namespace, "usedGPU": used}
                pods.setdefault(gpu, []).append(entry)
    devices = [
        {
            "id": gpu.index,
            "uuid": gpu.uuid,
            "totalGPU": unit.floor(gpu.memory_mib),
            "usedGPU": unit.ceil(ledger.used_mib.get(gpu.uuid, 0)),
            "pods": sorted(pods.get(gpu.uuid, ()), key=lambda pod: (pod["namespace"], pod["name"])),
        }
        for gpu in ledger.inventory.gpus
    ]
    return {
        "name": ledger.inventory.node,
        "totalGPU": sum(device["totalGPU"] for device in devices),
        "usedGPU": sum(device["usedGPU"] for device in devices),
        "devs": devices,
    }
