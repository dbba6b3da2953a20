"""Reads pods: the few facts that decisions need (`records`). Pure.

Everything else of an object is dropped as soon as it was read, so that a cluster's worth of pods stays small.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gpushare import names
from gpushare.cluster.records import NOTHING, Bound, Bypassed, Guest, Pending, PodRecord
from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.request import MAX_CONTAINERS, PodRequest
from gpushare.resource_config import ResourceConfig
from gpushare.wire import asks, fields, hand_over, held_gpus, host, interop_read, parse_resources, requests
from gpushare.wire import pods as pods_wire
from gpushare.wire.fields import JsonObject

_LONGEST: Final = 2000  # characters of a message


def read(pod: Mapping[str, Any], resource_config: ResourceConfig) -> PodRecord | None:
    """What matters of a pod; None if it asks for no GPU, or is a placeholder, which gets none.

    Raises:
        WireError: it is no pod, or none that can be kept apart from others.
    """
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


def guest(pod: Mapping[str, Any]) -> Guest | None:
    """What a pod that asks for no GPU takes of its node; None if it is on none.

    Raises:
        WireError: it is no pod, or none that can be kept apart from others.
    """
    node = pods_wire.node_of(pod)
    if node is None:
        return None
    uid = fields.needed(fields.mapping(pod, "metadata", "pod"), "uid", "metadata")
    return Guest(PodUid(uid), node, host.counted(pod) if pods_wire.counts(pod) else NOTHING)


def _pending(pod: Mapping[str, Any], ref: PodRef, resource_config: ResourceConfig) -> Pending:
    retry = fields.text(pods_wire.labels(pod), names.LABEL_RETRY, "metadata.labels")
    scheduled = fields.condition(pod, "PodScheduled", "pod")
    request, problem = _request(pod, resource_config)
    return Pending(
        ref=ref,
        request=request,
        problem=problem,
        unschedulable=scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable",
        retry=retry,
        owner=_owner(pod) if request is not None and request.shape.only_cdi else "",
        overridden=_overridden(pod),
    )


def _overridden(pod: Mapping[str, Any]) -> str:
    return fields.text(pods_wire.annotations(pod), names.ANNOTATION_OVERRIDDEN, "metadata.annotations")


def _request(pod: Mapping[str, Any], resource_config: ResourceConfig) -> tuple[PodRequest | None, str]:
    try:
        return requests.of_pod(pod, resource_config), ""
    except InvalidRequestError as error:
        return None, _said(error)


def _said(error: Exception) -> str:
    """What is kept of a message, which may quote what a tenant wrote."""
    return str(error)[:_LONGEST]


def _known(pod: Mapping[str, Any], ref: PodRef, node: NodeName) -> Bound:
    """As `_bare`, as far as it can be read."""
    try:
        return _bare(pod, ref, node, ask=asks.of_host(host.counted(pod)))
    except WireError:
        return Bound(ref=ref, node=node, ask=asks.of_host(host.counted(pod)))


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
        overridden=_overridden(pod),
        **holding,  # not by `replace`: a list has tens of thousands of pods
    )


def _bound(pod: Mapping[str, Any], ref: PodRef, node: NodeName, resource_config: ResourceConfig) -> Bound:
    if not pods_wire.holds_gpus(pod):
        return _bare(pod, ref, node, failed=_rejection(pod))
    annotations = pods_wire.annotations(pod)
    if names.ANNOTATION_ALLOCATION in annotations:
        holding = held_gpus.of_pod(pod, resource_config, resource_config.unit)
        outdated = _owner(pod) if _is_outdated(pod, resource_config) else ""
        ask = asks.of_bound(pod, holding.allocation, resource_config)
        return _bare(pod, ref, node, ask=ask, allocation=holding.allocation, problem=holding.problem, outdated=outdated)
    asking = pods_wire.asking(pod, resource_config)
    if interop_read.is_bound(annotations) and not pods_wire.is_refused(pod, asking, interop_read.OTHER_DEVICES):
        return _bare(pod, ref, node, ask=asks.of_bound(pod, None, resource_config), interop_pod=_reduced(pod))
    request, problem = _request(pod, resource_config)
    ask = asks.of_host(host.counted(pod)) if request is None else asks.of_request(request)
    bypassed = Bypassed(
        request=request,
        problem=problem,
        mutated=pods_wire.is_mutated(pod, resource_config),
        started=pods_wire.has_started(pod, asking),
        owner=_owner(pod),
    )
    return _bare(pod, ref, node, ask=ask, bypassed=bypassed)


def _is_outdated(pod: Mapping[str, Any], resource_config: ResourceConfig) -> bool:
    """Whether it came to its node when that handed GPUs over in another way. Nearly no container waits."""
    waits = any("waiting" in fields.mapping(report, "state", path) for path, report in pods_wire.reports(pod))
    return waits and pods_wire.is_refused(pod, pods_wire.asking(pod, resource_config), hand_over.AGAIN)


def controller_of(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reference to the controller that owns a pod; None if none does.

    Raises:
        WireError: it is no pod.
    """
    references = fields.objects(fields.mapping(pod, "metadata", "pod"), "ownerReferences", "metadata")
    return next((reference for reference in references if reference.get("controller") is True), None)


def _owner(pod: Mapping[str, Any]) -> str:
    """UID of the controller that owns a pod."""
    return fields.text(controller_of(pod) or {}, "uid", "metadata.ownerReferences")


def _rejection(pod: Mapping[str, Any]) -> str:
    """Why the kubelet rejected a pod before it started anything of it."""
    status = fields.mapping(pod, "status", "pod")
    if fields.text(status, "phase", "status") != "Failed" or pods_wire.has_started(pod):
        return ""
    reason = fields.text(status, "reason", "status")
    return f"{reason}: {fields.text(status, 'message', 'status')}" if reason else ""


def _reduced(pod: Mapping[str, Any]) -> JsonObject:
    """The parts of a pod that `gpushare.wire.interop_read` reads."""
    metadata = pod["metadata"]
    containers = fields.objects(pod["spec"], "containers", "spec")
    return {
        "metadata": {
            "labels": pods_wire.labels(pod),
            "annotations": {
                key: value for key, value in metadata["annotations"].items() if interop_read.is_annotation(key)
            },
        },
        "spec": {
            "containers": [
                {"name": container.get("name"), "resources": {"limits": _gpu_amounts(container)}}
                for container in containers[:MAX_CONTAINERS]
            ],
        },
    }


def _gpu_amounts(container: Mapping[str, Any]) -> JsonObject:
    limits = parse_resources.amounts(container, "limits")
    return {resource: limits[resource] for resource in names.SHARED_RESOURCES if resource in limits}
