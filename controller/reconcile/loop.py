"""The leader's chores: settle doubts, explain and nudge waiting pods, report what cannot be read, check the books."""

import functools
import heapq
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from controller.boards import Boards
from controller.reconcile import apply, doubts, unschedulable
from controller.reconcile.unschedulable import Note
from controller.state import ClusterState
from gpushare.cluster.records import Pending
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.kube.api import KubeApi
from gpushare.model.request import RequestShape
from gpushare.model.verdict import Refused
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
TICK_S: Final = 1.0
AUDIT_S: Final = 60.0
MAX_ACTIONS: Final = 20  # a tick; a thousand waiting pods must not become a thousand requests a second
MAX_KINDS: Final = 12  # of pods a tick, fewer than the cache holds; the others have their turn at the next ticks
JUDGE_S: Final = 0.25  # a tick; judging many kinds for thousands of nodes must not take the scheduler's processor


@dataclass(kw_only=True)
class Reconciler:
    """Runs in one thread, on the leader only."""

    api: KubeApi
    state: ClusterState
    boards: Boards
    """Not the scheduler's."""
    clock: Clock
    audit_differences: int = 0
    """Found by the last check of the books."""
    _notes: dict[PodUid, Note] = field(default_factory=dict)
    _turns: dict[RequestShape, int] = field(default_factory=dict)
    """Number of the tick in which a kind of pod was judged last."""
    _tick: int = 0
    _reported: set[PodRef] = field(default_factory=set)
    _audited: float = float("-inf")

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set."""
        while not self.clock.wait(stop, TICK_S):
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - the top of a loop: one pod must not end the care for all
                logs.event(_LOG, "reconcile failed", level=logging.ERROR, exc_info=True)

    def tick(self) -> None:
        """All chores once."""
        doubts.settle(api=self.api, state=self.state, clock=self.clock)
        self._waiting()
        self._unreadable()
        now = self.clock.monotonic()
        if now - self._audited >= AUDIT_S:
            self._audited = now
            self._audit()

    def _waiting(self) -> None:
        waiting = [pod for pod in self.state.all_pending() if pod.unschedulable and pod.shape is not None]
        self._notes = {pod.ref.uid: self._notes.get(pod.ref.uid, Note()) for pod in waiting}
        kinds = self._kinds(waiting)
        started, actions = self.clock.monotonic(), 0
        for pod in sorted(waiting, key=lambda pod: self._notes[pod.ref.uid].explained_at):
            if actions >= MAX_ACTIONS:
                break
            kind = None if pod.shape is None else kinds.get(pod.shape)
            if kind is None or pod.shape is None:
                continue
            if self._turns.get(pod.shape) != self._tick:
                if self.clock.monotonic() - started >= JUDGE_S:
                    continue
                self._turns[pod.shape] = self._tick
            action, self._notes[pod.ref.uid] = unschedulable.decide(
                pod,
                fits=kind.fits,
                why=kind.why,
                note=self._notes[pod.ref.uid],
                now=self.clock.monotonic(),
                freed=self.state.freed,
            )
            if action is not None:
                actions += 1
                apply.perform(action, api=self.api, clock=self.clock)

    def _kinds(self, waiting: Iterable[Pending]) -> dict[RequestShape, "_Kind"]:
        """The kinds of pods to judge in this tick: those whose turn is the longest ago."""
        self._tick += 1
        shapes = dict.fromkeys(pod.shape for pod in waiting if pod.shape is not None)
        self._turns = {shape: self._turns.get(shape, 0) for shape in shapes}
        first = heapq.nsmallest(MAX_KINDS, shapes, key=self._turns.__getitem__)
        return {shape: _Kind(shape, self.boards, self.state) for shape in first}

    def _unreadable(self) -> None:
        problems = self.state.problems()
        self._reported &= problems.keys()
        for pod in list(problems.keys() - self._reported)[:MAX_ACTIONS]:
            self._reported.add(pod)
            problem = problems[pod]
            logs.event(
                _LOG,
                "allocation unreadable",
                level=logging.ERROR,
                pod=str(pod),
                counted=problem.counted,
                error=problem.why,
            )
            message = (
                f"its allocation cannot be read and is counted from its other annotations: {problem.why}"
                if problem.counted
                else f"what this pod holds cannot be read, so its node takes no new pods: {problem.why}; delete it, or"
                " install the version of gpushare that bound it"
            )
            apply.warn(pod, apply.REASON_UNREADABLE, message, api=self.api, clock=self.clock)

    def _audit(self) -> None:
        found = self.state.audit()
        self.audit_differences = len(found)
        for line in found[:10]:
            logs.event(_LOG, "books differ", level=logging.ERROR, difference=line)


class _Kind:
    """How one kind of pod stands; what is dear is computed once, and only if asked."""

    def __init__(self, shape: RequestShape, boards: Boards, state: ClusterState) -> None:
        self._shape = shape
        self._boards = boards
        self._state = state

    @functools.cached_property
    def _answers(self) -> dict[NodeName, int | Refused]:
        return self._boards.snapshot(self._shape)

    @functools.cached_property
    def fits(self) -> bool:
        return unschedulable.fits_somewhere(self._answers)

    @functools.cached_property
    def _message(self) -> str:
        return unschedulable.explain(self._answers, self._state.all_views())

    def why(self) -> str:
        return self._message
