"""What to do about pods that came to a node past this system, or that it rejected, as after a reboot. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from controller.reconcile import advice
from controller.reconcile.advice import NO_EVENT, REPEAT_S, EventThrottle, Tell
from gpushare.cluster import bypass
from gpushare.cluster.bypass import Fate, Owner
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.pod_records import Bound, Bypassed
from gpushare.model.request import PodRequest

REMIND_CAP_S: Final = 86400.0
SETTLE_S: Final = 30.0  # most controllers delete what their nodes rejected; this one does it where they do not.
# The webhook has learnt by then how nodes hand GPUs over.


class Action(Enum):
    PLACE = auto()  # choose GPUs of its node for it
    RECREATE = auto()  # delete it, so that its controller recreates it, as it has to be today
    GIVE_UP = auto()  # read it again, and tell its author that it gets no GPUs if its containers really have started
    DELETE_REJECTED = auto()  # delete what is left of it; its controller has made another one


Step = Action | Tell


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

    def after_error(self, now: float) -> "Note":
        return replace(self, errors=self.errors + 1, not_before=now + min(5.0 * 2 ** min(self.errors, 6), 300.0))

    def ended(self, pod: Bound, last_word: Tell | None = None) -> "Note":
        return replace(self, over=pod, last_word=last_word)

    def after_word(self, throttle: EventThrottle, now: float) -> "Note":
        """After its author was told. Reminders of what will not change come ever later, up to once a day."""
        if self.over is None:
            return replace(self, throttle=throttle)
        wait = min(REPEAT_S * 2**self.reminders, REMIND_CAP_S)
        return replace(self, throttle=throttle, reminders=min(self.reminders + 1, 10), remind_at=now + wait)


def to_place(pod: Bound, note: Note, ledger: LedgerOrRefused) -> PodRequest | None:
    """What a pod asks for that may fit now: None while its node has the ledger in which it did not."""
    if pod.bypassed is None or pod.bypassed.request is None or not pod.bypassed.mutated or note.over is pod:
        return None
    # Beside whom it may be depends on other nodes as well.
    changed = note.ledger is not ledger or pod.bypassed.request.shape.affinity is not None
    return pod.bypassed.request if changed else None


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
        return Action.DELETE_REJECTED if pod.owned else advice.rejected(pod)
    if pod.outdated:
        return Action.RECREATE if now - note.since >= SETTLE_S else None
    return None if pod.bypassed is None else _bypassed(pod, pod.bypassed, ledger, refusal)


def _bypassed(pod: Bound, state: Bypassed, ledger: LedgerOrRefused, refusal: str) -> Step | None:
    # The kind of its owner is not kept: it counts when the pod is read again before it is deleted.
    fate, text = bypass.outcome(state, ledger, Owner() if state.owner else None)
    match fate:
        case Fate.LEFT_ALONE:
            return None
        case Fate.INVALID:
            return advice.invalid(pod, text)
        case Fate.TOO_LATE:
            return Action.GIVE_UP
        case Fate.ASK_AUTHOR:
            return advice.not_mutated(pod, text)
        case Fate.RECREATE:
            return Action.RECREATE
        case Fate.BIND:
            return advice.waiting(pod, refusal) if refusal else Action.PLACE


def is_ours(failed: str, resources: Iterable[str]) -> bool:
    """Whether a node rejected a pod, for `reason: message`, because of what this system hands out."""
    reason = failed.partition(": ")[0]
    if reason != "UnexpectedAdmissionError" and not reason.startswith("OutOf"):
        return False
    return any(resource in failed for resource in resources)
