"""End reservations whose Binding or patch nobody can account for, by looking at the pod long after."""

import logging
from collections.abc import Callable
from typing import Final

from controller.state import ClusterState, Doubt
from gpushare import names
from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as pods_wire

_LOG: Final = logging.getLogger(__name__)
MAX_LOOKS: Final = 20  # a tick


def settle(*, api: KubeApi, state: ClusterState, clock: Clock, leading: Callable[[], bool]) -> None:
    """Look at the pods of a few old reservations and give back what was never bound."""
    for doubt in state.doubts(clock.monotonic(), most=MAX_LOOKS):
        if not leading():
            return
        try:
            over = _is_over(doubt, api)
        except (kube.KubeError, WireError) as error:
            logs.event(_LOG, "doubt kept", level=logging.WARNING, pod=str(doubt.pod), node=doubt.node, error=str(error))
            if isinstance(error, kube.UnreachableError):
                return  # each further look would wait for its whole deadline, and so would all other chores
            continue
        if over:
            state.end(doubt)
            logs.event(_LOG, "reservation ended", pod=str(doubt.pod), uid=doubt.pod.uid, node=doubt.node)


def _is_over(doubt: Doubt, api: KubeApi) -> bool:
    """Whether what was sent cannot take effect any more. A pod that shows it is left to the watch."""
    try:
        pod = api.get(kube.pod_path(doubt.pod.namespace, doubt.pod.name))
    except kube.NotFoundError:
        return True
    if pods_wire.ref(pod).uid != doubt.pod.uid:
        return True
    shows = names.ANNOTATION_ALLOCATION in pods_wire.annotations(pod) if doubt.late else pods_wire.node_of(pod)
    return doubt.expired and not shows
