"""Give GPUs to a pod that is on its node already: one patch of its annotations, whose reply may be lost.

As for a Binding: reserve in memory, send the choice once, then keep or give back. When nobody can tell whether the
patch took effect, the pod is read; when even that does not tell, the memory stays reserved.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from controller.state import AlreadyBound, ClusterState, Reserved
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.allocation import Allocation
from gpushare.model.request import PodRequest
from gpushare.model.verdict import Refused
from gpushare.runtime.clock import Clock
from gpushare.wire import allocation as allocation_wire
from gpushare.wire import holdings
from gpushare.wire import pods as pods_wire

_READ_S: Final = 1.5


class _Fate(Enum):
    """What becomes of a reservation that is not confirmed."""

    DOUBT = "doubt"
    UNDO = "undo"


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
        reserved = self.state.reserve_late(request, node, now=self.clock.monotonic())
        match reserved:
            case Refused():
                return reserved
            case AlreadyBound():
                return NotNow(f"it has its GPUs already, or is on {reserved.node}")
            case Reserved():
                return self._deliver(request, reserved)

    def _deliver(self, request: PodRequest, reserved: Reserved) -> Result:
        """Send the choice and end the reservation, whatever happens."""
        why = ""
        found: Allocation | _Fate = _Fate.DOUBT
        try:
            why, found = self._send(request, reserved)
        finally:
            match found:
                case Allocation():
                    self.state.confirm(found)
                case _Fate.DOUBT:
                    self.state.doubt(request.pod.uid, reserved.allocation.node)
                case _Fate.UNDO:
                    self.state.undo(request.pod.uid, reserved.allocation.node)
        return found if isinstance(found, Allocation) else NotNow(why, reachable=found is not _Fate.DOUBT)

    def _send(self, request: PodRequest, reserved: Reserved) -> tuple[str, Allocation | _Fate]:
        body = self._patch(request, reserved)
        try:
            path = kube.pod_path(request.pod.namespace, request.pod.name)
            # The API server drops the request after the same time, so that it cannot take effect much later.
            limit = {"timeout": f"{self.deadline_s:g}s"}
            self.api.patch(path, body, params=limit, timeout_s=self.deadline_s, precondition=self.leading)
        except kube.NotSentError:
            return "this replica does not lead any more", _Fate.UNDO
        except kube.ConflictError as error:
            return self._after(request, error, else_=_Fate.UNDO)
        except (kube.UnreachableError, kube.ServerFaultError) as error:
            return self._after(request, error, else_=_Fate.DOUBT)
        except kube.KubeError as error:
            return f"the API server refused it: {error}", _Fate.UNDO
        return "", reserved.allocation

    def _after(self, request: PodRequest, error: kube.KubeError, *, else_: _Fate) -> tuple[str, Allocation | _Fate]:
        """What the pod itself says after an error that does not tell all.

        Args:
            request: the pod.
            error: what was answered.
            else_: what becomes of the reservation if the pod shows no allocation.
        """
        try:
            pod = self.api.get(kube.pod_path(request.pod.namespace, request.pod.name), timeout_s=_READ_S)
            same = pods_wire.ref(pod).uid == request.pod.uid
            found = holdings.allocation(pod, self.state.unit) if same else None
        except kube.NotFoundError:
            found = None
        except (kube.KubeError, WireError) as unread:
            return f"{error}; and the pod could not be read: {unread}", _Fate.DOUBT
        return ("", found) if found is not None else (f"no word that it was written: {error}", else_)

    def _patch(self, request: PodRequest, reserved: Reserved) -> JsonObject:
        assumed_ns = int(self.clock.now().timestamp() * 1_000_000) * 1000
        written = allocation_wire.binding_annotations(reserved.allocation, reserved.inventory, assumed_ns, request)
        # The uid guards a pod that was made anew under the same name.
        return {"metadata": {"uid": request.pod.uid, "annotations": {**written, names.ANNOTATION_LATE: "true"}}}
