"""Which nodes a kind of pod fits on, kept up to date node by node.

Replicas of a workload ask for the same, and between two questions few nodes change; books are immutable, so the
verdict for a node that has not changed is still right.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from controller.state import ClusterState
from gpushare.cluster.views import View
from gpushare.identity import NodeName
from gpushare.model.request import RequestShape
from gpushare.model.verdict import Placed, RefusalReason, Refused
from gpushare.runtime.clock import Clock

MAX_SHAPES: Final = 64
MAX_ENTRIES: Final = 160_000  # verdicts in all, some 40 MiB
BUDGET_S: Final = 1.5  # a pod whose search is hard on thousands of nodes must not hold the scheduler

Score = int


@dataclass(slots=True)
class _Board:
    lock: threading.Lock = field(default_factory=threading.Lock)
    sequence: int = 0
    answers: dict[NodeName, Score | Refused] = field(default_factory=dict)
    stale: dict[NodeName, View] = field(default_factory=dict)
    """Nodes that have changed and are not judged yet."""


class Boards:
    """Answers for recently asked kinds of pods. Safe for use by many threads."""

    def __init__(self, state: ClusterState, clock: Clock, *, part: int = 1) -> None:
        """An empty cache.

        Args:
            state: the books.
            clock: for the time that a refresh may take.
            part: divides the limits; a cache beside that of the scheduler's questions is to be small.
        """
        self._part = part
        self._state = state
        self._clock = clock
        self._lock = threading.Lock()
        self._boards: OrderedDict[RequestShape, _Board] = OrderedDict()

    def answers(self, shape: RequestShape, first: Iterable[NodeName] = ()) -> dict[NodeName, Score | Refused]:
        """Score or refusal of every known node.

        The result is live: look nodes up in it, but do not iterate over it while others may ask.

        Args:
            shape: what the pod asks for.
            first: nodes to judge before all others, in case there is no time for all.
        """
        board = self._board(shape)
        with board.lock:
            self._refresh(board, shape, first)
        return board.answers

    def snapshot(self, shape: RequestShape) -> dict[NodeName, Score | Refused]:
        """As `answers`, but a copy of its own."""
        board = self._board(shape)
        with board.lock:
            self._refresh(board, shape, ())
            return dict(board.answers)

    def _refresh(self, board: _Board, shape: RequestShape, first: Iterable[NodeName]) -> None:
        # The books are copied under the state's lock and judged outside of it, so nobody waits for a cold start.
        changes = self._state.changed_since(board.sequence)
        board.sequence = changes.sequence
        if changes.complete:
            for name in board.answers.keys() - changes.views.keys():
                del board.answers[name]
            board.stale.clear()
        for name, view in changes.views.items():
            if view is None:
                board.answers.pop(name, None)
                board.stale.pop(name, None)
            else:
                board.stale[name] = view
        if not board.stale:
            return
        deadline = self._clock.monotonic() + BUDGET_S
        order = dict.fromkeys(name for name in first if name in board.stale) | dict.fromkeys(board.stale)
        for name in order:
            if self._clock.monotonic() >= deadline:
                break
            verdict = self._state.verdict(shape, board.stale.pop(name))
            board.answers[name] = verdict.score if isinstance(verdict, Placed) else verdict
        for name in board.stale:
            board.answers[name] = _not_yet(name)

    def _board(self, shape: RequestShape) -> _Board:
        with self._lock:
            board = self._boards.get(shape)
            if board is None:
                board = self._boards[shape] = _Board()
            self._boards.move_to_end(shape)
            while len(self._boards) > 1 and self._crowded():
                self._boards.popitem(last=False)
            return board

    def _crowded(self) -> bool:
        if len(self._boards) > MAX_SHAPES // self._part:
            return True
        return sum(len(board.answers) for board in self._boards.values()) > MAX_ENTRIES // self._part


def _not_yet(name: NodeName) -> Refused:
    message = f"the search for a fit on {name} takes long and has not ended yet; it goes on at the next try"
    return Refused(RefusalReason.SEARCH_TOO_LONG, message)
