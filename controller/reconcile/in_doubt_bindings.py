"""End reservations whose Binding or patch no one can account for, by looking at the pod long after."""

import logging
from collections.abc import Callable
from typing import Final

from controller.reservations import InDoubt
from controller.state import ClusterState
from gpushare import names
from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as pods_wire

_LOG: Final = logging.getLogger(__name__)
MAX_READS: Final = 20  # a tick


def resolve(*, api: KubeApi, state: ClusterState, clock: Clock, leading: Callable[[], bool]) -> None:
    """Look at the pods of a few old reservations and give back what was never bound."""
    for in_doubt in state.in_doubt(clock.monotonic(), most=MAX_READS):
        if not leading():
            return
        try:
            over = _is_over(in_doubt, api)
        except (kube.KubeError, WireError) as error:
            pod, node = str(in_doubt.pod), in_doubt.node
            logs.event(_LOG, "still in doubt", level=logging.WARNING, pod=pod, node=node, error=str(error))
            if isinstance(error, kube.UnreachableError):
                return  # each further look would wait for its whole deadline, and so would all other chores
            continue
        if over:
            state.end(in_doubt)
            logs.event(_LOG, "reservation ended", pod=str(in_doubt.pod), uid=in_doubt.pod.uid, node=in_doubt.node)


def _is_over(in_doubt: InDoubt, api: KubeApi) -> bool:
    """Whether what was sent cannot take effect any more. A pod that shows it is left to the watch."""
    try:
        pod = api.get(kube.pod_path(in_doubt.pod.namespace, in_doubt.pod.name))
    except kube.NotFoundError:
        return True
    if pods_wire.ref(pod).uid != in_doubt.pod.uid:
        return True
    shows = names.ANNOTATION_ALLOCATION in pods_wire.annotations(pod) if in_doubt.bypassed else pods_wire.node_of(pod)
    return in_doubt.expired and not shows
