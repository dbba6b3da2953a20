"""Objects of the API server -> as much of them as a picture needs, so that a large cluster stays small. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from gpushare import names
from gpushare.cluster import pod_records
from gpushare.cluster.pod_records import NonGpuPod
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import reading

Object = Mapping[str, Any]
_OF_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
)
_OF_NODE: Final = frozenset({names.ANNOTATION_INVENTORY, names.ANNOTATION_CORDON})
_OF_BOUND_SPEC: Final = ("nodeName", "schedulerName", "priority")
_NOT_OF_SPEC: Final = frozenset({"initContainers", "containers", "ephemeralContainers", "volumes"})
"""Of pods that wait: what decides nothing about a place and may be large, and what is reduced."""
_OF_CONTAINER: Final = ("name", "resources", "restartPolicy")
_OF_EVENT: Final = ("lastTimestamp", "eventTime", "firstTimestamp")
_LONGEST: Final = 1024
_LONGEST_NAME: Final = 253
_OTHERS_EVENTS: Final = frozenset({"Preempted", "Evicted", "TaintManagerEviction", "UnexpectedAdmissionError"})


def node(obj: Object) -> Object:
    """A node without its images, conditions and what else changes all the time."""
    metadata = fields.mapping(obj, "metadata", "node")
    annotations = fields.mapping(metadata, "annotations", "metadata")
    spec, status = fields.mapping(obj, "spec", "node"), fields.mapping(obj, "status", "node")
    return {
        "metadata": {
            **_some(metadata, ("name", "labels")),
            "annotations": {key: value for key, value in annotations.items() if key in _OF_NODE},
        },
        "spec": _some(spec, ("taints", "unschedulable")),
        "status": _some(status, ("addresses", "allocatable")),
    }


def pod(obj: Object) -> Object | NonGpuPod | None:
    """A pod that asks for GPUs, less of one that has a node; of others what they take of their node, if anything.

    Raises:
        WireError: it is no pod.
    """
    if not reading.may_hold_gpus(obj):
        return pod_records.non_gpu_pod(obj)
    metadata = _some(fields.mapping(obj, "metadata", "pod"), _OF_METADATA)
    metadata["annotations"] = reading.own_annotations(pods_wire.annotations(obj))
    status = fields.mapping(obj, "status", "pod")
    whole = fields.mapping(obj, "spec", "pod")
    bound = pods_wire.node_of(obj) is not None
    spec = _some(whole, _OF_BOUND_SPEC if bound else tuple(whole.keys() - _NOT_OF_SPEC))
    for kind in ("initContainers", "containers"):
        spec[kind] = [_container(each) for each in fields.objects(whole, kind, "spec")]
    return {"metadata": metadata, "spec": spec, "status": status}


def event(obj: Object) -> Object | None:
    """An Event on a pod that is of this system or means that a pod was moved away; None for all others.

    Anyone who may write Events decides how long each of their texts is: the API server limits only the whole.
    """
    reason = fields.text(obj, "reason", "event")
    if not (reason.startswith(names.EVENT_PREFIX) or reason in _OTHERS_EVENTS):
        return None
    uid = fields.text(fields.mapping(obj, "metadata", "event"), "uid", "metadata")
    about = fields.mapping(obj, "involvedObject", "event")
    return {
        **_some(obj, _OF_EVENT),
        "metadata": {"uid": uid},
        "type": "Warning" if obj.get("type") == "Warning" else "Normal",
        "reason": reason[:_LONGEST_NAME],
        "message": fields.text(obj, "message", "event")[:_LONGEST],
        "involvedObject": {key: fields.text(about, key, "event")[:_LONGEST_NAME] for key in ("namespace", "name")},
    }


def _container(container: Object) -> Object:
    env = fields.objects(container, "env", "container")
    visible = [entry for entry in env if entry.get("name") == names.ENV_VISIBLE_DEVICES]
    return {**_some(container, _OF_CONTAINER), "env": visible}


def _some(parent: Object, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: parent[key] for key in keys if key in parent}
