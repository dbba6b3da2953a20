"""What of objects and texts may leave the cluster. Pure.

Of an object only fields that are named here are kept: a new field of Kubernetes is left out until somebody has looked
at it. Texts, such as logs, lose what looks like a credential.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpushare_cli import gather

Object = Mapping[str, Any]
HIDDEN: Final = "(hidden)"
_SETTING: Final = "GPUSHARE_"
_LABEL: Final = r"""(?:\b|(?<=_))(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|credentials?)
        (?:\\{0,7}["'])?\s*[=:]\s*"""
"""What is written before a value; quotes have backslashes where the text is JSON within JSON."""
_SECRETS: Final = (
    re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
    # JSON Web Tokens, as service accounts have. From the start of a run on, so that a long one is looked at once.
    re.compile(r"(?<![\w-])(?=(?:[\w-]*-)?eyJ[\w-]{8})[\w-]++\.[\w-]+(?:\.[\w-]*)?"),
    re.compile(r"(?i)(?<=\bbearer )\S+"),
    re.compile(r"(?i)(?<=\bbasic )[\w+/=-]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(rf"""(?ix){_LABEL}(?P<quote>\\{{0,7}}["'])(?P<value>[^\n]+?)(?P=quote)"""),
    re.compile(rf"""(?ix){_LABEL}(?:\\{{0,7}}["'])?+(?P<value>(?:[^\s"',;}}\\]|\\(?!\\{{0,6}}["']))+)"""),
)
"""The whole match is hidden, or the group `value` of it."""

_NODE: Final = {
    "metadata": ("name", "uid", "creationTimestamp", "labels"),
    "spec": ("unschedulable", "taints"),
    "status": ("capacity", "allocatable", "nodeInfo", "conditions"),
}
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
_STATUS: Final = ("name", "ready", "restartCount", "image", "imageID", "started")


def text(raw: str) -> str:
    """The same without what looks like a credential."""
    for pattern in _SECRETS:
        raw = pattern.sub(_hidden, raw)
    return raw


def _hidden(found: re.Match[str]) -> str:
    if "value" not in found.re.groupindex:
        return HIDDEN
    start, end = found.span("value")
    return found.string[found.start() : start] + HIDDEN + found.string[end : found.end()]


def node(value: Object) -> Object:
    """A node: what it has, and what this project has written on it."""
    return _kept(value, _NODE)


def pod(value: Object, *, own: bool) -> Object:
    """A pod: what it asks for and has. Of the installation's own pods also the arguments."""
    kept = _kept(value, _POD)
    spec = value.get("spec") or {}
    kept["spec"] |= _containers(spec, own=own)
    status = value.get("status") or {}
    for key in ("initContainerStatuses", "containerStatuses"):
        if key in status:
            kept["status"][key] = [_container_status(each) for each in status[key]]
    owners = (value.get("metadata") or {}).get("ownerReferences") or ()
    kept["metadata"]["ownerReferences"] = [_of(each, ("kind", "name", "uid", "controller")) for each in owners]
    return kept


def workload(value: Object) -> Object:
    """A Deployment or DaemonSet of the installation."""
    kept = _kept(value, _WORKLOAD)
    template = (value.get("spec") or {}).get("template") or {}
    kept["spec"]["template"] = {"spec": _containers(template.get("spec") or {}, own=True)}
    return kept


def config_map(value: Object, *, known: Iterable[str] = ()) -> Object:
    """The settings of a ConfigMap; of other keys than this project's, only the name."""
    data = value.get("data") or {}
    there = set(known)
    kept = {key: each if key.startswith(_SETTING) or key in there else HIDDEN for key, each in data.items()}
    return {"metadata": _of(value.get("metadata") or {}, ("name", "namespace")), "data": kept}


def event(value: Object) -> Object:
    """An Event of this project's."""
    return _of(value, ("reason", "message", "type", "count", "firstTimestamp", "lastTimestamp", "eventTime")) | {
        "about": _of(value.get("involvedObject") or {}, ("kind", "namespace", "name", "uid"))
    }


def _kept(value: Object, fields: Mapping[str, tuple[str, ...] | None]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for part, wanted in fields.items():
        there = value.get(part) or {}
        kept[part] = dict(there) if wanted is None else _of(there, wanted)
    kept["metadata"]["annotations"] = gather.own_annotations((value.get("metadata") or {}).get("annotations") or {})
    return kept


def _of(value: Object, wanted: Iterable[str]) -> dict[str, Any]:
    return {key: value[key] for key in wanted if key in value}


def _containers(spec: Object, *, own: bool) -> dict[str, Any]:
    wanted = _CONTAINER if own else _OF_OTHERS
    kept: dict[str, Any] = {}
    for key in ("initContainers", "containers"):
        if key in spec:
            kept[key] = [_of(each, wanted) | {"env": _variables(each.get("env") or (), own=own)} for each in spec[key]]
    return kept


def _variables(env: Iterable[Object], *, own: bool) -> list[Object]:
    """Names alone, but for where a value comes from and for this project's own settings."""
    return [
        _of(each, ("name", "valueFrom"))
        | ({"value": each["value"]} if own and "value" in each and str(each.get("name")).startswith(_SETTING) else {})
        for each in env
    ]


def _container_status(value: Object) -> Object:
    kept = _of(value, _STATUS)
    for key in ("state", "lastState"):
        kept[key] = {
            word: _of(each, ("reason", "exitCode", "signal", "startedAt", "finishedAt"))
            | ({"message": each["message"]} if word == "waiting" and "message" in each else {})
            for word, each in (value.get(key) or {}).items()
        }
    return kept
