"""Writes to pods while this process leads: Events, a label for the scheduler, deletions for controllers to recreate.

The webhook may be away, or never see that namespace; then a new pod is as bad as the one before. So one pod of each
owner is deleted first. If no new one is as bad, the others follow; else one more is tried, ever later. What cannot be
taken back is decided on the pod as the API server has it at that moment. Errors are logged: anyone who decided decides
again.
"""

import logging
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from gpushare import names
from gpushare.cluster import bypass, pod_records
from gpushare.cluster.bypass import Owner
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.identity import PodRef, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import EventType, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import ResourceConfig
from gpushare.wire import fields

_LOG: Final = logging.getLogger(__name__)
READ_S: Final = 1.5
FIRST_S: Final = 60.0  # any controller has made a new pod by then
CAP_S: Final = 960.0
FORGET_S: Final = 2 * CAP_S
P = TypeVar("P", Bound, Pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    api: KubeApi
    clock: Clock
    leading: Callable[[], bool]  # whether this process may write, at this very moment

    def post(self, pod: PodRef, reason: str, message: str, kind: EventType = EventType.WARNING) -> None:
        if not self.leading():
            return
        body = kube.event(pod, kind, reason, message, component=names.CONTROLLER, now=self.clock.now())
        try:
            kube.post_event(self.api, body)
            logs.event(_LOG, "told" if kind is EventType.NORMAL else "warned", pod=str(pod), reason=reason)
        except kube.KubeError as error:
            logs.event(_LOG, "event failed", level=logging.WARNING, pod=str(pod), reason=reason, error=str(error))

    def delete(self, pod: PodRef, version: str) -> bool:
        """Delete a pod, unless its resourceVersion is another by now, or another pod has its name. Whether it did."""
        same = {"uid": pod.uid, "resourceVersion": version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": same}
        try:
            self.api.delete(kube.pod_path(pod.namespace, pod.name), body, timeout_s=3.0, precondition=self.leading)
        except (kube.NotFoundError, kube.NotSentError):
            return False
        except kube.KubeError as error:
            logs.event(_LOG, "not deleted", level=logging.WARNING, pod=str(pod), error=str(error))
            return False
        return True

    def nudge(self, pod: PodRef, value: str) -> None:
        """Make the scheduler try a pod again, by another value of its retry label."""
        # The uid guards a pod that was recreated under the same name.
        body = {"metadata": {"uid": pod.uid, "labels": {names.LABEL_RETRY: value}}}
        try:
            self.api.patch(kube.pod_path(pod.namespace, pod.name), body, timeout_s=3.0, precondition=self.leading)
            logs.event(_LOG, "nudged", pod=str(pod))
        except kube.KubeError as error:
            logs.event(_LOG, "nudge failed", level=logging.WARNING, pod=str(pod), error=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePod(Generic[P]):
    pod: P
    version: str  # its resourceVersion
    owner: Owner | None

    @property
    def is_recreated(self) -> bool:
        """Whether it may be deleted, as something makes it again."""
        return self.owner is not None and not self.owner.keeps_pods


class _Try(NamedTuple):
    at: float
    wait_s: float
    known: Set[PodUid]  # bad pods of the owner at that time, the deleted one included


@dataclass(kw_only=True)
class Recreator:
    """Reads pods again, and deletes those that their controllers recreate. Times are monotonic seconds."""

    writer: Writer
    resource_config: ResourceConfig
    recreated: int = 0  # pods since the start
    _tries: dict[str, _Try] = field(default_factory=dict)  # by the owners' UIDs
    _bad: dict[str, set[PodUid]] = field(default_factory=dict)  # pods that have to be created again, by their owners

    def note(self, bad: Iterable[tuple[str, PodUid]], now: float) -> None:
        """Which pods have to be created again, by the UIDs of their owners."""
        self._tries = {owner: last for owner, last in self._tries.items() if now - last.at < FORGET_S}
        self._bad = {}
        for owner, pod in bad:
            self._bad.setdefault(owner, set()).add(pod)

    def may_delete(self, owner: str, now: float) -> bool:
        """Whether one of the owner's bad pods may be deleted now: always, or for one try."""
        last = self._tries.get(owner)
        return last is None or now - last.at >= last.wait_s

    def deleted(self, owner: str, now: float) -> None:
        last, bad = self._tries.get(owner), self._bad[owner]
        if last is None or not bad <= last.known:  # else it has worked
            self._tries[owner] = _Try(now, FIRST_S if last is None else min(last.wait_s * 2, CAP_S), frozenset(bad))

    def read(self, known: P) -> LivePod[P] | None:
        """As it is now; None if it is gone, going or another one. May raise a KubeError or a WireError."""
        try:
            current = self.writer.api.get(kube.pod_path(known.ref.namespace, known.ref.name), timeout_s=READ_S)
        except kube.NotFoundError:
            return None
        record = pod_records.read(current, self.resource_config)
        if not isinstance(record, type(known)) or record.ref != known.ref:
            return None
        metadata = current["metadata"]
        if metadata.get("deletionTimestamp"):
            return None
        version = fields.text(metadata, "resourceVersion", "metadata")
        return LivePod(pod=record, version=version, owner=bypass.owner(current))

    def delete(self, live: LivePod[Bound] | LivePod[Pending], owner: str, now: float) -> bool:
        """Delete a pod that was just read, for its owner to recreate it. Whether it was."""
        pod = live.pod
        if not self.writer.delete(pod.ref, live.version):
            return False
        self.recreated += 1
        self.deleted(owner, now)
        node = pod.node if isinstance(pod, Bound) else ""
        logs.event(_LOG, "pod recreated", pod=str(pod.ref), uid=pod.ref.uid, node=node, owner=owner)
        return True
