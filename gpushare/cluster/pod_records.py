"""What is kept of a pod: the few facts that decisions need. Pure.

Everything else of an object is dropped as soon as it was read, so that a cluster's worth of pods stays small.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from gpushare import names
from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.capacity import NOTHING, Ask, FreeHost
from gpushare.model.ledger import Allocation, Grant
from gpushare.model.request import MAX_CONTAINERS, PodRequest
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import allocations as allocations_wire, fields, hand_over, interop, pods as pods_wire, requests
from gpushare.wire.fields import JsonObject

NO_ASK: Final = Ask()
_LONGEST: Final = 2000  # characters of a message
_OFTEN: Final = 4096
_CHOICES: Final = frozenset({names.ANNOTATION_MODEL, names.ANNOTATION_MIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pod that asks for GPUs and is on no node."""

    ref: PodRef
    request: PodRequest | None  # None if what it asks for cannot be understood
    problem: str = ""  # why not
    unschedulable: bool = False  # the scheduler has tried and given up for now
    retry: str = ""  # value of the label that makes the scheduler try again
    owner: str = ""  # UID of the controller that owns it, kept only if it goes to nodes that hand over by CDI alone
    overridden: str = ""  # containers whose author chose devices himself, comma-separated; the webhook has undone it

    @property
    def ask(self) -> Ask:
        """What it will take of its node; nothing if that cannot be understood."""
        return NO_ASK if self.request is None else Ask.of_pod(self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A pod that asks for GPUs and was bound to a node, by whomever."""

    ref: PodRef
    node: NodeName
    allocation: Allocation | None = None  # None if it has given it back, or only `interop_pod` or `problem` tells
    interop_pod: JsonObject | None = None  # reduced, if another system bound it: it counts in the node's unit
    problem: str = ""  # Why its annotation cannot be read. Without `allocation` no one can tell what it holds.
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    created: str = ""  # when, as the API server writes it: texts sort as times do
    ask: Ask = NO_ASK  # what it takes of its node; nothing once it has ended, no GPUs if they are not known
    deleting: bool = False  # its deletion was asked for; it holds what it holds until its containers have ended
    bypassed: "Bypassed | None" = None  # set while it lives on its node without an allocation of anybody
    failed: str = ""  # why the node rejected it before any container ran, `reason: message`
    owned: bool = False  # a controller, such as a ReplicaSet, recreates it when it is deleted
    outdated: str = ""  # UID of its controller, if it cannot start: its node handed GPUs over otherwise when it came
    overridden: str = ""  # containers whose author chose devices himself, comma-separated; the webhook has undone it

    @property
    def holds(self) -> bool:
        """Whether it holds GPUs, also if no one can tell which."""
        return self.allocation is not None or self.interop_pod is not None or bool(self.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypassed:
    """A pod that came to its node past this system: by another scheduler, or with a node preset."""

    request: PodRequest | None  # None if what it asks for cannot be understood
    problem: str = ""  # why not
    mutated: bool  # every container that asks takes its devices from the annotation that a binding writes
    started: bool  # one of its containers that ask has run already
    owner: str = ""  # UID of the controller that recreates it; empty if there is none


PodRecord = Pending | Bound


class NonGpuPod(NamedTuple):
    """A pod on a node that asks for no GPU. A cluster may have ten times as many of them as of others."""

    uid: PodUid
    node: NodeName
    takes: FreeHost  # nothing once it has ended


AnyPod = PodRecord | NonGpuPod


def has_foreign_gpus(pod: Bound) -> bool:
    """Whether it runs on whole GPUs that no one here has given to it: another plugin had that resource before."""
    bypassed = pod.bypassed
    if bypassed is None or bypassed.mutated or not bypassed.started or bypassed.request is None:
        return False
    return any(request.whole for request in bypassed.request.shape.containers)


def held(bound: Bound, unit: MemoryUnit) -> Allocation | None:
    """What a bound pod holds, in the unit of its node. Raises WireError: no one can tell."""
    if bound.problem and bound.allocation is None:
        raise WireError(bound.problem)
    if bound.interop_pod is not None:
        return interop.allocation(bound.interop_pod, bound.ref, bound.node, unit)
    return bound.allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    why: str
    counted: bool  # the pod's other annotations tell what it holds


def all_held(bound: Iterable[Bound], unit: MemoryUnit) -> tuple[list[Allocation], dict[PodRef, Problem]]:
    """What the pods of one node hold, and which of their allocations cannot be read."""
    allocations: list[Allocation] = []
    problems: dict[PodRef, Problem] = {}
    for record in bound:
        try:
            allocation = held(record, unit)
        except WireError as error:
            problems[record.ref] = Problem(why=str(error), counted=False)
            continue
        if allocation is not None:
            allocations.append(allocation)
        if record.problem:
            problems[record.ref] = Problem(why=record.problem, counted=True)
    return allocations, problems


def read(pod: Mapping[str, Any], resource_config: ResourceConfig) -> PodRecord | None:
    """What matters of a pod; None if it asks for no GPU or is a placeholder. Raises WireError: it has no identity."""
    ref, node = pods_wire.ref(pod), pods_wire.node_of(pod)
    if not ref.uid:
        raise WireError("metadata.uid: missing")
    try:
        if not pods_wire.needs_gpu(pod, resource_config):
            return None
        if node is None and ref.namespace == names.PLACEHOLDERS:
            return None
        return _pending(pod, ref, resource_config) if node is None else _bound(pod, ref, node, resource_config)
    except WireError as error:
        if node is None:
            return Pending(ref=ref, request=None, problem=_said(error))
        return replace(_known(pod, ref, node), problem=_said(error))


def non_gpu_pod(pod: Mapping[str, Any]) -> NonGpuPod | None:
    """What a pod without GPUs takes of its node; None if it is on none. Raises WireError: it has no identity."""
    node = pods_wire.node_of(pod)
    if node is None:
        return None
    uid = fields.needed(fields.mapping(pod, "metadata", "pod"), "uid", "metadata")
    return NonGpuPod(PodUid(uid), node, pods_wire.host_requests(pod) if pods_wire.counts(pod) else NOTHING)


def _pending(pod: Mapping[str, Any], ref: PodRef, resource_config: ResourceConfig) -> Pending:
    retry = fields.text(pods_wire.labels(pod), names.LABEL_RETRY, "metadata.labels")
    request, problem = _request(pod, resource_config)
    return Pending(
        ref=ref,
        request=request,
        problem=problem,
        unschedulable=pods_wire.is_unschedulable(pod),
        retry=retry,
        owner=_owner(pod) if request is not None and request.shape.only_cdi else "",
        overridden=fields.text(pods_wire.annotations(pod), names.ANNOTATION_OVERRIDDEN, "metadata.annotations"),
    )


def _request(pod: Mapping[str, Any], resource_config: ResourceConfig) -> tuple[PodRequest | None, str]:
    try:
        return requests.of_pod(pod, resource_config), ""
    except InvalidRequestError as error:
        return None, _said(error)


def _said(error: Exception) -> str:
    """What is kept of a message, which may quote what a tenant wrote."""
    return str(error)[:_LONGEST]


def _known(pod: Mapping[str, Any], ref: PodRef, node: NodeName) -> Bound:
    try:
        return _bare(pod, ref, node, ask=Ask.of_host(pods_wire.host_requests(pod)))
    except WireError:
        return Bound(ref=ref, node=node, ask=Ask.of_host(pods_wire.host_requests(pod)))


def _bare(pod: Mapping[str, Any], ref: PodRef, node: NodeName, **holding: Any) -> Bound:
    """All of a bound pod but what it holds, which `holding` tells as far as it is known."""
    spec, meta = fields.mapping(pod, "spec", "pod"), fields.mapping(pod, "metadata", "pod")
    priority = spec.get("priority")
    return Bound(
        ref=ref,
        node=node,
        labels=pods_wire.labels(pod),
        priority=priority if isinstance(priority, int) else 0,
        created=fields.text(meta, "creationTimestamp", "metadata"),
        deleting=meta.get("deletionTimestamp") is not None,
        owned=bool(_owner(pod)),
        overridden=fields.text(pods_wire.annotations(pod), names.ANNOTATION_OVERRIDDEN, "metadata.annotations"),
        **holding,  # not by `replace`: a list has tens of thousands of pods
    )


def _bound(pod: Mapping[str, Any], ref: PodRef, node: NodeName, resource_config: ResourceConfig) -> Bound:
    if not pods_wire.holds_gpus(pod):
        return _bare(pod, ref, node, failed=_rejection(pod))
    annotations = pods_wire.annotations(pod)
    if names.ANNOTATION_ALLOCATION in annotations:
        holding = allocations_wire.held(pod, resource_config, resource_config.unit)
        outdated = _owner(pod) if _is_outdated(pod, resource_config) else ""
        ask = _ask_of_bound(pod, holding.allocation, resource_config)
        return _bare(pod, ref, node, ask=ask, allocation=holding.allocation, problem=holding.problem, outdated=outdated)
    asking = pods_wire.asking(pod, resource_config)
    if interop.is_bound(annotations) and not pods_wire.is_refused(pod, asking, interop.OTHER_DEVICES):
        return _bare(pod, ref, node, ask=_ask_of_bound(pod, None, resource_config), interop_pod=_reduced(pod))
    request, problem = _request(pod, resource_config)
    ask = _asked(pod, request)
    mutated, started = pods_wire.is_mutated(pod, resource_config), pods_wire.has_started(pod, asking)
    bypassed = Bypassed(request=request, problem=problem, mutated=mutated, started=started, owner=_owner(pod))
    return _bare(pod, ref, node, ask=ask, bypassed=bypassed)


def _ask_of_bound(pod: Mapping[str, Any], allocation: Allocation | None, resource_config: ResourceConfig) -> Ask:
    """What a pod takes of its node, as before it was bound; no GPUs if no one can tell what it asked for.

    What it holds, as far as it is known, tells most requests without reading them again.
    """
    if allocation is not None and len(allocation.grants) == 1 and _is_plain(pod, allocation.grants[0]):
        grant, takes = allocation.grants[0], pods_wire.host_requests(pod)
        memory_mib = 0 if grant.whole else grant.memory_mib
        return _ask_of_grant(len(grant.gpus), memory_mib, grant.compute_percent, grant.whole, takes)
    return _asked(pod, _request(pod, resource_config)[0])


def _asked(pod: Mapping[str, Any], request: PodRequest | None) -> Ask:
    return Ask.of_host(pods_wire.host_requests(pod)) if request is None else Ask.of_pod(request)


def _is_plain(pod: Mapping[str, Any], grant: Grant) -> bool:
    """Whether the only grant of a pod says all that its request does: no part of a GPU, and no choice of GPUs."""
    if not _CHOICES.isdisjoint(pods_wire.annotations(pod)):
        return False
    if grant.whole or not grant.compute_percent:
        return True  # a part is of compute, too
    containers = (container for _, _, container in pods_wire.containers(pod))
    return not any(names.GPU_PERCENT in pods_wire.amounts(container, "limits") for container in containers)


@functools.lru_cache(maxsize=_OFTEN)
def _ask_of_grant(gpus: int, memory_mib: int, compute_percent: int, whole: bool, takes: FreeHost) -> Ask:
    return Ask(
        gpus=gpus,
        memory_mib=memory_mib,
        compute_percent=compute_percent,
        whole=whole,
        cpu_milli=takes.cpu_milli,
        host_mib=takes.memory_mib,
    )


def _is_outdated(pod: Mapping[str, Any], resource_config: ResourceConfig) -> bool:
    """Whether it came to its node when that handed GPUs over in another way. Nearly no container waits."""
    waits = any("waiting" in fields.mapping(report, "state", path) for path, report in pods_wire.reports(pod))
    return waits and pods_wire.is_refused(pod, pods_wire.asking(pod, resource_config), hand_over.AGAIN)


def controller_of(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reference to the controller that owns a pod; None if none does. Raises WireError: it is no pod."""
    references = fields.objects(fields.mapping(pod, "metadata", "pod"), "ownerReferences", "metadata")
    return next((reference for reference in references if reference.get("controller") is True), None)


def _owner(pod: Mapping[str, Any]) -> str:
    return fields.text(controller_of(pod) or {}, "uid", "metadata.ownerReferences")


def _rejection(pod: Mapping[str, Any]) -> str:
    status = fields.mapping(pod, "status", "pod")
    if fields.text(status, "phase", "status") != "Failed" or pods_wire.has_started(pod):
        return ""
    reason = fields.text(status, "reason", "status")
    return f"{reason}: {fields.text(status, 'message', 'status')}" if reason else ""


def _reduced(pod: Mapping[str, Any]) -> JsonObject:
    """The parts of a pod that `gpushare.wire.interop` reads."""
    metadata = pod["metadata"]
    containers = fields.objects(pod["spec"], "containers", "spec")
    return {
        "metadata": {
            "labels": pods_wire.labels(pod),
            "annotations": {key: value for key, value in metadata["annotations"].items() if interop.is_annotation(key)},
        },
        "spec": {
            "containers": [
                {"name": container.get("name"), "resources": {"limits": _gpu_amounts(container)}}
                for container in containers[:MAX_CONTAINERS]
            ]
        },
    }


def _gpu_amounts(container: Mapping[str, Any]) -> JsonObject:
    limits = pods_wire.amounts(container, "limits")
    return {resource: limits[resource] for resource in names.SHARED_RESOURCES if resource in limits}
