"""Long-running parts of a process as one group: the first that ends, or a signal, stops all."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from gpushare.runtime import logs

Part = Callable[[threading.Event], None]
_LOG: Final = logging.getLogger(__name__)


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
    signalled = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signalled.set()
        event.set()
        logs.event(_LOG, "signal", number=number)

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}

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
    event.wait()
    for thread in threads:
        thread.join(grace_s)
        if thread.is_alive():
            logs.event(_LOG, "part did not end", level=logging.WARNING, part=thread.name)
    for number, handler in previous.items():
        signal.signal(number, handler)
    return 1 if failed and not signalled.is_set() else 0


def exit_now(code: int) -> None:
    """End the process without waiting for anything: the only safe way out for a leader that lost its lease."""
    logging.shutdown()
    os._exit(code)
