"""What the controller keeps of a pod and of a node: the few facts that decisions need. Pure.

Everything else of an object is dropped as soon as it was read, so that a cluster's worth of pods stays small.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare import names
from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import Allocation
from gpushare.model.gpu import NodeInventory
from gpushare.model.request import RequestShape
from gpushare.units import MemoryUnit
from gpushare.wire import inventory as inventory_wire
from gpushare.wire import pods as pods_wire
from gpushare.wire import shape
from gpushare.wire.json import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pod that asks for GPUs and is on no node."""

    ref: PodRef
    shape: RequestShape | None
    """None if what it asks for cannot be understood."""
    problem: str = ""
    """Why not."""
    unschedulable: bool = False
    """The scheduler has tried and given up for now."""
    retry: str = ""
    """Value of the label that makes the scheduler try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A pod that asks for GPUs and was bound to a node, by whomever."""

    ref: PodRef
    node: NodeName
    allocation: Allocation | None = None
    """What it holds; None if it was given nothing, has given everything back, or only `legacy` or `problem` tells."""
    legacy: JsonObject | None = None
    """The pod, reduced, if another system bound it: its amounts count in the node's unit, which comes separately."""
    problem: str = ""
    """Why its annotation cannot be read. Without `allocation` nobody can tell what it holds."""


PodRecord = Pending | Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node of the cluster."""

    name: NodeName
    published: str | None
    """The inventory as it was read, to see without decoding that a node has not changed."""
    inventory: NodeInventory | None = None
    problem: str = ""
    """Why an inventory that is there cannot be read."""


def pod_record(pod: Mapping[str, Any], unit: MemoryUnit) -> PodRecord | None:
    """What matters of a pod; None if it asks for no GPU.

    Raises:
        WireError: it is no pod, or none that can be kept apart from others.
    """
    ref, node = pods_wire.ref(pod), pods_wire.node_of(pod)
    if not ref.uid:
        raise WireError("metadata.uid: missing")
    try:
        if not pods_wire.needs_gpu(pod):
            return None
        return _pending(pod, ref, unit) if node is None else _bound(pod, ref, node, unit)
    except WireError as error:
        if node is None:
            return Pending(ref=ref, shape=None, problem=str(error))
        return Bound(ref=ref, node=node, problem=str(error))


def node_record(node: Mapping[str, Any], known: NodeRecord | None = None) -> NodeRecord:
    """What matters of a node.

    Args:
        node: the Node object.
        known: what was known before; returned again if nothing that matters has changed.

    Raises:
        WireError: it is no node.
    """
    name = node_name(node)
    annotations = shape.mapping(shape.mapping(node, "metadata", "node"), "annotations", "metadata")
    if names.ANNOTATION_INVENTORY not in annotations:
        return known if known is not None and known.published is None else NodeRecord(name=name, published=None)
    published = shape.text(annotations, names.ANNOTATION_INVENTORY, "metadata.annotations")
    if known is not None and known.published == published:
        return known
    try:
        return NodeRecord(name=name, published=published, inventory=inventory_wire.decode(published, name))
    except WireError as error:
        return NodeRecord(name=name, published=published, problem=str(error))


def node_name(node: Mapping[str, Any]) -> NodeName:
    """Which node it is.

    Raises:
        WireError: it is no node.
    """
    return NodeName(shape.needed(shape.mapping(node, "metadata", "node"), "name", "metadata"))


def unknown_node(name: NodeName) -> str:
    """Why a node that the controller has not seen is refused."""
    return f"node {name} is unknown to the gpushare controller; it may have been added a moment ago"


def held(bound: Bound, unit: MemoryUnit) -> Allocation | None:
    """What a bound pod holds.

    Args:
        bound: the pod.
        unit: of its node.

    Raises:
        WireError: nobody can tell.
    """
    if bound.problem and bound.allocation is None:
        raise WireError(bound.problem)
    if bound.legacy is not None:
        return pods_wire.allocation(bound.legacy, unit)
    return bound.allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An allocation that cannot be read."""

    why: str
    counted: bool
    """The pod's other annotations tell what it holds."""


def all_held(bound: Iterable[Bound], unit: MemoryUnit) -> tuple[list[Allocation], dict[PodRef, Problem]]:
    """What the pods of one node hold, and which of their allocations cannot be read."""
    found: list[Allocation] = []
    problems: dict[PodRef, Problem] = {}
    for record in bound:
        try:
            allocation = held(record, unit)
        except WireError as error:
            problems[record.ref] = Problem(why=str(error), counted=False)
            continue
        if allocation is not None:
            found.append(allocation)
        if record.problem:
            problems[record.ref] = Problem(why=record.problem, counted=True)
    return found, problems


def _pending(pod: Mapping[str, Any], ref: PodRef, unit: MemoryUnit) -> Pending:
    retry = shape.text(pods_wire.labels(pod), names.LABEL_RETRY, "metadata.labels")
    conditions = shape.objects(shape.mapping(pod, "status", "pod"), "conditions", "status")
    unschedulable = any(
        condition.get("type") == "PodScheduled"
        and condition.get("status") == "False"
        and condition.get("reason") == "Unschedulable"
        for condition in conditions
    )
    try:
        request = pods_wire.request(pod, unit)
    except InvalidRequestError as error:
        return Pending(ref=ref, shape=None, problem=str(error), unschedulable=unschedulable, retry=retry)
    wanted = request.shape if request else None
    return Pending(ref=ref, shape=wanted, unschedulable=unschedulable, retry=retry)


def _bound(pod: Mapping[str, Any], ref: PodRef, node: NodeName, unit: MemoryUnit) -> Bound:
    if not pods_wire.holds_gpus(pod):
        return Bound(ref=ref, node=node)
    annotations = pods_wire.annotations(pod)
    if names.ANNOTATION_ALLOCATION in annotations:
        found = pods_wire.holding(pod, unit)
        return Bound(ref=ref, node=node, allocation=found.allocation, problem=found.problem)
    if names.ACK_ALLOCATION in annotations or names.ALIYUN_IDX in annotations:
        return Bound(ref=ref, node=node, legacy=_reduced(pod))
    return Bound(ref=ref, node=node)


def _reduced(pod: Mapping[str, Any]) -> JsonObject:
    """The parts of a pod that `gpushare.wire.legacy` reads."""
    metadata, wanted = pod["metadata"], (names.ACK_ALLOCATION, names.ALIYUN_IDX)
    containers = shape.objects(pod["spec"], "containers", "spec")
    return {
        "metadata": {
            **{key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata},
            "annotations": {key: value for key, value in metadata["annotations"].items() if key in wanted},
        },
        "spec": {
            "nodeName": pod["spec"]["nodeName"],
            "containers": [
                {"name": container.get("name"), "resources": {"limits": _limits(container)}} for container in containers
            ],
        },
    }


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return shape.mapping(shape.mapping(container, "resources", "container"), "limits", "container.resources")
