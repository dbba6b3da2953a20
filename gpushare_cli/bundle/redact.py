"""What of objects may leave the cluster. Pure.

Only fields that are named here are kept: a new field of Kubernetes is left out until somebody has looked at it.
What credentials are in their texts is removed later, see `credentials`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpushare_cli import reading
from gpushare_cli.bundle.credentials import HIDDEN

Object = Mapping[str, Any]
_SETTING: Final = "GPUSHARE_"
_NODE: Final = {
    "metadata": ("name", "uid", "creationTimestamp", "labels"),
    "spec": ("unschedulable", "taints"),
    "status": ("capacity", "allocatable", "conditions"),
}
_MACHINE: Final = (
    "architecture",
    "operatingSystem",
    "osImage",
    "kernelVersion",
    "containerRuntimeVersion",
    "kubeletVersion",
)
"""Not the ids of the machine, which are confidential: machine-id(5)."""
_POD: Final = {
    "metadata": ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "labels"),
    "spec": ("nodeName", "schedulerName", "runtimeClassName", "priority", "nodeSelector", "tolerations"),
    "status": ("phase", "reason", "message", "conditions", "nominatedNodeName", "qosClass", "startTime"),
}
_WORKLOAD: Final = {
    "metadata": ("name", "namespace", "generation", "creationTimestamp", "labels"),
    "spec": ("replicas", "strategy", "updateStrategy"),
    "status": None,
}
_CONTAINER: Final = ("name", "image", "resources", "restartPolicy", "ports", "args", "securityContext")
_OF_OTHERS: Final = ("name", "image", "resources", "restartPolicy")
_STATE: Final = ("reason", "exitCode", "signal", "startedAt", "finishedAt")
_TOLD: Final = {"waiting": ("message",)}
"""What the kubelet says; the message of a container that ended is the container's own."""
_STATUS: Final = ("name", "ready", "restartCount", "image", "imageID", "started")


def node(value: Object) -> Object:
    """A node: what it has, and what this project has written on it."""
    kept = _kept(value, _NODE)
    kept["status"]["nodeInfo"] = _of(part(part(value, "status"), "nodeInfo"), _MACHINE)
    return kept


def pod(value: Object, *, own: bool) -> Object:
    """A pod: what it asks for and has. Of the installation's own pods also the arguments."""
    kept = _kept(value, _POD)
    kept["spec"] |= _containers(part(value, "spec"), own=own)
    status = part(value, "status")
    for key in ("initContainerStatuses", "containerStatuses"):
        if key in status:
            kept["status"][key] = [_container_status(each) for each in parts(status, key)]
    owners = parts(part(value, "metadata"), "ownerReferences")
    kept["metadata"]["ownerReferences"] = [_of(each, ("kind", "name", "uid", "controller")) for each in owners]
    return kept


def workload(value: Object) -> Object:
    """A Deployment or DaemonSet of the installation."""
    kept = _kept(value, _WORKLOAD)
    template = part(part(value, "spec"), "template")
    kept["spec"]["template"] = {"spec": _containers(part(template, "spec"), own=True)}
    return kept


def config_map(value: Object, *, known: Iterable[str] = ()) -> Object:
    """The settings of a ConfigMap; of other keys than this project's, only the name."""
    there = set(known)
    data = part(value, "data")
    kept = {key: each if key.startswith(_SETTING) or key in there else HIDDEN for key, each in data.items()}
    return {"metadata": _of(part(value, "metadata"), ("name", "namespace")), "data": kept}


def event(value: Object) -> Object:
    """An Event of this project's."""
    return _of(value, ("reason", "message", "type", "count", "firstTimestamp", "lastTimestamp", "eventTime")) | {
        "about": _of(part(value, "involvedObject"), ("kind", "namespace", "name", "uid"))
    }


def _kept(value: Object, fields: Mapping[str, tuple[str, ...] | None]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, wanted in fields.items():
        there = part(value, key)
        kept[key] = dict(there) if wanted is None else _of(there, wanted)
    kept["metadata"]["annotations"] = reading.own_annotations(part(part(value, "metadata"), "annotations"))
    return kept


def _of(value: Object, wanted: Iterable[str]) -> dict[str, Any]:
    return {key: value[key] for key in wanted if key in value}


def part(value: Object, key: str) -> Object:
    """A field that is an object; one of another shape is left out, as no one can say what is in it."""
    there = value.get(key)
    return there if isinstance(there, dict) else {}


def parts(value: Object, key: str) -> list[Object]:
    """The objects of a list."""
    there = value.get(key)
    return [each for each in there if isinstance(each, dict)] if isinstance(there, list) else []


def _containers(spec: Object, *, own: bool) -> dict[str, Any]:
    wanted = _CONTAINER if own else _OF_OTHERS
    return {
        key: [_of(each, wanted) | {"env": _variables(parts(each, "env"), own=own)} for each in parts(spec, key)]
        for key in ("initContainers", "containers")
        if key in spec
    }


def _variables(env: Iterable[Object], *, own: bool) -> list[Object]:
    """Names, and which field of the pod a value is; of the installation's own pods all sources, and its settings."""
    kept: list[Object] = []
    for each in env:
        is_setting = own and str(each.get("name")).startswith(_SETTING)
        there = part(each, "valueFrom")
        source = {"valueFrom": found} if (found := there if own else _of(there, ("fieldRef",))) else {}
        kept.append(_of(each, ("name", "value") if is_setting else ("name",)) | source)
    return kept


def _container_status(value: Object) -> Object:
    kept = _of(value, _STATUS)
    for key in ("state", "lastState"):
        there = part(value, key)
        kept[key] = {word: _of(part(there, word), (*_STATE, *_TOLD.get(word, ()))) for word in there}
    return kept
