"""What is kept of a pod: the few facts that decisions need. Pure.

Everything else of an object is dropped as soon as it was read, so that a cluster's worth of pods stays small.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpushare import names
from gpushare.dialect import Dialect
from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import Allocation
from gpushare.model.request import MAX_CONTAINERS, PodRequest
from gpushare.units import MemoryUnit
from gpushare.wire import holdings, legacy, requests, shape, spelling
from gpushare.wire import pods as pods_wire
from gpushare.wire.json import JsonObject

_LONGEST: Final = 2000  # characters of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pod that asks for GPUs and is on no node."""

    ref: PodRef
    request: PodRequest | None
    """None if what it asks for cannot be understood."""
    problem: str = ""
    """Why not."""
    unschedulable: bool = False
    """The scheduler has tried and given up for now."""
    retry: str = ""
    """Value of the label that makes the scheduler try again."""
    overridden: str = ""
    """Names, comma-separated, of containers whose author chose devices himself, which the webhook has undone."""


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
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    created: str = ""
    """When, as the API server writes it: texts sort as times do."""
    deleting: bool = False
    """Its deletion was asked for; it holds what it holds until its containers have ended."""
    late: "Late | None" = None
    """Set while it lives on its node without an allocation of anybody."""
    failed: str = ""
    """Why the node rejected it, `reason: message`, before any container ran; empty unless that happened."""
    owned: bool = False
    """A controller, such as a ReplicaSet, makes it anew when it is deleted."""
    overridden: str = ""
    """Names, comma-separated, of containers whose author chose devices himself, which the webhook has undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A pod that came to its node past this system: by another scheduler, or with a node preset."""

    request: PodRequest | None
    """None if what it asks for cannot be understood."""
    problem: str = ""
    """Why not."""
    mutated: bool
    """Every container that asks takes its devices from the annotation that a binding writes."""
    started: bool
    """One of its containers that ask has run already."""
    owner: str = ""
    """UID of the controller that makes it anew; empty if there is none."""


PodRecord = Pending | Bound


def is_guest(pod: Bound) -> bool:
    """Whether it runs on whole GPUs that nobody here has given to it: another plugin had that resource before."""
    late = pod.late
    if late is None or late.mutated or not late.started or late.request is None:
        return False
    return any(wish.whole for wish in late.request.shape.containers)


def pod_record(pod: Mapping[str, Any], dialect: Dialect) -> PodRecord | None:
    """What matters of a pod; None if it asks for no GPU.

    Raises:
        WireError: it is no pod, or none that can be kept apart from others.
    """
    ref, node = pods_wire.ref(pod), pods_wire.node_of(pod)
    if not ref.uid:
        raise WireError("metadata.uid: missing")
    try:
        if not pods_wire.needs_gpu(pod, dialect):
            return None
        return _pending(pod, ref, dialect) if node is None else _bound(pod, ref, node, dialect)
    except WireError as error:
        if node is None:
            return Pending(ref=ref, request=None, problem=_said(error))
        return replace(_known(pod, ref, node), problem=_said(error))


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
        return holdings.allocation(bound.legacy, unit)
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


def _pending(pod: Mapping[str, Any], ref: PodRef, dialect: Dialect) -> Pending:
    retry = shape.text(pods_wire.labels(pod), names.LABEL_RETRY, "metadata.labels")
    scheduled = shape.condition(pod, "PodScheduled", "pod")
    request, problem = _request(pod, dialect)
    return Pending(
        ref=ref,
        request=request,
        problem=problem,
        unschedulable=scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable",
        retry=retry,
        overridden=_overridden(pod),
    )


def _overridden(pod: Mapping[str, Any]) -> str:
    return shape.text(pods_wire.annotations(pod), names.ANNOTATION_OVERRIDDEN, "metadata.annotations")


def _request(pod: Mapping[str, Any], dialect: Dialect) -> tuple[PodRequest | None, str]:
    try:
        return requests.of_pod(pod, dialect), ""
    except InvalidRequestError as error:
        return None, _said(error)


def _said(error: Exception) -> str:
    """What is kept of a message, which may quote what a tenant wrote."""
    return str(error)[:_LONGEST]


def _known(pod: Mapping[str, Any], ref: PodRef, node: NodeName) -> Bound:
    """As `_bare`, as far as it can be read."""
    try:
        return _bare(pod, ref, node)
    except WireError:
        return Bound(ref=ref, node=node)


def _bare(pod: Mapping[str, Any], ref: PodRef, node: NodeName) -> Bound:
    """All of a bound pod but what it holds."""
    spec, meta = shape.mapping(pod, "spec", "pod"), shape.mapping(pod, "metadata", "pod")
    priority = spec.get("priority")
    return Bound(
        ref=ref,
        node=node,
        labels=pods_wire.labels(pod),
        priority=priority if isinstance(priority, int) else 0,
        created=shape.text(meta, "creationTimestamp", "metadata"),
        deleting=meta.get("deletionTimestamp") is not None,
        owned=bool(_owner(pod)),
        overridden=_overridden(pod),
    )


def _bound(pod: Mapping[str, Any], ref: PodRef, node: NodeName, dialect: Dialect) -> Bound:
    record = _bare(pod, ref, node)
    if not pods_wire.holds_gpus(pod):
        return replace(record, failed=_rejection(pod))
    annotations = pods_wire.annotations(pod)
    if names.ANNOTATION_ALLOCATION in annotations:
        found = holdings.of_pod(pod, dialect, dialect.unit)
        return replace(record, allocation=found.allocation, problem=found.problem)
    if legacy.is_bound(annotations):
        return replace(record, legacy=_reduced(pod))
    request, problem = _request(pod, dialect)
    late = Late(
        request=request,
        problem=problem,
        mutated=pods_wire.is_mutated(pod, dialect),
        started=pods_wire.has_started(pod, pods_wire.asking(pod, dialect)),
        owner=_owner(pod),
    )
    return replace(record, late=late)


def _owner(pod: Mapping[str, Any]) -> str:
    """UID of the controller that owns a pod."""
    for reference in shape.objects(shape.mapping(pod, "metadata", "pod"), "ownerReferences", "metadata"):
        if reference.get("controller") is True:
            return shape.text(reference, "uid", "metadata.ownerReferences")
    return ""


def _rejection(pod: Mapping[str, Any]) -> str:
    """Why the kubelet rejected a pod before it started anything of it."""
    status = shape.mapping(pod, "status", "pod")
    if shape.text(status, "phase", "status") != "Failed" or pods_wire.has_started(pod):
        return ""
    reason = shape.text(status, "reason", "status")
    return f"{reason}: {shape.text(status, 'message', 'status')}" if reason else ""


def _reduced(pod: Mapping[str, Any]) -> JsonObject:
    """The parts of a pod that `gpushare.wire.legacy` reads."""
    metadata = pod["metadata"]
    containers = shape.objects(pod["spec"], "containers", "spec")
    return {
        "metadata": {
            **{key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata},
            "labels": pods_wire.labels(pod),
            "annotations": {key: value for key, value in metadata["annotations"].items() if legacy.is_annotation(key)},
        },
        "spec": {
            "nodeName": pod["spec"]["nodeName"],
            "containers": [
                {"name": container.get("name"), "resources": {"limits": _gpu_amounts(container)}}
                for container in containers[:MAX_CONTAINERS]
            ],
        },
    }


def _gpu_amounts(container: Mapping[str, Any]) -> JsonObject:
    limits = spelling.amounts(container, "limits")
    return {resource: limits[resource] for resource in names.SHARED_RESOURCES if resource in limits}
