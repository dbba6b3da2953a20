"""Write what was decided while this process leads. Errors are logged: anyone who decided decides again."""

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

    def post(self, pod: PodRef, reason: str, message: str, kind: EventType = EventType.WARNING) -> None:
        if not self.leading():
            return
        body = kube_pods.event(pod, kind, reason, message, component=names.CONTROLLER, now=self.clock.now())
        try:
            kube_pods.post_event(self.api, body)
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
