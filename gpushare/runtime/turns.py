"""So many at a time, in the order in which they came."""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator


class Turns:
    """Unlike a semaphore's, a place that becomes free goes to the one who has waited longest. Safe for many threads."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    @property
    def awaited(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a turn and have it."""
        with self._lock:
            mine = None
            if self._free:
                self._free -= 1
            else:
                mine = threading.Lock()
                mine.acquire()
                self._waiting.append(mine)
        if mine is not None:
            mine.acquire()  # released by the one whose turn ends
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting.popleft().release()
                else:
                    self._free += 1
