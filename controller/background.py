"""Judges nodes that no request has named yet, for kinds of pods that are being asked about, so that the next is quick.

A few nodes at a time, and three times as long a pause after each: no request waits for it longer than for one verdict.
"""

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from gpushare.identity import NodeName
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
MAX_KINDS: Final = 8
SLICE: Final = 20  # nodes; half a millisecond for a pod with one container
_PAUSES: Final = 3.0  # of the time that a slice took
_IDLE_S: Final = 1.0
K = TypeVar("K", bound=Hashable)


class Background(Generic[K]):
    """The kinds of pods of which nodes are left, the newest last. Safe for use by many threads."""

    def __init__(
        self,
        judge: Callable[[K, list[NodeName]], object],
        names: Callable[[], list[NodeName]],
        clock: Clock,
    ) -> None:
        """Nothing is left.

        Args:
            judge: keeps verdicts of nodes that have none.
            names: of all nodes.
            clock: for the pauses.
        """
        self._judge = judge
        self._names = names
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[K, list[NodeName] | None] = {}
        """None: all nodes."""

    def add(self, kind: K) -> None:
        """A kind of pod was asked about that is not judged on all nodes. Beyond MAX_KINDS, the oldest is forgotten."""
        with self._lock:
            if kind in self._left:
                return
            self._left[kind] = None
            if len(self._left) > MAX_KINDS:
                del self._left[next(iter(self._left))]

    def tick(self) -> bool:
        """Judge a few nodes. Whether there were any."""
        with self._lock:
            if not self._left:
                return False
            kind, left = next(iter(self._left.items()))
        left = self._names() if left is None else left
        some = left[-SLICE:]
        del left[-SLICE:]
        with self._lock:
            if not left:
                self._left.pop(kind, None)
            elif kind in self._left:
                self._left[kind] = left
        self._judge(kind, some)
        return True

    def run(self, stop: threading.Event) -> None:
        """Judge what is left, until told to stop."""
        while not stop.is_set():
            began = self._clock.monotonic()
            try:
                worked = self.tick()
            except Exception:  # noqa: BLE001 - the top of a loop: requests judge for themselves
                logs.event(_LOG, "background failed", level=logging.ERROR, exc_info=True)
                worked = False
            self._clock.wait(stop, _PAUSES * (self._clock.monotonic() - began) if worked else _IDLE_S)
