"""The end of a process as Ctrl-C has it: by an exception, so that what was begun is put back."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)


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
        for number, handler in taken.items():
            signal.signal(number, handler)
