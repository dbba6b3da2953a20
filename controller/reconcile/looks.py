"""A pod as the API server has it now, for what must not be decided on older news. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.cluster import latecomers, records
from gpushare.cluster.latecomers import Owner
from gpushare.cluster.records import Bound
from gpushare.dialect import Dialect
from gpushare.wire import shape


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
        gpu_started=latecomers.gpu_started(found, dialect),
        owner=latecomers.owner(found),
    )
