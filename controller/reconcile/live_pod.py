"""A pod as the API server has it now, for what must not be decided on older news. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpushare.cluster import bypass, pod_records
from gpushare.cluster.bypass import Owner
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.units import ResourceConfig
from gpushare.wire import fields

P = TypeVar("P", Bound, Pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePod(Generic[P]):
    """What was seen."""

    pod: P
    version: str
    """Its resourceVersion."""
    owner: Owner | None


def read(current: Mapping[str, Any], known: Bound, resource_config: ResourceConfig) -> LivePod[Bound] | None:
    """What the API server says of a pod that the watch knows; None if that is another one, being deleted or in order.

    Raises:
        WireError: the object cannot be read.
    """
    record = pod_records.read(current, resource_config)
    if not isinstance(record, Bound) or record.ref != known.ref or record.deleting:
        return None
    if record.bypassed is None and not record.failed and not record.outdated:
        return None
    return _live(current, record)


def read_pending(
    current: Mapping[str, Any], known: Pending, resource_config: ResourceConfig
) -> LivePod[Pending] | None:
    """What the API server says of a pod that waits; None if that is another one, being deleted or bound.

    Raises:
        WireError: the object cannot be read.
    """
    record = pod_records.read(current, resource_config)
    if not isinstance(record, Pending) or record.ref != known.ref or current["metadata"].get("deletionTimestamp"):
        return None
    return _live(current, record)


def _live(current: Mapping[str, Any], record: P) -> LivePod[P]:
    version = fields.text(current["metadata"], "resourceVersion", "metadata")
    return LivePod(pod=record, version=version, owner=bypass.owner(current))
