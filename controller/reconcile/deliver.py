"""Give GPUs to a pod that is on its node already: one patch of its annotations, whose reply may be lost.

As for a Binding: reserve in memory, send the choice once, then keep or give back (`delivery`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from controller import delivery
from controller.delivery import Absent, Shown, Undelivered
from controller.state import AlreadyBound, ClusterState, Reserved
from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.allocation import Allocation, Refused
from gpushare.model.request import PodRequest
from gpushare.runtime.clock import Clock

_READ_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class NotNow:
    """It has to be tried again, or somebody else was first."""

    why: str
    reachable: bool = True
    """False if the API server does not answer; others need not be tried now."""


Result = Allocation | Refused | NotNow


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBinder:
    """Binds pods late. For one thread."""

    api: KubeApi
    state: ClusterState
    clock: Clock
    leading: Callable[[], bool]
    """Whether this process may write, at this very moment."""
    deadline_s: float = 2.0

    def bind(self, request: PodRequest, node: NodeName) -> Result:
        """Choose GPUs for a pod on its node and write them on it. Doing it again changes nothing."""
        reserved = self.state.reserve_bypassed(request, node, now=self.clock.monotonic())
        match reserved:
            case Refused():
                return reserved
            case AlreadyBound():
                return NotNow(f"it has its GPUs already, or is on {reserved.node}")
            case Reserved():
                return self._deliver(request, reserved)

    def _deliver(self, request: PodRequest, reserved: Reserved) -> Result:
        def send() -> None:
            path, body = kube.pod_path(request.pod.namespace, request.pod.name), self._patch(request, reserved)
            # The API server drops the request after the same time, so that it cannot take effect much later.
            limit = {"timeout": f"{self.deadline_s:g}s"}
            self.api.patch(path, body, params=limit, timeout_s=self.deadline_s, precondition=self.leading)

        def read() -> Shown:
            shown = delivery.shown(self.api, self.state, reserved.allocation, timeout_s=_READ_S)
            # It was on its node before, so that tells nothing.
            return Absent.UNBOUND if isinstance(shown, AlreadyBound) else shown

        ended = delivery.deliver(self.state, reserved, send=send, read=read)
        return ended if isinstance(ended, Allocation) else NotNow(_why(ended), reachable=not ended.in_doubt)

    def _patch(self, request: PodRequest, reserved: Reserved) -> JsonObject:
        written = delivery.annotations(reserved, request, self.clock)
        # The uid guards a pod that was recreated under the same name.
        return {"metadata": {"uid": request.pod.uid, "annotations": {**written, names.ANNOTATION_LATE: "true"}}}


def _why(failure: Undelivered) -> str:
    if isinstance(failure.error, kube.NotSentError):
        return "this replica does not lead any more"
    if failure.unread:
        return f"{failure.error}; and the pod could not be read: {failure.unread}"
    if failure.shown is not None:
        return f"no word that it was written: {failure.error}"
    return f"the API server refused it: {failure.error}"
