"""Perform what was decided about waiting pods. Nothing here is worth failing for: errors are logged and forgotten."""

import logging
from typing import Final, assert_never

from controller.reconcile.unschedulable import Action, Explain, Nudge
from gpushare import names
from gpushare.identity import PodRef
from gpushare.kube import api as kube
from gpushare.kube import events
from gpushare.kube.api import KubeApi
from gpushare.kube.events import EventType
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
COMPONENT: Final = names.SERVICE_ACCOUNT_CONTROLLER
REASON_UNSCHEDULABLE: Final = "GpuShareUnschedulable"
REASON_UNREADABLE: Final = "GpuShareUnreadableAllocation"


def perform(action: Action, *, api: KubeApi, clock: Clock) -> None:
    """Do one thing."""
    match action:
        case Explain(pod, message):
            warn(pod, REASON_UNSCHEDULABLE, message, api=api, clock=clock)
        case Nudge(pod, value):
            # The uid guards a pod that was made anew under the same name.
            body = {"metadata": {"uid": pod.uid, "labels": {names.LABEL_RETRY: value}}}
            try:
                api.patch(kube.pod_path(pod.namespace, pod.name), body, timeout_s=3.0)
                logs.event(_LOG, "nudged", pod=str(pod))
            except kube.KubeError as error:
                logs.event(_LOG, "nudge failed", level=logging.WARNING, pod=str(pod), error=str(error))
        case _:
            assert_never(action)


def warn(pod: PodRef, reason: str, message: str, *, api: KubeApi, clock: Clock) -> None:
    """Post a warning on a pod."""
    body = events.event(pod, EventType.WARNING, reason, message, component=COMPONENT, now=clock.now())
    try:
        events.post(api, body)
        logs.event(_LOG, "warned", pod=str(pod), reason=reason)
    except kube.KubeError as error:
        logs.event(_LOG, "event failed", level=logging.WARNING, pod=str(pod), reason=reason, error=str(error))
