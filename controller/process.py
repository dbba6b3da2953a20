"""A forked process with one task.

Forked, because everything is imported already: a worker is there in milliseconds, and shares that memory. Anyone who
forks has one thread only, so no lock is copied in the middle of its use.
"""

import gc
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_FAILED: Final = 1


@dataclass(slots=True)
class Forked:
    """A child of this process."""

    pid: int
    _code: int | None = field(init=False, default=None)

    def exit_code(self) -> int | None:
        """None while it runs; below 0 for a signal. Reaps also what the first process of a container inherits."""
        while self._code is None:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            self._note(pid, status)
        return self._code

    def terminate(self) -> None:
        """Ask it to end."""
        if self._code is None:  # not reaped, so the number is still its own
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it, also if it is stopped; all of its threads are gone when this returns."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._note(*os.waitpid(self.pid, 0))

    def _note(self, pid: int, status: int) -> None:
        if pid == self.pid:
            self._code = os.waitstatus_to_exitcode(status)


def fork(task: Callable[[], int]) -> Forked:
    """Run a task, which gives an exit code, in a child. The child starts with the default handlers of signals."""
    # What exists now will hardly be freed: the collector would only write to, and so copy, pages that are shared.
    gc.freeze()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the child is the one who is meant
    try:
        pid = os.fork()
        if not pid:
            code = _FAILED
            try:
                code = _run(task, blocked)
            finally:
                os._exit(code)  # nothing may return into what the parent was doing
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Forked(pid)


def _run(task: Callable[[], int], unblocked: set[int]) -> int:
    """In the child."""
    try:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        return task()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else _FAILED
    except Exception:  # noqa: BLE001 - the top of a process
        logs.event(_LOG, "worker failed", level=logging.ERROR, exc_info=True)
        return _FAILED
