"""Tell authors who chose devices themselves that their choice does not count; the webhook cannot post Events."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from controller.reconcile.writer import Writer
from controller.state import ClusterState
from gpushare import names
from gpushare.cluster.pod_records import Bound, PodRecord
from gpushare.identity import PodUid
from gpushare.runtime.clock import Clock

REASON_OVERRIDDEN: Final = "GpuShareDevicesOverridden"
MAX_EVENTS: Final = 20  # a tick
RECENT: Final = timedelta(minutes=10)


@dataclass(kw_only=True)
class OverriddenPods:
    """Warns each pod once."""

    writer: Writer
    state: ClusterState
    clock: Clock
    _told: set[PodUid] = field(default_factory=set)

    def tick(self) -> None:
        """Warn those that have not been warned."""
        pods = {record.ref.uid: record for record in self.state.index.snapshot().overridden}
        self._told &= pods.keys()
        # An earlier leader has told those that are older; after a change of leader no one needs all of it again.
        since = (self.clock.now() - RECENT).strftime("%Y-%m-%dT%H:%M:%SZ")
        fresh = [record for uid, record in pods.items() if uid not in self._told and _is_recent(record, since)]
        for record in fresh[:MAX_EVENTS]:
            self._told.add(record.ref.uid)
            self.writer.warn(record.ref, REASON_OVERRIDDEN, _message(record.overridden))


def _is_recent(record: PodRecord, since: str) -> bool:
    return not isinstance(record, Bound) or record.created >= since


def _message(containers: str) -> str:
    listed = containers.split(",")
    who = f"container{'s' if len(listed) > 1 else ''} {', '.join(listed)}"
    return (
        f"{who}: {names.ENV_VISIBLE_DEVICES} was replaced when the pod was created; a container sees the GPUs that it"
        " is given and no others; remove the variable from the pod's template"
    )
