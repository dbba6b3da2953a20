"""Events on pods: how this system speaks to the pods' authors."""

import hashlib
from datetime import datetime
from enum import Enum
from typing import Final

from gpushare.identity import PodRef
from gpushare.kube.api import JsonObject, KubeApi

_MESSAGE_LIMIT: Final = 1024  # bytes that the API server accepts


class EventType(Enum):
    """Kubernetes' two types of event."""

    NORMAL = "Normal"
    WARNING = "Warning"


def event(pod: PodRef, kind: EventType, reason: str, message: str, *, component: str, now: datetime) -> JsonObject:
    """A core/v1 Event on a pod.

    Args:
        pod: the pod that it is about.
        kind: Normal or Warning.
        reason: one CamelCase word for programs.
        message: plain words for the pod's author; cut to what the API accepts.
        component: of this system, such as `gpushare-controller`.
        now: aware time of the event.
    """
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(f"{pod.uid} {reason} {message} {now.isoformat()}".encode()).hexdigest()[:16]
    prefix = pod.name[:230].rstrip("-.")  # each part of a name ends in a letter or digit
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{prefix}.{digest}", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
        },
        "type": kind.value,
        "reason": reason,
        "message": _cut(message),
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def post(api: KubeApi, body: JsonObject, *, timeout_s: float = 3.0) -> None:
    """Create an Event. May raise a KubeError, which callers log: an event is never worth failing for."""
    api.create(f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body, timeout_s=timeout_s)


def _cut(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _MESSAGE_LIMIT:
        return message
    return encoded[: _MESSAGE_LIMIT - 4].decode(errors="ignore") + " ..."
