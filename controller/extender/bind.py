"""Bind a pod to a node together with its GPUs: one request, whose reply may be lost.

Reserve in memory, send ONE Binding that carries the choice as annotations, then keep or give back (`delivery`).
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from controller import delivery
from controller.delivery import Absent, ReadBack, Undelivered
from controller.extender.messages import BindArgs
from controller.reconcile import node_requests
from controller.state import AlreadyBound, ClusterState, Reserved
from gpushare import errors, names
from gpushare.cluster.pod_records import Pending
from gpushare.errors import WireError
from gpushare.identity import PodRef, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.ledger import Allocation, Refused
from gpushare.model.request import PodRequest
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as pods_wire, requests

_LOG: Final = logging.getLogger(__name__)
_WATCH_LOOKS: Final = 25
_WATCH_LOOK_S: Final = 0.02
_NEVER: Final = threading.Event()
_READ_S: Final = 1.5
BUDGET_S: Final = names.EXTENDER_TIMEOUT_S - 1.0  # of a whole bind; the rest is for the way here and back
LEAST_S: Final = 0.2  # a request with less time than this would only leave its pod in doubt


class Outcome(Enum):
    BOUND = "bound"
    BOUND_BEFORE = "bound-before"
    BOUND_ELSEWHERE = "bound-elsewhere"
    REFUSED = "refused"
    INVALID = "invalid"
    NOT_LEADING = "not-leading"
    OUT_OF_TIME = "out-of-time"
    POD_GONE = "pod-gone"
    API_ERROR = "api-error"
    IN_DOUBT = "in-doubt"


@dataclass(frozen=True, slots=True)
class BindResult:
    """What the scheduler is told; an empty error is success."""

    outcome: Outcome
    error: str = ""


_NO_TIME: Final = "there was no time left to bind the pod before kube-scheduler gives up; try again"
_OUT_OF_TIME: Final = BindResult(Outcome.OUT_OF_TIME, _NO_TIME)
_NOT_LEAD: Final = "this replica of the gpushare controller does not lead; try again"
_NOT_LEADING: Final = BindResult(Outcome.NOT_LEADING, _NOT_LEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binder:
    """Binds pods. Safe for use by many threads."""

    api: KubeApi
    state: ClusterState
    clock: Clock
    leading: Callable[[], bool]  # whether this process may write, at this very moment
    deadline_s: float = 2.0

    def bind(self, args: BindArgs, *, received: float | None = None) -> BindResult:
        """Bind a pod. Doing it again changes nothing. Its time is counted from `received`, in monotonic seconds."""
        answer = self._bind(args, BUDGET_S + (self.clock.monotonic() if received is None else received))
        level, outcome, error = logging.WARNING if answer.error else logging.INFO, answer.outcome.value, answer.error
        pod, uid = str(args.pod), args.pod.uid
        logs.event(_LOG, "bind", level=level, outcome=outcome, pod=pod, uid=uid, node=args.node, error=error)
        return answer

    def _bind(self, args: BindArgs, until: float) -> BindResult:
        if not self.leading():
            return _NOT_LEADING
        if not self._in_time(until):
            return _OUT_OF_TIME
        if args.pod.namespace == names.PLACEHOLDERS:
            return BindResult(Outcome.REFUSED, node_requests.REFUSED)
        if (bound := self.state.bound(args.pod.uid)) is not None:
            return _bound_before(args, bound)
        request = self._request(args, until)
        if isinstance(request, BindResult):
            return request
        match reserved := self.state.reserve(request, args.node, now=self.clock.monotonic()):
            case Refused():
                return BindResult(Outcome.REFUSED, self.state.public(request.shape)(reserved).message)
            case AlreadyBound():
                return _bound_before(args, reserved)
            case Reserved():
                return self._deliver(args, request, reserved, until)

    def _request(self, args: BindArgs, until: float) -> PodRequest | BindResult:
        """What the pod asks for: from the watch, or from the API server if that lags; never from the scheduler."""
        ref = args.pod
        if (pending := self._pending(ref.uid)) is not None:
            return pending.request or BindResult(Outcome.INVALID, pending.problem or _no_gpu(ref))

        def requested(pod: JsonObject) -> PodRequest | BindResult:
            if pods_wire.ref(pod).uid != ref.uid:
                return _gone(args)
            return requests.of_pod(pod, self.state.resource_config) or BindResult(Outcome.INVALID, _no_gpu(ref))

        try:
            path, timeout_s = kube.pod_path(ref.namespace, ref.name), self._at_most(_READ_S, until)
            return self.api.read_object(path, keep=requested, timeout_s=timeout_s)
        except kube.NotFoundError:
            return _gone(args)
        except kube.KubeError as error:
            return BindResult(Outcome.API_ERROR, f"pod {ref} could not be read: {error}; it is tried again")
        except (errors.InvalidRequestError, WireError) as error:
            return BindResult(Outcome.INVALID, str(error))

    def _pending(self, uid: PodUid) -> Pending | None:
        """The pod as the watch has it. It may be a moment behind kube-scheduler's own watch; a request costs more."""
        for _ in range(_WATCH_LOOKS):
            if (pending := self.state.index.pending(uid)) is not None:
                return pending
            self.clock.wait(_NEVER, _WATCH_LOOK_S)
        return None

    def _deliver(self, args: BindArgs, request: PodRequest, reserved: Reserved, until: float) -> BindResult:
        def send() -> None:
            pod, timeout_s = args.pod, self._at_most(self.deadline_s, until)
            annotations = delivery.annotations(reserved, request, self.clock)
            body = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": annotations},
                "target": {"apiVersion": "v1", "kind": "Node", "name": args.node},
            }
            path, limit = kube.pod_path(pod.namespace, pod.name, "binding"), delivery.limit(timeout_s)
            self.api.create(path, body, params=limit, timeout_s=timeout_s, precondition=may_send)

        def may_send() -> bool:
            return self.leading() and self._in_time(until)

        def read() -> ReadBack:
            timeout_s = self._at_most(_READ_S, until)
            return delivery.read_back(self.api, self.state, reserved.allocation, timeout_s=timeout_s)

        ended = delivery.deliver(self.state, reserved, send=send, read=read)
        if isinstance(ended, Allocation):
            return BindResult(Outcome.BOUND)
        if isinstance(ended.error, kube.NotSentError):
            return _NOT_LEADING if self._in_time(until) else _OUT_OF_TIME
        return _undelivered(args, ended)

    def _in_time(self, until: float) -> bool:
        return self.clock.monotonic() + LEAST_S <= until

    def _at_most(self, seconds: float, until: float) -> float:
        if not self._in_time(until):
            raise kube.NotSentError("there was no time left before kube-scheduler gives up")
        return min(seconds, until - self.clock.monotonic())


def _no_gpu(ref: PodRef) -> str:
    return f"pod {ref} asks for no GPU; let kube-scheduler bind it"


def _bound_before(args: BindArgs, before: AlreadyBound) -> BindResult:
    pod, node = f"pod {args.pod}", before.node
    if node != args.node:
        return BindResult(Outcome.BOUND_ELSEWHERE, f"{pod} is bound to node {node} already")
    if not before.granted:
        how = f"{pod} was bound to node {node} without GPUs, not by gpushare; delete it so that it is recreated"
        return BindResult(Outcome.BOUND_ELSEWHERE, how)
    return BindResult(Outcome.BOUND_BEFORE)


def _gone(args: BindArgs) -> BindResult:
    return BindResult(Outcome.POD_GONE, f"pod {args.pod} with uid {args.pod.uid} no longer exists")


def _undelivered(args: BindArgs, ended: Undelivered) -> BindResult:
    if isinstance(ended.read_back, AlreadyBound):
        return _bound_before(args, ended.read_back)
    if ended.read_back is Absent.GONE or isinstance(ended.error, kube.NotFoundError):
        return _gone(args)
    if isinstance(ended.error, kube.ConflictError) and ended.unread:
        text = f"{ended.error}; and the pod could not be read: {ended.unread}; try again"
        return BindResult(Outcome.IN_DOUBT, text)
    if not ended.in_doubt:
        return BindResult(Outcome.API_ERROR, f"the API server refused the Binding: {ended.error}")
    rest = f"and the pod could not be read: {ended.unread}" if ended.unread else "the memory stays reserved, try again"
    return BindResult(Outcome.IN_DOUBT, f"no answer to the Binding: {ended.error}; {rest}")
