"""Threads that are kept for the next thing to do: starting one costs several hand-overs of the interpreter's lock.

kube-scheduler keeps two connections to an extender and closes all others after one answer, so that with several binds
at a time about every second pod comes with a connection of its own.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

_KEPT: Final = 32  # threads that wait
T = TypeVar("T")


class Threads(Generic[T]):
    """As many as there are things to do at the same time. `give` and `end` are for one thread."""

    def __init__(self, work: Callable[[T], object]) -> None:
        """None yet.

        Args:
            work: what each does; does not raise.
        """
        self._work = work
        self.most = _KEPT
        """How many wait."""
        self._given: SimpleQueue[T | None] = SimpleQueue()
        self.waiting = 0
        """Threads with nothing to do, or as good as."""
        self._ended = False
        self._lock = threading.Lock()

    def give(self, task: T) -> None:
        """Have something done at once."""
        with self._lock:
            free = self.waiting > 0
            self.waiting -= free
        if free:
            self._given.put(task)
        else:
            threading.Thread(target=self._run, args=(task,), name="connection", daemon=True).start()

    def end(self) -> None:
        """No thread waits any more."""
        with self._lock:
            self._ended = True
            waiting, self.waiting = self.waiting, 0
        for _ in range(waiting):
            self._given.put(None)

    def _run(self, task: T | None) -> None:
        while task is not None:
            self._work(task)
            del task  # which may hold much
            with self._lock:
                if self._ended or self.waiting >= self.most:
                    return
                self.waiting += 1
            task = self._given.get()
