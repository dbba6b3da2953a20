"""Pods that the scheduler has given up on for now: gather, decide, write.

Its own sums often refuse a pod before the extender is asked, without a word about GPUs: the controller says what each
node lacks. When room appears that the scheduler does not notice, a changed label on the pod makes it try again.
"""

import functools
import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from controller.cluster_table import ClusterTable
from controller.index import Snapshot
from controller.reconcile.advice import NO_EVENT, REASON_UNSCHEDULABLE, EventThrottle, Tell
from controller.reconcile.node_requests import Refusal, Refusals
from controller.reconcile.writer import Recreator, Writer
from controller.state import ClusterState
from gpushare import names
from gpushare.cluster.pod_records import Pending
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.kube import api as kube
from gpushare.model.ledger import LedgerOrRefused, RefusalReason, Refused
from gpushare.model.request import PodRequest, RequestShape
from gpushare.placement import explain
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
NUDGE_FIRST_S: Final = 3.0
NUDGE_CAP_S: Final = 60.0
SETTLE_S: Final = 30.0  # the webhook has learnt of the other node by then, and the scheduler has tried the pod again
MAX_ACTIONS: Final = 20  # a tick; a thousand waiting pods must not become a thousand requests a second
MAX_KINDS: Final = 12  # of pods a tick, fewer than the cache holds; the others have their turn at the next ticks
JUDGE_S: Final = 0.25  # a tick; judging many kinds for thousands of nodes must not take the scheduler's processor

Waiting = Mapping[tuple[str, str], int]  # pods that wait for a node, by namespace and reason
NOT_TRIED: Final = "NotTried"
INVALID: Final = "InvalidRequest"
NOT_JUDGED: Final = "NotJudged"
FITS: Final = "Fits"
REASONS: Final = (NOT_TRIED, INVALID, NOT_JUDGED, FITS, *(reason.value for reason in RefusalReason))

_NONE: Final = {(names.OTHERS, reason): 0 for reason in REASONS}  # so that every reason is always there
_KindKey = tuple[RequestShape, bool]  # of pods that fit on the same nodes: the shape, and whether they mean themselves


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


def main_reason(answers: Mapping[NodeName, Refused | None]) -> RefusalReason:
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


@dataclass(kw_only=True)
class OutdatedPods:
    """Pods created without a RuntimeClass, while every node handed over by CDI, that fit on other nodes by now."""

    # Nothing can add the class. A pod that a controller owns is deleted, so that it is created with the class, which is
    # right on every node; the author of any other is told to create it again.

    writer: Writer
    recreator: Recreator
    _since: dict[PodUid, float] = field(default_factory=dict)
    _advice: dict[PodUid, str] = field(default_factory=dict)  # for owned pods that only their authors may delete

    def note(self, waiting: Iterable[Pending], now: float) -> None:
        """Which pods wait at all; `now` is monotonic."""
        marked = [pod for pod in waiting if pod.request is not None and pod.request.shape.only_cdi]
        self.recreator.note(((pod.owner, pod.ref.uid) for pod in marked), now)
        self._since = {pod.ref.uid: self._since[pod.ref.uid] for pod in marked if pod.ref.uid in self._since}
        self._advice = {uid: advice for uid, advice in self._advice.items() if uid in self._since}

    def recreate(self, pod: Pending, why: str, now: float) -> bool:
        """Delete the pod if it has waited long enough and is recreated; `why` is from `elsewhere`. Whether it asked."""
        if not why:
            self._since.pop(pod.ref.uid, None)
        elif now - self._since.setdefault(pod.ref.uid, now) >= SETTLE_S and self._is_recreated(pod):
            return self.recreator.may_delete(pod.owner, now) and self._delete(pod, why, now)
        return False

    def advice(self, pod: Pending, why: str, now: float) -> str:
        """What the author is told of a pod that has waited long enough and that nothing recreates; else empty."""
        if not why or now - self._since.get(pod.ref.uid, now) < SETTLE_S or self._is_recreated(pod):
            return ""
        return why + self._advice.get(pod.ref.uid, "")

    def _is_recreated(self, pod: Pending) -> bool:
        return bool(pod.owner) and pod.ref.uid not in self._advice

    def _delete(self, pod: Pending, why: str, now: float) -> bool:
        try:
            live = self.recreator.read(pod)
        except (kube.KubeError, WireError) as error:
            logs.event(_LOG, "not recreated", level=logging.WARNING, pod=str(pod.ref), error=str(error))
            live = None
        if live is None:
            self._since[pod.ref.uid] = now  # the watch is behind, and will tell
            return True
        if not live.is_recreated:
            self._advice[pod.ref.uid] = f": {live.owner.advice}" if live.owner is not None else ""
            return True
        message = f"{why}: it is deleted now, so that its controller does so"
        self.writer.post(pod.ref, REASON_UNSCHEDULABLE, message)
        if not self.recreator.delete(live, pod.owner, now):
            self._since[pod.ref.uid] = now
        return True


@dataclass(kw_only=True)
class WaitingPods:
    writer: Writer
    state: ClusterState
    table: ClusterTable
    refusals: Refusals
    nudges: bool = True
    no_nodes: str = "the cluster has no nodes"
    outdated: OutdatedPods = field(init=False)
    counts: Waiting = field(init=False, default_factory=lambda: _NONE)  # replaced as a whole
    _notes: dict[PodUid, Note] = field(default_factory=dict)
    _turns: dict[_KindKey, int] = field(default_factory=dict)  # the tick in which a kind was judged last
    _tick: int = 0
    _reasons: dict[_KindKey, str] = field(default_factory=dict)  # why a kind of pod waits, since it was judged last
    _refused: Mapping[PodUid, Refusal] = field(default_factory=dict)  # by nodes that have enough in total

    def __post_init__(self) -> None:
        recreator = Recreator(writer=self.writer, resource_config=self.state.resource_config)
        self.outdated = OutdatedPods(writer=self.writer, recreator=recreator)

    def tick(self, snapshot: Snapshot) -> None:
        waiting: list[tuple[Pending, _KindKey]] = []
        requests: dict[_KindKey, PodRequest] = {}
        for pod in snapshot.pending:
            if pod.unschedulable and pod.request is not None:
                waiting.append((pod, key := _kind_key(pod.request)))
                requests.setdefault(key, pod.request)
        self._notes = {pod.ref.uid: self._notes.get(pod.ref.uid, Note()) for pod, _ in waiting}
        self.outdated.note((pod for pod, _ in waiting), self.writer.clock.monotonic())
        self._refused = self.refusals.of({pod.ref.uid for pod in snapshot.pending})
        kinds = self._kinds(requests, snapshot)
        started, actions = self.writer.clock.monotonic(), 0
        for pod, key in sorted(waiting, key=lambda pair: self._notes[pair[0].ref.uid].explained.at):
            if actions >= MAX_ACTIONS:
                break
            kind = kinds.get(key)
            if kind is None:
                continue
            if self._turns.get(key) != self._tick:
                if self.writer.clock.monotonic() - started >= JUDGE_S:
                    continue
                self._turns[key] = self._tick
            actions += self._handle(pod, kind)
            self._reasons[key] = kind.reason
        self._reasons = {key: reason for key, reason in self._reasons.items() if key in requests}
        counts = Counter((pod.ref.namespace, self._reasons.get(key, NOT_JUDGED)) for pod, key in waiting)
        for pod in snapshot.pending:
            if pod.request is None or not pod.unschedulable:
                counts[pod.ref.namespace, INVALID if pod.request is None else NOT_TRIED] += 1
        self.counts = {**_NONE, **counts}

    def _handle(self, pod: Pending, kind: "_Kind") -> bool:
        """Whether something was done."""
        now = self.writer.clock.monotonic()
        if self.outdated.recreate(pod, kind.elsewhere, now):
            return True
        outdated = self.outdated.advice(pod, kind.elsewhere, now)
        action, self._notes[pod.ref.uid] = decide(
            pod,
            fits=kind.fits,
            why=lambda: outdated or ("" if kind.fits else kind.message + self._sums(pod)),
            note=self._notes[pod.ref.uid],
            now=now,
            freed=self.state.index.freed,
        )
        match action:
            case Tell(ref, reason, message):
                self.writer.post(ref, reason, message)
            case Nudge(ref, value) if self.nudges:
                self.writer.nudge(ref, value)
        return action is not None

    def _sums(self, pod: Pending) -> str:
        refusal = self._refused.get(pod.ref.uid)
        if refusal is None:
            return ""
        return f"; {explain.by_sum(()) if self.state.reduced else explain.by_sum(refusal.nodes, refusal.left_out)}"

    def _kinds(self, requests: Mapping[_KindKey, PodRequest], snapshot: Snapshot) -> dict[_KindKey, "_Kind"]:
        """The kinds of pods to judge in this tick: those whose turn is the longest ago."""
        self._tick += 1
        self._turns = {key: self._turns.get(key, 0) for key in requests}
        first = heapq.nsmallest(MAX_KINDS, self._turns, key=self._turns.__getitem__)
        return {key: _Kind(requests[key], snapshot.ledgers, self.table, self.state, self.no_nodes) for key in first}


@dataclass
class _Kind:
    """How one kind of pod stands; expensive answers are computed once, and only if asked."""

    request: PodRequest
    ledgers: Mapping[NodeName, LedgerOrRefused]
    table: ClusterTable
    state: ClusterState
    no_nodes: str

    @functools.cached_property
    def _answers(self) -> dict[NodeName, Refused | None]:
        return self.table.verdicts(self.state.index.resolve(self.request.shape, self.request.labels))

    @functools.cached_property
    def elsewhere(self) -> str:
        """Why a node refuses these pods that would take them if they were created now; empty if none does."""
        shape = self.request.shape
        if not shape.only_cdi:
            return ""
        shape = self.state.index.resolve(replace(shape, only_cdi=False), self.request.labels)
        return elsewhere(self._answers, self.table.verdicts(shape))

    @functools.cached_property
    def fits(self) -> bool:
        return None in self._answers.values()

    @functools.cached_property
    def reason(self) -> str:
        return FITS if self.fits else main_reason(self._answers).value

    @functools.cached_property
    def message(self) -> str:
        if not (answers := self._answers):
            return self.no_nodes
        return explain.distinct(answers.values()) if self.state.reduced else explain.closest(answers, self.ledgers)


def _kind_key(request: PodRequest) -> _KindKey:
    affinity = request.shape.affinity
    return request.shape, affinity is not None and affinity.same is not None and affinity.same.matches(request.labels)
