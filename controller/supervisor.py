"""The controller's first process: competes for the lead, and gives every term a worker of its own.

One thread renews the lease and looks after one forked worker, which has all that knows of GPUs. It starts before the
lead is won, so that probes are answered, and serves one term. When that ends, the worker is killed, which also stops
what it was about to send (`gpushare.kube.client` discards unsent bytes), and the supervisor follows again with a fresh
one. So a lost lead never ends the container, whose restarts the kubelet delays by minutes.

The order is: the fence closes by the clock `renew_s` after the last renewal; the worker ends itself, or is killed, at
that moment; the others may lead `lease_s` after it. The difference is for requests that the API server has already.
"""

import gc
import logging
import mmap
import os
import signal
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from gpushare.kube.lease import Elector
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
_TICK_S: Final = 0.1  # how late a signal or the end of a worker may be noticed
_SILENT_S: Final = 5.0  # a shorter silence means nothing, however short the lease
_LASTING_S: Final = 60.0  # a worker that served so long did not fail at once
_NEVER: Final = threading.Event()
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_FAILED: Final = 1
_UNTIL, _WORKER, _SUPERVISOR, _LEASE = range(4)  # slots
_LONG_AGO: Final = float("-inf")


class Fence:
    """Until when the worker may write, in memory that it shares with its supervisor. Made before any worker is forked.

    The worker compares that moment with the clock right before every write, without waiting for anybody. Both read the
    same clock of the machine, which goes on in suspend. Every slot is eight aligned bytes with one writer, so that a
    reader sees the old value or the new one. The worker asks, and calls `beat`; the supervisor does all else.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots = memoryview(mmap.mmap(-1, 4 * struct.calcsize("d"))).cast("d")
        self.close()

    def close(self) -> None:
        """No one may write. A worker that begins now has not been silent yet."""
        self._slots[_UNTIL] = self._slots[_LEASE] = _LONG_AGO
        self.beat()
        self.supervisor_beat()

    def lead_until(self, moment: float) -> None:
        """The worker may write until then; seconds on the clock."""
        self._slots[_UNTIL] = moment

    def leading(self) -> bool:
        return self._clock.monotonic() < self._slots[_UNTIL]

    def beat(self) -> None:
        """The worker's main loop goes round."""
        self._slots[_WORKER] = self._clock.monotonic()

    def worker_silent_s(self) -> float:
        return self._clock.monotonic() - self._slots[_WORKER]

    def lease_answered(self, moment: float) -> None:
        """The API server has answered about the Lease, then."""
        self._slots[_LEASE] = moment

    def lease_silent_s(self) -> float:
        return self._clock.monotonic() - self._slots[_LEASE]

    def supervisor_beat(self) -> None:
        self._slots[_SUPERVISOR] = self._clock.monotonic()

    def supervisor_silent_s(self) -> float:
        return self._clock.monotonic() - self._slots[_SUPERVISOR]


class Worker(Protocol):
    def exit_code(self) -> int | None: ...  # None while it runs
    def terminate(self) -> None: ...  # ask it to answer what it was asked and to end
    def kill(self) -> None: ...  # nothing of it runs when this returns


class _Ending(Enum):
    STOPPED = "stopped"
    LOST = "lead lost"
    ENDED = "worker ended"
    SILENT = "worker silent"


@dataclass(kw_only=True)
class Supervisor:
    clock: Clock
    fence: Fence
    spawn: Callable[[], Worker]
    elector: Callable[[], Elector]  # a candidate that has not competed yet
    told_to_stop: Callable[[], bool]
    retry_s: float  # between attempts to get or renew the lease
    stop_s: float  # how long a worker may take to end when it is asked to
    backoff: Backoff = field(default_factory=Backoff)  # between workers that do not last

    def run(self) -> None:
        while not self.told_to_stop():
            self.fence.close()
            began = self.clock.monotonic()
            worker, elector = self.spawn(), self.elector()
            ending = self._term(worker, elector)
            if ending is not _Ending.STOPPED:
                if self.clock.monotonic() - began > _LASTING_S:
                    self.backoff.reset()
                self._wait(self.backoff.next_s(), unless=self.told_to_stop)

    def _term(self, worker: Worker, elector: Elector) -> _Ending:
        ending = self._follow(worker, elector)
        clean = ending is _Ending.STOPPED and self._stop(worker, elector)
        code = worker.exit_code()
        self.fence.close()
        worker.kill()
        if ending is not _Ending.STOPPED:
            who, lease, level = elector.identity, elector.name, logging.ERROR
            logs.event(_LOG, ending.value, level=level, identity=who, lease=lease, exit_code=code)
        if elector.leading():
            if not clean:
                # What the worker sent last may be on its way still.
                self._wait(elector.lease_s - elector.renew_s)
            elector.release()
        return ending

    def _follow(self, worker: Worker, elector: Elector) -> _Ending:
        silent_s = max(elector.lease_s, _SILENT_S)
        leads, due = False, float("-inf")
        while not self.told_to_stop():
            if worker.exit_code() is not None:
                return _Ending.ENDED
            if self.fence.worker_silent_s() > silent_s:
                return _Ending.SILENT
            if self.clock.monotonic() >= due:
                due = self.clock.monotonic() + self.retry_s
                self._attempt(elector)
            if leads and not elector.leading():
                return _Ending.LOST
            if elector.leading() and not leads:
                leads = True
                logs.event(_LOG, "leading", identity=elector.identity, lease=elector.name)
            self._loop_once()
        return _Ending.STOPPED

    def _stop(self, worker: Worker, elector: Elector) -> bool:
        """Have the worker finish while the lead lasts. Whether nothing that it sent can still take effect."""
        worker.terminate()
        began = due = self.clock.monotonic()
        while (code := worker.exit_code()) is None and self.clock.monotonic() - began < self.stop_s:
            if elector.leading() and self.clock.monotonic() >= due:
                due = self.clock.monotonic() + self.retry_s
                self._attempt(elector)
            self._loop_once()
        return code == 0

    def _attempt(self, elector: Elector) -> None:
        elector.attempt()
        self.fence.lead_until(elector.leading_until)
        self.fence.lease_answered(elector.answered_at)

    def _wait(self, seconds: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until and not unless():
            self._loop_once()

    def _loop_once(self) -> None:
        self.fence.supervisor_beat()
        self.clock.wait(_NEVER, _TICK_S)


@dataclass(slots=True)
class Forked:
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
    """Run a task, which gives an exit code, in a child, which starts with the default handlers of signals."""
    # Everything is imported already, so the child is there in milliseconds, and shares that memory. The caller has one
    # thread only, so no lock is copied in the middle of its use.
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
