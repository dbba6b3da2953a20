"""The cyclic garbage collector, kept away from what has no cycles.

What the API server sends are trees, which end with their last reference. While a large list is read, the collector
walks through them in vain, again and again; afterwards it would walk through all that was kept of them.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Final


class _Pause:
    """Of the whole process, as the collector is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._was_enabled = True

    def begin(self) -> None:
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                self._was_enabled = gc.isenabled()
                gc.disable()

    def end(self) -> None:
        with self._lock:
            self._wanted -= 1
            if self._wanted == 0:
                gc.collect()  # what is frozen as garbage stays for ever
                gc.freeze()
                if self._was_enabled:
                    gc.enable()


_PAUSE: Final = _Pause()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """While large collections are read: no collections. Afterwards: what is there is never walked through again."""
    _PAUSE.begin()
    try:
        yield
    finally:
        _PAUSE.end()
