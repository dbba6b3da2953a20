"""Long-running parts of a process as one group: the first that ends, or a signal, stops all."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

from gpushare.runtime import logs
from gpushare.runtime.signals import Signals

Part = Callable[[threading.Event], None]
_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.2  # how late a signal may be noticed
_FLUSH_S: Final = 1.0


def run(parts: Mapping[str, Part], *, stop: threading.Event | None = None, grace_s: float = 5.0) -> int:
    """Run every part in a thread until one ends or SIGTERM or SIGINT arrives. Call from the main thread.

    Args:
        parts: name -> function; a part runs until the event that it gets is set.
        stop: set by signals and by the first part that ends.
        grace_s: how long parts may take to end, in seconds.

    Returns:
        0 after a signal, 1 if a part failed or ended by itself.
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
