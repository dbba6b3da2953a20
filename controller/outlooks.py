"""Keeps what placement knows of the cluster (`Outlook`) up with it, in the background; no request ever waits for it.

The outlook follows from pods and nodes alone, so it is the same after a restart as soon as it has been looked at. It is
looked at again when so many pods have come that they tell something (`looks`), or when anything has changed and some
time has passed, a few nodes at a time with pauses.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from controller.cluster_table import ClusterTable
from controller.index import Index
from gpushare.placement import outlook
from gpushare.placement.outlook import NOTHING_KNOWN
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
QUIET_S: Final = 5.0  # after which a single change is enough
LEAST_S: Final = 0.2  # between two looks
_SHARE: Final = 5  # of the time that a look takes has to pass until the next
_SLICE: Final = 50  # choices of models
_PAUSES: Final = 3.0  # of the time that a slice took
_IDLE_S: Final = 0.2

T = TypeVar("T")


class Outlooks:
    """One outlook after another. One thread calls `run`, or `tick`."""

    def __init__(self, index: Index, table: ClusterTable, clock: Clock) -> None:
        self._index = index
        self._table = table
        self._clock = clock
        self._stop = threading.Event()
        self._changes = -1  # of the cluster, when it was looked at last
        self._due_at = 0  # the number of pods that have to have come until the next look
        self._current_at = float("-inf")  # when what is known was known to be up to date
        self._next_at = float("-inf")
        self.outlook = NOTHING_KNOWN

    def age_s(self) -> float:
        """Seconds since the cluster was as the outlook has it; infinite before the first look."""
        return self._clock.monotonic() - self._current_at

    def tick(self) -> bool:
        now = self._clock.monotonic()
        index = self._index
        if index.changes == self._changes:
            self._current_at = now
            return False
        if now < self._next_at or (index.came < self._due_at and now < self._current_at + QUIET_S):
            return False
        self._look()
        took = self._clock.monotonic() - now
        self._next_at = now + max(LEAST_S, _SHARE * took)
        self._current_at = now
        return True

    def run(self, stop: threading.Event, ready: Callable[[], bool]) -> None:
        """Look whenever it is due, from when the cluster is known (`ready`), until told to stop."""
        self._stop = stop
        while not stop.is_set():
            began = self._clock.monotonic()
            try:
                worked = ready() and self.tick()
            except Exception:  # noqa: BLE001 - the top of a loop: requests go on with what was known
                logs.event(_LOG, "outlook failed", level=logging.ERROR, exc_info=True)
                worked = False
            self._clock.wait(stop, _PAUSES * (self._clock.monotonic() - began) if worked else _IDLE_S)

    def _in_slices(self, items: Iterable[T], /, some: int = _SLICE) -> Iterator[T]:
        """The same, with pauses after every so many in which requests are answered."""
        began = self._clock.monotonic()
        for position, item in enumerate(items, 1):
            yield item
            if position % some == 0 and not self._stop.is_set():
                self._clock.wait(self._stop, _PAUSES * (self._clock.monotonic() - began))
                began = self._clock.monotonic()

    def _look(self) -> None:
        seen = self._index.demand()
        empty, now = self._table.sharing()
        epoch = self.outlook.epoch
        found = outlook.look(seen.asks, empty, now, epoch, pace=self._in_slices)
        if found != self.outlook:
            found = replace(found, epoch=epoch + 1)
            self._table.publish(found, lambda kinds: self._in_slices(kinds, 1))
            self.outlook = found
            logs.event(_LOG, "outlook", level=logging.DEBUG, epoch=found.epoch, kinds=len(found.kinds))
        self._changes, self._due_at = seen.changes, seen.came + outlook.due_after(seen.asks.total())
