"""A process: its parts as one group, how signals end it, and what its garbage collector is spared."""

import contextlib
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

from gpushare.runtime import logs

Part = Callable[[threading.Event], None]
_LOG: Final = logging.getLogger(__name__)
_WATCHED: Final = (signal.SIGTERM, signal.SIGINT)
_ENDS: Final = (signal.SIGTERM, *(each for each in signal.Signals if each.name == "SIGHUP"))  # Windows has no SIGHUP
_LOOK_S: Final = 0.2  # how late a signal may be noticed
_FLUSH_S: Final = 1.0


def run(parts: Mapping[str, Part], *, stop: threading.Event | None = None, grace_s: float = 5.0) -> int:
    """Run every part in a thread until one ends or SIGTERM or SIGINT arrives. Call from the main thread.

    A part runs until the event that it gets, `stop`, is set; then it has `grace_s` seconds to end. Gives 0 after a
    signal, 1 if a part failed or ended by itself.
    """
    event = stop or threading.Event()
    failed: list[str] = []
    signals = Signals()
    previous = signals.install()

    def guard(name: str, part: Part) -> None:
        try:
            part(event)
        except Exception:  # noqa: BLE001 - the top of a thread: report, then end the group
            logs.event(_LOG, "part failed", level=logging.ERROR, exc_info=True, part=name)
            failed.append(name)
        if not event.is_set():
            logs.event(_LOG, "part ended", level=logging.ERROR, part=name)
            failed.append(name)
        event.set()

    threads = [
        threading.Thread(target=guard, args=(name, part), name=name, daemon=True) for name, part in parts.items()
    ]
    for thread in threads:
        thread.start()
    while not signals.number and not event.wait(_LOOK_S):
        pass
    if signals.number:
        logs.event(_LOG, "signal", number=signals.number)
    event.set()
    for thread in threads:
        thread.join(grace_s)
        if thread.is_alive():
            logs.event(_LOG, "part did not end", level=logging.WARNING, part=thread.name)
    Signals.restore(previous)
    return 1 if failed and not signals.number else 0


def exit_now(code: int) -> None:
    """End the process without waiting for anything: the only safe way out for a leader that lost its lease.

    What was logged is given a second to be written; standard error may be a pipe that no one reads any more.
    """
    flush = threading.Thread(target=logging.shutdown, name="flush", daemon=True)
    try:
        flush.start()
        flush.join(_FLUSH_S)
    finally:  # also when there is no thread to be had
        os._exit(code)


class Signals:
    """Whether this process was told to end: by SIGTERM or SIGINT.

    A handler runs in the middle of whatever the main thread does, perhaps while that holds the lock of the very event
    or log that the handler would use; so it only sets an attribute, and the main thread looks.
    """

    number: int = 0  # of the last signal; 0 if there was none

    def install(self) -> Mapping[signal.Signals, Any]:
        """Take the signals over; the handlers before. From the main thread only."""
        return {number: signal.signal(number, self._on_signal) for number in _WATCHED}

    @staticmethod
    def restore(handlers: Mapping[signal.Signals, Any]) -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.number = number


@contextlib.contextmanager
def as_interrupt() -> Iterator[None]:
    """SIGTERM, and SIGHUP unless it is ignored as by nohup, raise KeyboardInterrupt. From the main thread only."""
    before = {number: signal.getsignal(number) for number in _ENDS}
    taken = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in taken:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        Signals.restore(taken)


class _CollectorPaused:
    """While large collections are read: no garbage collections. Afterwards: what is there is never walked again.

    What the API server sends are trees, which end with their last reference: the collector would walk them in vain.
    Counted, because the collector is the whole process's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0

    def __enter__(self) -> None:
        with self._lock:
            self._wanted += 1
            gc.disable()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._wanted -= 1
            if self._wanted == 0:
                gc.collect()  # what is frozen as garbage stays forever
                gc.freeze()
                gc.enable()


COLLECTOR_PAUSED: Final = _CollectorPaused()
