"""Pods that came to a node past this system, or that it rejected, as after a reboot: gather, decide, write.

One that waits on its node for GPUs gets them by one patch, whose reply may be lost (`controller.delivery`).
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from controller import delivery
from controller.delivery import Absent, ReadBack, Undelivered
from controller.index import Snapshot
from controller.reconcile import advice
from controller.reconcile.advice import NO_EVENT, REPEAT_S, EventThrottle, Tell
from controller.reconcile.writer import READ_S, LivePod, Recreator, Writer
from controller.state import AlreadyBound, ClusterState
from gpushare import names
from gpushare.cluster import bypass, node_ledger
from gpushare.cluster.bypass import Fate, Owner
from gpushare.cluster.pod_records import Bound, Bypassed
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import EventType
from gpushare.model.ledger import Allocation, LedgerOrRefused, Refused
from gpushare.model.request import PodRequest
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
MAX_STEPS: Final = 10  # a tick, of one to four requests each
JUDGE_S: Final = 0.25  # a tick; many strange pods must not take the scheduler's processor
REMIND_CAP_S: Final = 86400.0
SETTLE_S: Final = 30.0  # most controllers delete what their nodes rejected; this one does it where they do not.
# The webhook has learnt by then how nodes hand GPUs over.


Step = Fate | Tell
"""The fates are BIND, RECREATE, also for what is left of a rejected pod, and TOO_LATE; the pod itself has to say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is known of a pod from earlier looks. Times are monotonic seconds."""

    since: float  # when it was first seen like this
    throttle: EventThrottle = NO_EVENT
    judged_at: float = float("-inf")
    ledger: LedgerOrRefused | None = None  # the node's ledger in which it did not fit
    refusal: str = ""
    not_before: float = float("-inf")  # when it may be tried again after an error
    errors: int = 0  # tries in a row that failed
    over: Bound | None = None  # the pod for which nothing more can be done, for as long as the watch shows it like this
    last_word: Tell | None = None  # what its author is reminded of then
    reminders: int = 0
    remind_at: float = float("-inf")

    def after_word(self, throttle: EventThrottle, now: float) -> "Note":
        """After its author was told. Reminders of what will not change come ever later, up to once a day."""
        if self.over is None:
            return replace(self, throttle=throttle)
        wait = min(REPEAT_S * 2**self.reminders, REMIND_CAP_S)
        return replace(self, throttle=throttle, reminders=min(self.reminders + 1, 10), remind_at=now + wait)


def recreating_owner(pod: Bound) -> str:
    """UID of the controller that recreates a pod which is to be created again; empty if there is none."""
    return pod.bypassed.owner if pod.bypassed is not None and not pod.bypassed.mutated else pod.outdated


def decide(
    pod: Bound, note: Note, *, ledger: LedgerOrRefused, refusal: str, resources: Iterable[str], now: float
) -> Step | None:
    """The next step for one pod, as the watch shows it; `resources` are those that make a pod one of ours."""
    # `refusal`: why it does not fit on its node. Empty if it does, or if an earlier choice may have been written: the
    # same one has to be sent again, whatever is free now.
    if pod.deleting:
        return None
    if note.over is pod:
        return note.last_word if now >= note.remind_at else None
    if now < note.not_before:
        return None
    if pod.failed:
        if not is_ours(pod.failed, resources) or now - note.since < SETTLE_S:
            return None
        return Fate.RECREATE if pod.owned else advice.rejected(pod)
    if pod.outdated:
        return Fate.RECREATE if now - note.since >= SETTLE_S else None
    return None if pod.bypassed is None else _bypassed(pod, pod.bypassed, ledger, refusal)


def _bypassed(pod: Bound, state: Bypassed, ledger: LedgerOrRefused, refusal: str) -> Step | None:
    # The kind of its owner is not kept: it counts when the pod is read again before it is deleted.
    fate, text = bypass.outcome(state, ledger, Owner() if state.owner else None)
    match fate:
        case Fate.LEFT_ALONE:
            return None
        case Fate.INVALID:
            return advice.invalid(pod, text)
        case Fate.ASK_AUTHOR:
            return advice.not_mutated(pod, text)
        case Fate.BIND if refusal:
            return advice.waiting(pod, refusal)
    return fate


def is_ours(failed: str, resources: Iterable[str]) -> bool:
    """Whether a node rejected a pod, for `reason: message`, because of what this system hands out."""
    reason = failed.partition(": ")[0]
    if reason != "UnexpectedAdmissionError" and not reason.startswith("OutOf"):
        return False
    return any(resource in failed for resource in resources)


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
        owners = ((recreating_owner(pod), pod.ref.uid) for pod in bypassed)
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
        refusal, resources = self._refusal(pod, note, ledger), self.state.resource_config.resources
        step = decide(pod, note, ledger=ledger, refusal=refusal, resources=resources, now=now)
        known = replace(note, ledger=ledger, refusal=refusal) if refusal else note
        self._notes[pod.ref.uid] = replace(known, judged_at=now)
        return step

    def _refusal(self, pod: Bound, note: Note, ledger: LedgerOrRefused) -> str:
        """Why a pod does not fit on its node; empty also if GPUs were chosen for it before."""
        if self.state.index.reserved_on(pod.ref.uid):
            return ""
        request = pod.bypassed.request if pod.bypassed is not None and pod.bypassed.mutated else None
        if request is None or note.over is pod:
            return note.refusal
        if note.ledger is ledger and request.shape.affinity is None:  # else it depends on other nodes as well
            return note.refusal
        shape = self.state.index.resolve(request.shape, request.labels)
        verdict = node_ledger.verdict(shape, ledger, self.state.policies)
        return self.state.public(shape)(verdict).message if isinstance(verdict, Refused) else ""

    def _take(self, pod: Bound, step: Step) -> bool:
        """Whether a request was made."""
        match step:
            case Tell():
                return self._tell(step)
            case Fate.BIND:
                self._place(pod)
            case Fate.RECREATE if pod.failed:
                self._delete_rejected(pod)
            case Fate.RECREATE:
                return self._recreate(pod)
            case Fate.TOO_LATE:
                self._still(pod, step)
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
        match result := self.bind_late(request, pod.node):
            case Refused():
                self._failed(pod, "")
                self._tell(advice.waiting(pod, self.state.public(request.shape)(result).message))
            case Allocation():
                self.bound_late += 1
                logs.event(_LOG, "bound late", pod=str(pod.ref), uid=pod.ref.uid, node=pod.node)
                given = ", ".join(f"container {grant.container}: {', '.join(grant.gpus)}" for grant in result.grants)
                message = f"it came to {pod.node} without GPUs, and was given them there: {given}"
                self.writer.post(pod.ref, advice.REASON_BOUND_LATE, message, EventType.NORMAL)
            case why:
                self._failed(pod, why)

    def bind_late(self, request: PodRequest, node: NodeName) -> Allocation | Refused | str:
        """Choose GPUs for a pod on its node and write them on it. Doing it again changes nothing.

        A text says why not now. Raises UnreachableError: no one knows whether it was written; others need not be tried.
        """
        match reserved := self.state.reserve(request, node, now=self.writer.clock.monotonic(), bypassed=True):
            case Refused():
                return reserved
            case AlreadyBound():
                return f"it has its GPUs already, or is on {reserved.node}"

        def send() -> None:
            written = delivery.annotations(reserved, request, self.writer.clock)
            # The uid guards a pod that was recreated under the same name.
            body = {"metadata": {"uid": request.pod.uid, "annotations": {**written, names.ANNOTATION_LATE: "true"}}}
            path = kube.pod_path(request.pod.namespace, request.pod.name)
            limit = delivery.limit(self.bind_s)
            self.writer.api.patch(path, body, params=limit, timeout_s=self.bind_s, precondition=self.writer.leading)

        def read() -> ReadBack:
            shown = delivery.read_back(self.writer.api, self.state, reserved.allocation, timeout_s=READ_S)
            # It was on its node before, so that tells nothing.
            return Absent.UNBOUND if isinstance(shown, AlreadyBound) else shown

        ended = delivery.deliver(self.state, reserved, send=send, read=read)
        if isinstance(ended, Allocation):
            return ended
        if ended.in_doubt:
            raise kube.UnreachableError(_why(ended))
        return _why(ended)

    def _recreate(self, pod: Bound) -> bool:
        owner, now = recreating_owner(pod), self.writer.clock.monotonic()
        if not self.recreator.may_delete(owner, now):
            return False
        live = self._still_useless(pod) if pod.outdated else self._still(pod, Fate.RECREATE)
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

    def _still_useless(self, pod: Bound) -> LivePod[Bound] | None:
        """The pod as it is now, if its node still does not start it and it is recreated. Its author knows it."""
        live = self._fresh(pod)
        if live is None or not (live.pod.failed if pod.failed else live.pod.outdated):
            return None
        if not live.is_recreated:
            self._give_up(pod, None)
            return None
        return live

    def _give_up(self, pod: Bound, last_word: Tell | None) -> None:
        self._notes[pod.ref.uid] = replace(self._notes[pod.ref.uid], over=pod, last_word=last_word)
        if last_word is not None:
            self._tell(last_word)

    def _delete_rejected(self, pod: Bound) -> None:
        live = self._still_useless(pod)
        if live is None:
            return
        if self.writer.delete(pod.ref, live.version):
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
        note, now = self._notes[pod.ref.uid], self.writer.clock.monotonic()
        wait_s = min(5.0 * 2 ** min(note.errors, 6), 300.0)
        self._notes[pod.ref.uid] = replace(note, errors=note.errors + 1, not_before=now + wait_s)
        if why:
            logs.event(_LOG, "not handled", level=logging.WARNING, pod=str(pod.ref), error=why, retry_s=wait_s)
