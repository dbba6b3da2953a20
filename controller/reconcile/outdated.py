"""Waiting pods that were created without a RuntimeClass, while every node handed over by CDI, and fit on others by now.

Nothing can add the class to a pod. One that a controller owns is deleted, so that it is created with the class, which
is right on every node; the author of any other is told to create it again.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from controller.reconcile import live_pod
from controller.reconcile.advice import REASON_UNSCHEDULABLE
from controller.reconcile.recreate_backoff import RecreateBackoff
from controller.reconcile.writer import Writer
from gpushare.cluster.pod_records import Pending
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodUid
from gpushare.kube import api as kube
from gpushare.model.allocation import RefusalReason, Refused
from gpushare.runtime import logs
from gpushare.units import ResourceConfig

_LOG: Final = logging.getLogger(__name__)
SETTLE_S: Final = 30.0  # the webhook has learnt of the other node by then, and the scheduler has tried the pod again
READ_S: Final = 1.5


def elsewhere(answers: Mapping[NodeName, int | Refused], created_now: Mapping[NodeName, int | Refused]) -> str:
    """Why the node refuses on which a pod would fit if it were created now; empty if there is none. Pure."""
    refusals = (
        answer.message
        for name, answer in sorted(answers.items())
        if isinstance(answer, Refused)
        and answer.reason is RefusalReason.OTHER_HAND_OVER
        and isinstance(created_now.get(name), int)
    )
    return next(refusals, "")


@dataclass(kw_only=True)
class OutdatedPods:
    """Deletes those that are recreated, one of each owner first (`RecreateBackoff`), and says how it is with others."""

    writer: Writer
    resource_config: ResourceConfig
    recreated: int = 0
    """Pods since the start."""
    _backoff: RecreateBackoff = field(default_factory=RecreateBackoff)
    _since: dict[PodUid, float] = field(default_factory=dict)
    _advice: dict[PodUid, str] = field(default_factory=dict)
    """For pods that have an owner, and that only their authors may delete."""
    _by_owner: dict[str, set[PodUid]] = field(default_factory=dict)

    def note(self, waiting: Iterable[Pending], now: float) -> None:
        """Which pods wait at all; `now` is monotonic."""
        marked = [pod for pod in waiting if pod.request is not None and pod.request.shape.only_cdi]
        self._backoff.forget(now)
        self._since = {pod.ref.uid: self._since[pod.ref.uid] for pod in marked if pod.ref.uid in self._since}
        self._advice = {uid: advice for uid, advice in self._advice.items() if uid in self._since}
        self._by_owner = {}
        for pod in marked:
            self._by_owner.setdefault(pod.owner, set()).add(pod.ref.uid)

    def recreate(self, pod: Pending, why: str, now: float) -> bool:
        """Delete the pod if it has waited long enough and is recreated. Whether a request was made.

        Args:
            pod: it waits.
            why: `elsewhere`'s answer.
            now: monotonic.
        """
        if not why:
            self._since.pop(pod.ref.uid, None)
        elif now - self._since.setdefault(pod.ref.uid, now) >= SETTLE_S and self._is_recreated(pod):
            return self._backoff.may_delete(pod.owner, now) and self._delete(pod, why, now)
        return False

    def advice(self, pod: Pending, why: str, now: float) -> str:
        """What the author is told of a pod that has waited long enough and that nothing recreates; else empty."""
        if not why or now - self._since.get(pod.ref.uid, now) < SETTLE_S or self._is_recreated(pod):
            return ""
        return why + self._advice.get(pod.ref.uid, "")

    def _is_recreated(self, pod: Pending) -> bool:
        return bool(pod.owner) and pod.ref.uid not in self._advice

    def _delete(self, pod: Pending, why: str, now: float) -> bool:
        try:
            current = self.writer.api.get(kube.pod_path(pod.ref.namespace, pod.ref.name), timeout_s=READ_S)
            live = live_pod.read_pending(current, pod, self.resource_config)
        except (kube.KubeError, WireError) as error:
            logs.event(_LOG, "not recreated", level=logging.WARNING, pod=str(pod.ref), error=str(error))
            live = None
        if live is None:
            self._since[pod.ref.uid] = now  # the watch is behind, and will tell
            return True
        if live.owner is None or live.owner.keeps_pods:
            self._advice[pod.ref.uid] = f": {live.owner.advice}" if live.owner is not None else ""
            return True
        message = f"{why}: it is deleted now, so that its controller does so"
        self.writer.warn(pod.ref, REASON_UNSCHEDULABLE, message)
        if not self.writer.delete(pod.ref, live.version):
            self._since[pod.ref.uid] = now
            return True
        self.recreated += 1
        self._backoff.deleted(pod.owner, self._by_owner[pod.owner], now)
        logs.event(_LOG, "pod recreated", pod=str(pod.ref), uid=pod.ref.uid, owner=pod.owner)
        return True
