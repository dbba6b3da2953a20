"""What kube-scheduler sends and what it expects back. Pure.

Go reads keys in any case and writes them as it spells them; so does this module.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import orjson

from controller.extender import checks
from controller.preemption import Victims
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


def node_args(body: bytes) -> NodeArgs:
    """Decode ExtenderArgs.

    Raises:
        WireError: they are not; says what is wrong where.
    """
    found = checks.load(body)
    if found.get("pod") is None:
        raise WireError("Pod: missing; expected ExtenderArgs {Pod, Nodes, NodeNames}")
    pod = checks.pod(found["pod"])
    if found.get("nodenames") is not None:
        named = checks.texts(found["nodenames"], "NodeNames")
        return NodeArgs(pod=pod, names=cast(list[NodeName], named), nodes=None)
    if found.get("nodes") is None:
        return NodeArgs(pod=pod, names=(), nodes=None)
    items = checks.lower(checks.an_object(found["nodes"], "Nodes")).get("items")
    nodes = [checks.an_object(node, f"Nodes.items[{i}]") for i, node in enumerate(checks.a_list(items, "Nodes.items"))]
    return NodeArgs(pod=pod, names=[_node_name(node, i) for i, node in enumerate(nodes)], nodes=nodes)


def preempt_args(body: bytes) -> PreemptArgs:
    """Decode ExtenderPreemptionArgs, with whole pods (nodeCacheCapable: false) or with their UIDs.

    Raises:
        WireError: they are not; says what is wrong where.
    """
    found = checks.load(body)
    if found.get("pod") is None:
        raise WireError("Pod: missing; expected ExtenderPreemptionArgs {Pod, NodeNameToVictims, NodeNameToMetaVictims}")
    pod = checks.pod(found["pod"])
    if found.get("nodenametometavictims") is not None:
        key, uid_of = "NodeNameToMetaVictims", _uid
    else:
        key, uid_of = "NodeNameToVictims", _uid_of_whole
    given = found.get(key.lower())
    nodes = {} if given is None else checks.an_object(given, key)
    return PreemptArgs(
        pod=pod,
        priority=checks.a_number(pod["spec"].get("priority"), "Pod.spec.priority"),
        victims={NodeName(name): _victims(each, f"{key}[{name}]", uid_of) for name, each in nodes.items()},
    )


def bind_args(body: bytes) -> BindArgs:
    """Decode ExtenderBindingArgs.

    Raises:
        WireError: they are not; says what is wrong where.
    """
    found = checks.load(body)
    return BindArgs(
        namespace=checks.a_text(found.get("podnamespace"), "PodNamespace"),
        name=checks.a_text(found.get("podname"), "PodName"),
        uid=PodUid(checks.a_text(found.get("poduid"), "PodUID")),
        node=NodeName(checks.a_text(found.get("node"), "Node")),
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


def _node_name(node: JsonObject, i: int) -> NodeName:
    path = f"Nodes.items[{i}].metadata"
    return NodeName(checks.a_text(checks.an_object(node.get("metadata"), path).get("name"), f"{path}.name"))


def _victims(value: object, path: str, uid_of: Callable[[JsonObject, str], str]) -> Victims:
    if value is None:
        return Victims(pods=())
    found = checks.lower(checks.an_object(value, path))
    pods = [
        PodUid(uid_of(checks.an_object(pod, f"{path}.Pods[{i}]"), f"{path}.Pods[{i}]"))
        for i, pod in enumerate(checks.a_list(found.get("pods"), f"{path}.Pods"))
    ]
    violations = checks.a_number(found.get("numpdbviolations"), f"{path}.NumPDBViolations", least=0)
    return Victims(pods=tuple(dict.fromkeys(pods)), violations=violations)


def _uid(pod: JsonObject, path: str) -> str:
    """Of a MetaPod."""
    return checks.a_text(checks.lower(pod).get("uid"), f"{path}.UID")


def _uid_of_whole(pod: JsonObject, path: str) -> str:
    """Of a whole pod. Nothing else of it is looked at: what it holds is in the ledger."""
    return checks.a_text(checks.an_object(pod.get("metadata"), f"{path}.metadata").get("uid"), f"{path}.metadata.uid")
