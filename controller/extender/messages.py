"""What kube-scheduler sends and what it expects back. Pure.

Go reads the keys of its own structures in any case and writes them as it spells them, and so does this module. Keys of
maps and of Kubernetes' objects are exact.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import orjson

from controller.cluster_table import FilterResult
from controller.preemption import PreemptArgs, Victims
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.gpu import Gpu
from gpushare.model.ledger import NodeLedger
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArgs:
    pod: JsonObject
    names: Sequence[NodeName]
    nodes: Sequence[JsonObject] | None = None  # the same as whole objects, if the scheduler does not cache them


@dataclass(frozen=True, slots=True, kw_only=True)
class BindArgs:
    pod: PodRef
    node: NodeName


def node_args(body: bytes) -> NodeArgs:
    """Decode ExtenderArgs. WireError says what is wrong where."""
    args = _load(body)
    pod = _pod(args, "ExtenderArgs {Pod, Nodes, NodeNames}")
    if args.get("NodeNames") is not None:
        return NodeArgs(pod=pod, names=cast(Sequence[NodeName], fields.strings(args, "NodeNames", "")))
    if args.get("Nodes") is None:
        return NodeArgs(pod=pod, names=())
    nodes = fields.objects(_spelled(fields.mapping(args, "Nodes", "")), "items", "Nodes")
    return NodeArgs(pod=pod, names=[_node_name(node, i) for i, node in enumerate(nodes)], nodes=nodes)


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


def filter_result(result: FilterResult, args: NodeArgs) -> bytes:
    """Encode ExtenderFilterResult as the nodes came."""
    answer: JsonObject = {"Nodes": None, "NodeNames": result.fits}
    if args.nodes is not None:
        chosen = set(result.fits)
        items = [node for name, node in zip(args.names, args.nodes, strict=True) if name in chosen]
        answer = {"Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    # What no preemption helps is in both maps, where the second counts: the kube-scheduler of Kubernetes 1.20 knows the
    # first one only, and would say nothing of these nodes.
    answer["FailedNodes"] = {**result.failed, **result.unresolvable}
    return orjson.dumps({**answer, "FailedAndUnresolvableNodes": result.unresolvable, "Error": ""})


def filter_error(message: str) -> bytes:
    none: JsonObject = {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}}
    return orjson.dumps({**none, "Error": message})


def priorities(names: Sequence[NodeName], scores: Iterable[int]) -> bytes:
    """Encode HostPriorityList; the scores, 0 to 10, are in the order of the names."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])


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
    if not body:
        raise WireError("the body: empty; expected JSON")
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(f"the body: not JSON (line {error.lineno}, column {error.colno})") from error
    return _spelled(fields.an_object(value, "the body"))


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
    pods: dict[GpuUuid, list[JsonObject]] = {}
    for held in ledger.allocations.values():
        for gpu, share in ledger.held(held).items():
            if share.memory_mib:
                used = ledger.inventory.unit.ceil(share.memory_mib)
                entry = {"name": held.pod.name, "namespace": held.pod.namespace, "usedGPU": used}
                pods.setdefault(gpu, []).append(entry)
    devices = [_device(ledger, gpu, pods.get(gpu.uuid, [])) for gpu in ledger.inventory.gpus]
    return {
        "name": ledger.inventory.node,
        "totalGPU": sum(device["totalGPU"] for device in devices),
        "usedGPU": sum(device["usedGPU"] for device in devices),
        "devs": devices,
    }


def _device(ledger: NodeLedger, gpu: Gpu, pods: list[JsonObject]) -> JsonObject:
    unit = ledger.inventory.unit
    return {
        "id": gpu.index,
        "uuid": gpu.uuid,
        "totalGPU": unit.floor(gpu.memory_mib),
        "usedGPU": unit.ceil(ledger.used_mib.get(gpu.uuid, 0)),
        "pods": sorted(pods, key=lambda pod: (pod["namespace"], pod["name"])),
    }
