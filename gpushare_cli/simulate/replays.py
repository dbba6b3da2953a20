"""Pods that a cluster has had, as pods that come again. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpushare import names
from gpushare.wire import fields, interop
from gpushare.wire import pods as pods_wire
from gpushare_cli.simulate.objects import Found, JsonObject

_STAYING = frozenset({"DaemonSet", "Node"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A pod as it was created."""

    of: Found
    value: JsonObject
    created: str
    at_s: float
    """Since the first one."""
    lasts_s: float | None
    """From its start to its end, if it has ended."""


def stays(pod: Found) -> bool:
    """Whether a pod is there before all others: of a DaemonSet, or of the kubelet itself."""
    metadata = fields.mapping(pod.value, "metadata", "pod")
    owners = fields.objects(metadata, "ownerReferences", "metadata")
    return any(fields.text(owner, "kind", "metadata.ownerReferences") in _STAYING for owner in owners)


def of(pods: Iterable[Found]) -> list[Again]:
    """Pods in the order in which they were created.

    Raises:
        WireError: one of them does not say when.
    """
    created = sorted(((_created(pod), pod) for pod in pods if not stays(pod)), key=lambda pair: pair[0])
    return [
        Again(
            of=pod,
            value=_as_created(pod.value),
            created=pod.value["metadata"]["creationTimestamp"],
            at_s=at_s - created[0][0],
            lasts_s=_lasted_s(pod),
        )
        for at_s, pod in created
    ]


def _as_created(value: JsonObject) -> JsonObject:
    metadata, spec = value["metadata"], dict(value["spec"])
    spec.pop("nodeName", None)
    notes = {
        key: text
        for key, text in (metadata.get("annotations") or {}).items()
        if key != names.ANNOTATION_ALLOCATION and not interop.is_annotation(key)
    }
    kept = {key: metadata[key] for key in ("namespace", "name", "uid", "labels", "ownerReferences") if key in metadata}
    return {**value, "metadata": {**kept, "annotations": notes}, "spec": spec, "status": {"phase": "Pending"}}


def _created(pod: Found) -> float:
    metadata = fields.mapping(pod.value, "metadata", "pod")
    return _moment(fields.needed(metadata, "creationTimestamp", "metadata"), "metadata.creationTimestamp", pod)


def _lasted_s(pod: Found) -> float | None:
    status = fields.mapping(pod.value, "status", "pod")
    began = fields.text(status, "startTime", "status")
    ends = [
        _moment(fields.needed(ended, "finishedAt", path), f"{path}.finishedAt", pod)
        for path, report in pods_wire.reports(pod.value)
        if (ended := fields.mapping(fields.mapping(report, "state", path), "terminated", path))
        and ended.get("finishedAt")
    ]
    if not began or not ends or fields.text(status, "phase", "status") not in {"Succeeded", "Failed"}:
        return None
    return max(max(ends) - _moment(began, "status.startTime", pod), 0.0)


def _moment(text: str, path: str, pod: Found) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise pod.fail(f"{path}: expected a time such as 2026-01-31T12:00:00Z, found {text!r}") from None
