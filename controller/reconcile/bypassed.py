"""Handle bypassed and rejected pods: gather, let `bypass_decision` decide, write.

A pod that waits on its node for GPUs gets them by one patch, whose reply may be lost (`controller.delivery`).
"""

import logging
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from controller import delivery
from controller.delivery import Absent, ReadBack, Undelivered
from controller.index import Snapshot
from controller.reconcile import advice, bypass_decision
from controller.reconcile.advice import Tell
from controller.reconcile.bypass_decision import Action, Note, Step
from controller.reconcile.recreate import READ_S, LivePod, Recreator
from controller.reconcile.writer import Writer
from controller.state import AlreadyBound, ClusterState
from gpushare import names
from gpushare.cluster import bypass, node_ledger
from gpushare.cluster.bypass import Fate
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.pod_records import Bound
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodUid
from gpushare.kube import api as kube
from gpushare.kube.pods import EventType
from gpushare.model.allocation import Allocation, Refused
from gpushare.model.request import PodRequest
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
MAX_STEPS: Final = 10  # a tick, of one to four requests each
JUDGE_S: Final = 0.25  # a tick; many strange pods must not take the scheduler's processor


def bind_late(
    request: PodRequest, node: NodeName, *, writer: Writer, state: ClusterState, deadline_s: float = 2.0
) -> Allocation | Refused | str:
    """Choose GPUs for a pod on its node and write them on it. Doing it again changes nothing.

    A text says why not now. Raises UnreachableError: no one knows whether it was written, and others need not be tried.
    """
    reserved = state.reserve(request, node, now=writer.clock.monotonic(), bypassed=True)
    match reserved:
        case Refused():
            return reserved
        case AlreadyBound():
            return f"it has its GPUs already, or is on {reserved.node}"

    def send() -> None:
        written = delivery.annotations(reserved, request, writer.clock)
        # The uid guards a pod that was recreated under the same name.
        body = {"metadata": {"uid": request.pod.uid, "annotations": {**written, names.ANNOTATION_LATE: "true"}}}
        path = kube.pod_path(request.pod.namespace, request.pod.name)
        # The API server drops the request after the same time, so that it cannot take effect much later.
        limit = {"timeout": f"{deadline_s:g}s"}
        writer.api.patch(path, body, params=limit, timeout_s=deadline_s, precondition=writer.leading)

    def read() -> ReadBack:
        shown = delivery.read_back(writer.api, state, reserved.allocation, timeout_s=READ_S)
        # It was on its node before, so that tells nothing.
        return Absent.UNBOUND if isinstance(shown, AlreadyBound) else shown

    ended = delivery.deliver(state, reserved, send=send, read=read)
    if isinstance(ended, Allocation):
        return ended
    if ended.in_doubt:
        raise kube.UnreachableError(_why(ended))
    return _why(ended)


def _why(failure: Undelivered) -> str:
    if isinstance(failure.error, kube.NotSentError):
        return "this replica no longer leads"
    if failure.unread:
        return f"{failure.error}; and the pod could not be read: {failure.unread}"
    if failure.read_back is not None:
        return f"no word that it was written: {failure.error}"
    return f"the API server refused it: {failure.error}"


@dataclass(kw_only=True)
class BypassedPods:
    writer: Writer
    state: ClusterState
    bind_s: float = 2.0  # deadline of a patch that binds a pod late, as for a Binding
    bound_late: int = 0  # pods since the start, as all these numbers
    rejected_deleted: int = 0
    _notes: dict[PodUid, Note] = field(default_factory=dict)
    recreator: Recreator = field(init=False)

    def __post_init__(self) -> None:
        self.recreator = Recreator(writer=self.writer, resource_config=self.state.resource_config)

    def tick(self, snapshot: Snapshot) -> None:
        """Handle those whose turn it is: who was judged the longest ago, and of those the oldest pods."""
        bypassed, now = snapshot.bypassed, self.writer.clock.monotonic()
        self._notes = {pod.ref.uid: self._notes.get(pod.ref.uid, Note(since=now)) for pod in bypassed}
        owners = ((bypass_decision.recreating_owner(pod), pod.ref.uid) for pod in bypassed)
        self.recreator.note(((owner, uid) for owner, uid in owners if owner), now)
        steps, judging_s = 0, 0.0
        for pod in sorted(bypassed, key=lambda pod: (self._notes[pod.ref.uid].judged_at, pod.created, pod.ref.uid)):
            if steps >= MAX_STEPS or judging_s >= JUDGE_S or not self.writer.leading():
                return
            started = self.writer.clock.monotonic()
            step = self._judge(pod)
            judging_s += self.writer.clock.monotonic() - started
            if step is None:
                continue
            try:
                steps += self._take(pod, step)
            except (kube.KubeError, WireError) as error:
                steps += 1
                self._failed(pod, str(error))
                if isinstance(error, kube.UnreachableError):
                    return  # each further request would wait for its whole deadline, and so would all other chores

    def _judge(self, pod: Bound) -> Step | None:
        note, now = self._notes[pod.ref.uid], self.writer.clock.monotonic()
        ledger = self.state.index.occupants(pod.node)[0]
        refusal = self._refusal(pod, note, ledger)
        resources = self.state.resource_config.resources
        step = bypass_decision.decide(pod, note, ledger=ledger, refusal=refusal, resources=resources, now=now)
        known = replace(note, ledger=ledger, refusal=refusal) if refusal else note
        self._notes[pod.ref.uid] = replace(known, judged_at=now)
        return step

    def _refusal(self, pod: Bound, note: Note, ledger: LedgerOrRefused) -> str:
        """Why a pod does not fit on its node; empty also if GPUs were chosen for it before."""
        if self.state.index.reserved_on(pod.ref.uid):
            return ""
        request = bypass_decision.to_place(pod, note, ledger)
        if request is None:
            return note.refusal
        shape = self.state.resolve(request.shape, request.labels)
        verdict = node_ledger.verdict(shape, ledger, self.state.policies)
        return verdict.message if isinstance(verdict, Refused) else ""

    def _take(self, pod: Bound, step: Step) -> bool:
        """Whether a request was made."""
        match step:
            case Tell():
                return self._tell(step)
            case Action.PLACE:
                self._place(pod)
            case Action.RECREATE:
                return self._recreate(pod)
            case Action.GIVE_UP:
                self._still(pod, Fate.TOO_LATE)
            case Action.DELETE_REJECTED:
                self._delete_rejected(pod)
            case _:
                assert_never(step)
        return True

    def _tell(self, step: Tell) -> bool:
        note = self._notes[step.pod.uid]
        throttle = note.throttle.after(step.message, self.writer.clock.monotonic())
        if throttle is None:
            return False
        self._notes[step.pod.uid] = note.after_word(throttle, self.writer.clock.monotonic())
        self.writer.post(step.pod, step.reason, step.message)
        return True

    def _place(self, pod: Bound) -> None:
        live = self._still(pod, Fate.BIND)
        if live is None or live.pod.bypassed is None or live.pod.bypassed.request is None:
            return
        request = live.pod.bypassed.request
        result = bind_late(request, pod.node, writer=self.writer, state=self.state, deadline_s=self.bind_s)
        match result:
            case Refused():
                self._failed(pod, "")
                self._tell(advice.waiting(pod, result.message))
            case Allocation():
                self.bound_late += 1
                logs.event(_LOG, "bound late", pod=str(pod.ref), uid=pod.ref.uid, node=pod.node)
                given = ", ".join(f"container {grant.container}: {', '.join(grant.gpus)}" for grant in result.grants)
                message = f"it came to {pod.node} without GPUs, and was given them there: {given}"
                self.writer.post(pod.ref, advice.REASON_BOUND_LATE, message, EventType.NORMAL)
            case why:
                self._failed(pod, why)

    def _recreate(self, pod: Bound) -> bool:
        owner, now = bypass_decision.recreating_owner(pod), self.writer.clock.monotonic()
        if not self.recreator.may_delete(owner, now):
            return False
        live = self._still_outdated(pod) if pod.outdated else self._still(pod, Fate.RECREATE)
        if live is None:
            return True
        self._tell(advice.outdated(pod) if pod.outdated else advice.recreated(pod))
        if not self.recreator.delete(live, owner, now):
            self._failed(pod, "")
        return True

    def _still(self, pod: Bound, wanted: Fate) -> LivePod[Bound] | None:
        """The pod as it is now, if this is still what becomes of it. Its author is told if nothing can be done."""
        live = self._fresh(pod)
        if live is None or live.pod.bypassed is None:
            return None
        ledger = self.state.index.occupants(pod.node)[0]
        fate, text = bypass.outcome(live.pod.bypassed, ledger, live.owner)
        if fate is Fate.TOO_LATE:
            self._give_up(pod, advice.without_gpu(pod))
        elif fate is Fate.ASK_AUTHOR and wanted is Fate.RECREATE:
            self._give_up(pod, advice.not_mutated(pod, text))
        elif fate is wanted:
            return live
        return None  # else the watch is behind, and will tell

    def _still_outdated(self, pod: Bound) -> LivePod[Bound] | None:
        """The pod as it is now, if it still cannot start and is recreated. Its author knows it from its node."""
        live = self._fresh(pod)
        if live is None or not live.pod.outdated:
            return None
        if live.owner is None or live.owner.keeps_pods:
            self._notes[pod.ref.uid] = self._notes[pod.ref.uid].ended(pod)
            return None
        return live

    def _give_up(self, pod: Bound, step: Tell) -> None:
        self._notes[pod.ref.uid] = self._notes[pod.ref.uid].ended(pod, step)
        self._tell(step)

    def _delete_rejected(self, pod: Bound) -> None:
        live = self._fresh(pod)
        if live is None or not live.pod.failed:
            return
        if live.owner is None or live.owner.keeps_pods:
            self._notes[pod.ref.uid] = self._notes[pod.ref.uid].ended(pod)
        elif self.writer.delete(pod.ref, live.version):
            self.rejected_deleted += 1
            logs.event(_LOG, "rejected pod deleted", pod=str(pod.ref), uid=pod.ref.uid, node=pod.node, why=pod.failed)
        else:
            self._failed(pod, "")

    def _fresh(self, pod: Bound) -> LivePod[Bound] | None:
        """The pod as it is now; None if the watch is behind, and will tell. May raise a KubeError or a WireError."""
        live = self.recreator.read(pod)
        if live is None or (live.pod.bypassed is None and not live.pod.failed and not live.pod.outdated):
            self._failed(pod, "")
            return None
        return live

    def _failed(self, pod: Bound, why: str) -> None:
        """Try again later; say why, unless it is no news."""
        now = self.writer.clock.monotonic()
        note = self._notes[pod.ref.uid] = self._notes[pod.ref.uid].after_error(now)
        if why:
            wait_s = note.not_before - now
            logs.event(_LOG, "not handled", level=logging.WARNING, pod=str(pod.ref), error=why, retry_s=wait_s)
