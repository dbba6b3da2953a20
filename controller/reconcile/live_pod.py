"""A pod as the API server has it now, for what must not be decided on older news. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.cluster import bypass, records
from gpushare.cluster.bypass import Owner
from gpushare.cluster.records import Bound
from gpushare.resource_config import ResourceConfig
from gpushare.wire import fields


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePod:
    """What was seen."""

    pod: Bound
    version: str
    """Its resourceVersion."""
    owner: Owner | None


def read(current: Mapping[str, Any], known: Bound, resource_config: ResourceConfig) -> LivePod | None:
    """What the API server says of a pod that the watch knows; None if that is another one, being deleted or has GPUs.

    Raises:
        WireError: the object cannot be read.
    """
    record = records.pod_record(current, resource_config)
    if not isinstance(record, Bound) or record.ref != known.ref or record.deleting:
        return None
    if record.bypassed is None and not record.failed:
        return None
    return LivePod(
        pod=record,
        version=fields.text(current["metadata"], "resourceVersion", "metadata"),
        owner=bypass.owner(current),
    )
