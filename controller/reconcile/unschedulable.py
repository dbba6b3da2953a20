"""What to do about pods that the scheduler has given up on for now. Pure.

Its own sums often refuse a pod before the extender is asked, without a word about GPUs: the controller says what each
node lacks. When room appears that the scheduler does not notice, a changed label on the pod makes it try again.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller.reconcile.advice import NO_EVENT, REASON_UNSCHEDULABLE, EventThrottle, Tell
from gpushare.cluster.pod_records import Pending
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import RefusalReason, Refused

NUDGE_FIRST_S: Final = 3.0
NUDGE_CAP_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Nudge:  # make the scheduler try the pod again
    pod: PodRef
    value: str  # new value of the retry label


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What was done about a pod so far. Times are monotonic seconds."""

    explained: EventThrottle = NO_EVENT
    fits_since: float | None = None
    nudge_s: float = NUDGE_FIRST_S  # how long a pod must have fitted, unnoticed, before the next nudge
    nudged_for: int | None = None  # freed memory at the last nudge; without more of it another would be in vain


def decide(
    pod: Pending, *, fits: bool, why: Callable[[], str], note: Note, now: float, freed: int
) -> tuple[Tell | Nudge | None, Note]:
    """The next step for one pod that is marked unschedulable, and the note about it afterwards."""
    # `why` is asked only when it may be told, empty for nothing; `freed` is the state's count of freed memory.
    if not fits:
        note = replace(note, fits_since=None)
    if (
        not note.explained.too_early(now)
        and (message := why())
        and (explained := note.explained.after(message, now)) is not None
    ):
        return Tell(pod.ref, REASON_UNSCHEDULABLE, message), replace(note, explained=explained)
    if not fits:
        return None, note
    since = now if note.fits_since is None else note.fits_since
    note = replace(note, fits_since=since)
    if now - since < note.nudge_s or note.nudged_for == freed:
        return None, note
    retry = str(int(pod.retry) % 1_000_000 + 1) if pod.retry.isdecimal() else "1"
    nudged = replace(note, fits_since=now, nudge_s=min(note.nudge_s * 2, NUDGE_CAP_S), nudged_for=freed)
    return Nudge(pod.ref, retry), nudged


def reason(answers: Mapping[NodeName, Refused | None]) -> RefusalReason:
    """Why most nodes with GPUs refuse a pod, if every node does; those count first on which it could fit one day."""
    without = RefusalReason.NO_INVENTORY
    refused = [answer for answer in answers.values() if answer is not None and answer.reason is not without]
    if not refused:
        return without
    counted = [answer for answer in refused if not answer.permanent] or refused
    return Counter(answer.reason for answer in counted).most_common(1)[0][0]


def elsewhere(answers: Mapping[NodeName, Refused | None], created_now: Mapping[NodeName, Refused | None]) -> str:
    """Why the node refuses on which a pod would fit if it were created now; empty if there is none."""
    other = RefusalReason.OTHER_HAND_OVER
    refused = {name: answer for name, answer in answers.items() if answer is not None and answer.reason is other}
    return next((refused[name].message for name in sorted(refused) if created_now.get(name, other) is None), "")
