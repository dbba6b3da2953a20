"""Which nodes a kind of pod fits on, for the scheduler's questions."""

import threading
from collections.abc import Iterable
from typing import Final

from controller.state import ClusterState
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.verdicts import Answers, ShapeCache
from gpushare.identity import NodeName
from gpushare.model.request import RequestShape
from gpushare.model.verdict import Placed, RefusalReason, Refused
from gpushare.runtime.clock import Clock

BUDGET_S: Final = 1.5  # a pod whose search is hard on thousands of nodes must not hold the scheduler

Score = int


class _CachedVerdicts(Answers[Score | Refused]):
    """Without the choice of GPUs: thousands of these are kept."""

    def __init__(self, state: ClusterState, shape: RequestShape) -> None:
        def judge(ledger: LedgerOrRefused) -> Score | Refused:
            verdict = state.verdict(shape, ledger)
            return verdict.score if isinstance(verdict, Placed) else verdict

        super().__init__(judge)
        self.lock = threading.Lock()


class NodeVerdicts:
    """Answers for recently asked kinds of pods. Safe for use by many threads."""

    def __init__(self, state: ClusterState, clock: Clock, *, part: int = 1) -> None:
        """An empty cache; `part` divides its limits, for one beside that of the scheduler's questions."""
        self._state = state
        self._clock = clock
        self._lock = threading.Lock()
        self._cache = ShapeCache(lambda shape: _CachedVerdicts(state, shape), part=part)

    def answers(self, shape: RequestShape, first: Iterable[NodeName] = ()) -> dict[NodeName, Score | Refused]:
        """Score or refusal of every known node; the first ones are judged first, in case there is no time for all.

        The result is live: look nodes up in it, but do not iterate over it while others may ask.
        """
        cached = self._cached(shape)
        with cached.lock:
            self._refresh(cached, first)
        return cached.by_node

    def snapshot(self, shape: RequestShape) -> dict[NodeName, Score | Refused]:
        """As `answers`, but a copy of its own."""
        cached = self._cached(shape)
        with cached.lock:
            self._refresh(cached, ())
            return dict(cached.by_node)

    def _refresh(self, cached: _CachedVerdicts, first: Iterable[NodeName]) -> None:
        # The ledger is copied under the state's lock and judged outside of it, so no one waits for a cold start.
        cached.note(self._state.cache.changed_since(cached.sequence))
        deadline = self._clock.monotonic() + BUDGET_S
        for name in cached.refresh(first, in_time=lambda: self._clock.monotonic() < deadline):
            cached.by_node[name] = _not_yet(name)

    def _cached(self, shape: RequestShape) -> _CachedVerdicts:
        with self._lock:
            return self._cache.of(shape)


def _not_yet(name: NodeName) -> Refused:
    message = f"the search for a fit on {name} takes long and has not ended yet; it goes on at the next try"
    return Refused(RefusalReason.SEARCH_TOO_LONG, message)
