"""Write what was decided, for as long as this process leads.

Nothing here is worth failing for: errors are logged, and anyone who decided decides again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.identity import PodRef
from gpushare.kube import api as kube
from gpushare.kube import pods as kube_pods
from gpushare.kube.api import KubeApi
from gpushare.kube.pods import EventType
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    api: KubeApi
    clock: Clock
    leading: Callable[[], bool]  # whether this process may write, at this very moment

    def warn(self, pod: PodRef, reason: str, message: str) -> None:
        self._post(pod, EventType.WARNING, reason, message)

    def post_normal(self, pod: PodRef, reason: str, message: str) -> None:
        self._post(pod, EventType.NORMAL, reason, message)

    def delete(self, pod: PodRef, version: str) -> bool:
        """Delete a pod, unless its resourceVersion is another by now, or another pod has its name. Whether it did."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": pod.uid, "resourceVersion": version},
        }
        try:
            path = kube.pod_path(pod.namespace, pod.name)
            self.api.delete(path, body, timeout_s=3.0, precondition=self.leading)
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
            path = kube.pod_path(pod.namespace, pod.name)
            self.api.patch(path, body, timeout_s=3.0, precondition=self.leading)
            logs.event(_LOG, "nudged", pod=str(pod))
        except kube.KubeError as error:
            logs.event(_LOG, "nudge failed", level=logging.WARNING, pod=str(pod), error=str(error))

    def _post(self, pod: PodRef, kind: EventType, reason: str, message: str) -> None:
        if not self.leading():
            return
        body = kube_pods.event(pod, kind, reason, message, component=names.CONTROLLER, now=self.clock.now())
        try:
            kube_pods.post_event(self.api, body)
            logs.event(_LOG, "told" if kind is EventType.NORMAL else "warned", pod=str(pod), reason=reason)
        except kube.KubeError as error:
            logs.event(_LOG, "event failed", level=logging.WARNING, pod=str(pod), reason=reason, error=str(error))
