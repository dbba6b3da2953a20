"""A pod as the API server has it now, for what must not be decided on older news. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.cluster import records
from gpushare.cluster.records import Bound
from gpushare.dialect import Dialect
from gpushare.wire import pods as pods_wire
from gpushare.wire import shape


@dataclass(frozen=True, slots=True)
class Owner:
    """What makes a pod anew."""

    keeps_pods: bool = False
    """Its pods are deleted by people only."""
    advice: str = ""
    """What these people are to do, up to the webhook's part."""


# A Job counts each pod that fails or is deleted before its end, and gives up after some; up to Kubernetes 1.25 it even
# counts its failed pods by looking at them. Nobody but its author can say whether one may be taken from it, and it
# replaces pods that were rejected by itself. The mirror of a static pod goes and comes with the kubelet's file.
_KEEPING: Final[Mapping[str, Owner]] = {
    "Job": Owner(True, "delete it, so that its Job, which will count it as failed, makes it again"),
    "Node": Owner(True, "static pods cannot ask for GPUs: make it a Deployment or a DaemonSet, created"),
}
_ANY: Final = Owner()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen."""

    pod: Bound
    version: str
    """Its resourceVersion."""
    gpu_started: bool
    """A container that asks for GPUs runs or has run."""
    owner: Owner


def look(found: Mapping[str, Any], known: Bound, dialect: Dialect) -> Look | None:
    """What the API server says of a pod; None if that is another pod, is being deleted or has got its GPUs.

    Args:
        found: the object under the pod's name.
        known: what the watch says.
        dialect: of the cluster.

    Raises:
        WireError: the object cannot be read.
    """
    record = records.pod_record(found, dialect)
    if not isinstance(record, Bound) or record.ref != known.ref or record.deleting:
        return None
    if record.late is None and not record.failed:
        return None
    return Look(
        pod=record,
        version=shape.text(found["metadata"], "resourceVersion", "metadata"),
        gpu_started=_gpu_started(found, dialect),
        owner=_owner(found["metadata"]),
    )


def _gpu_started(pod: Mapping[str, Any], dialect: Dialect) -> bool:
    asking = {
        container.get("name") for _, _, container in pods_wire.containers(pod) if pods_wire.asks(container, dialect)
    }
    status = shape.mapping(pod, "status", "pod")
    return any(
        shape.mapping(report, field, f"status.{kind}").keys() & {"running", "terminated"}
        for kind in ("initContainerStatuses", "containerStatuses")
        for report in shape.objects(status, kind, "status")
        for field in ("state", "lastState")
        if report.get("name") in asking
    )


def _owner(meta: Mapping[str, Any]) -> Owner:
    for reference in shape.objects(meta, "ownerReferences", "metadata"):
        if reference.get("controller") is True:
            return _KEEPING.get(str(reference.get("kind")), _ANY)
    return _ANY
