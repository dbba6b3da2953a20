"""Care for pods that the scheduler has given up on for now: gather, let `unschedulable` decide, write."""

import functools
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from controller.boards import Boards
from controller.reconcile import unschedulable
from controller.reconcile.apply import Writer
from controller.reconcile.unschedulable import Note
from controller.state import ClusterState
from gpushare.cluster.records import Pending
from gpushare.identity import NodeName, PodUid
from gpushare.model.request import RequestShape
from gpushare.model.verdict import Refused
from gpushare.runtime.clock import Clock

MAX_ACTIONS: Final = 20  # a tick; a thousand waiting pods must not become a thousand requests a second
MAX_KINDS: Final = 12  # of pods a tick, fewer than the cache holds; the others have their turn at the next ticks
JUDGE_S: Final = 0.25  # a tick; judging many kinds for thousands of nodes must not take the scheduler's processor


@dataclass(kw_only=True)
class WaitingPods:
    """Explains and nudges."""

    writer: Writer
    state: ClusterState
    boards: Boards
    """Not the scheduler's."""
    clock: Clock
    _notes: dict[PodUid, Note] = field(default_factory=dict)
    _turns: dict[RequestShape, int] = field(default_factory=dict)
    """Number of the tick in which a kind of pod was judged last."""
    _tick: int = 0

    def tick(self) -> None:
        """Look after those whose turn it is."""
        waiting = [(pod, shape) for pod in self.state.all_pending() if (shape := self._shape(pod)) is not None]
        self._notes = {pod.ref.uid: self._notes.get(pod.ref.uid, Note()) for pod, _ in waiting}
        kinds = self._kinds(shape for _, shape in waiting)
        started, actions = self.clock.monotonic(), 0
        for pod, shape in sorted(waiting, key=lambda pair: self._notes[pair[0].ref.uid].explained.at):
            if actions >= MAX_ACTIONS:
                break
            kind = kinds.get(shape)
            if kind is None:
                continue
            if self._turns.get(shape) != self._tick:
                if self.clock.monotonic() - started >= JUDGE_S:
                    continue
                self._turns[shape] = self._tick
            actions += self._care(pod, kind)

    def _shape(self, pod: Pending) -> RequestShape | None:
        """What the pod asks for, if somebody has to care."""
        if not pod.unschedulable or pod.request is None:
            return None
        return self.state.resolve(pod.request.shape, pod.request.labels)

    def _care(self, pod: Pending, kind: "_Kind") -> bool:
        """Whether something was done."""
        action, self._notes[pod.ref.uid] = unschedulable.decide(
            pod,
            fits=kind.fits,
            why=kind.why,
            note=self._notes[pod.ref.uid],
            now=self.clock.monotonic(),
            freed=self.state.freed,
        )
        if action is not None:
            self.writer.perform(action)
        return action is not None

    def _kinds(self, shapes: Iterable[RequestShape]) -> dict[RequestShape, "_Kind"]:
        """The kinds of pods to judge in this tick: those whose turn is the longest ago."""
        self._tick += 1
        self._turns = {shape: self._turns.get(shape, 0) for shape in shapes}
        first = heapq.nsmallest(MAX_KINDS, self._turns, key=self._turns.__getitem__)
        return {shape: _Kind(shape, self.boards, self.state) for shape in first}


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
