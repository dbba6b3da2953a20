"""What is done to a pod through the API server: Events, by which this system speaks to its author, and eviction."""

import hashlib
from datetime import datetime
from enum import Enum
from typing import Final

from gpushare.identity import PodRef
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi

_MESSAGE_LIMIT: Final = 1024  # bytes that the API server accepts
_EVICTION_S: Final = 5.0
_VERSIONS: Final = ("policy/v1", "policy/v1beta1")  # the first from Kubernetes 1.22 on, which answers 400 before


class EventType(Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


def event(pod: PodRef, kind: EventType, reason: str, message: str, *, component: str, now: datetime) -> JsonObject:
    """A core/v1 Event on a pod: a CamelCase reason for programs, and a message for its author."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(f"{pod.uid} {reason} {message} {now.isoformat()}".encode()).hexdigest()[:16]
    encoded = message.encode()
    if len(encoded) > _MESSAGE_LIMIT:
        message = encoded[: _MESSAGE_LIMIT - 4].decode(errors="ignore") + " ..."
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
        "message": message,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def post_event(api: KubeApi, body: JsonObject, *, timeout_s: float = 3.0) -> None:
    """Create an Event. May raise a KubeError, which callers log: an event is never worth failing for."""
    api.create(f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body, timeout_s=timeout_s)


class Evicted(Enum):
    DONE = "done"
    GONE = "gone"  # there is no such pod
    REFUSED = "refused"  # a PodDisruptionBudget protects it for now
    FAILED = "failed"


def evict(api: KubeApi, pod: PodRef, *, if_forbidden: str = "") -> tuple[Evicted, str]:
    """Have exactly this pod deleted. The outcome, and why it is not done, with the fix if the right is missing."""
    try:
        request_eviction(api, pod)
    except (kube.NotFoundError, kube.ConflictError) as error:
        return Evicted.GONE, str(error)
    except kube.TooManyRequestsError as error:
        return Evicted.REFUSED, str(error)
    except kube.ForbiddenError as error:
        return Evicted.FAILED, f"{error}; {if_forbidden}" if if_forbidden else str(error)
    except kube.KubeError as error:
        return Evicted.FAILED, str(error)
    return Evicted.DONE, ""


def request_eviction(api: KubeApi, pod: PodRef) -> None:
    """Have exactly this pod deleted. Asking again after a lost reply does no harm.

    Raises NotFoundError if it is gone, ConflictError if one of its name with another UID is there,
    TooManyRequestsError if a PodDisruptionBudget protects it for now, and KubeErrors for anything else.
    """
    path = kube.pod_path(pod.namespace, pod.name, "eviction")
    body = {
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    newest, oldest = _VERSIONS
    try:
        api.create(path, {"apiVersion": newest, **body}, timeout_s=_EVICTION_S)
    except kube.BadRequestError as error:
        try:
            api.create(path, {"apiVersion": oldest, **body}, timeout_s=_EVICTION_S)
        except kube.BadRequestError as other:
            raise kube.BadRequestError(f"{error}; in version {oldest}: {other}") from other
