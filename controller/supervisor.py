"""The controller's first process: competes for the lead, and gives every term a worker of its own.

One thread, which renews the lease and looks after one forked worker. The worker has everything that knows of GPUs:
extender, ledger and watches. It starts before the lead is won, so that probes are answered and nothing has to be
imported then, and it serves one term. When that ends, for whatever reason, the worker is killed, which also stops what
it was about to send (`gpushare.kube.client` discards unsent bytes), and the supervisor follows again as another
candidate with a fresh worker. So a lost lead never ends the container, whose restarts the kubelet delays by minutes.

The order is: the fence closes by the clock `renew_s` after the last renewal; the worker ends itself, or is killed, at
that moment; the others may lead `lease_s` after it. The difference is for requests that the API server has already.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from controller.fence import Fence
from gpushare.kube.lease import Elector
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
_TICK_S: Final = 0.1  # how late a signal or the end of a worker may be noticed
_SILENT_S: Final = 5.0  # a shorter silence means nothing, however short the lease
_LASTING_S: Final = 60.0  # a worker that served so long did not fail at once
_NEVER: Final = threading.Event()


class Worker(Protocol):
    """The process of one term."""

    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to answer what it was asked and to end."""
        ...

    def kill(self) -> None:
        """End it. Nothing of it runs any more when this returns."""
        ...


class _Ending(Enum):
    """Why a term is over."""

    STOPPED = "stopped"
    LOST = "lead lost"
    ENDED = "worker ended"
    SILENT = "worker silent"


@dataclass(kw_only=True)
class Supervisor:
    """Runs term after term until it is told to stop."""

    clock: Clock
    fence: Fence
    spawn: Callable[[], Worker]
    elector: Callable[[], Elector]
    """A candidate that has not competed yet."""
    told_to_stop: Callable[[], bool]
    retry_s: float
    """Between attempts to get or renew the lease."""
    stop_s: float
    """How long a worker may take to end when it is asked to."""
    backoff: Backoff = field(default_factory=Backoff)
    """Between workers that do not last."""

    def run(self) -> None:
        """Supervise until told to stop."""
        while not self.told_to_stop():
            self.fence.close()
            began = self.clock.monotonic()
            worker, elector = self.spawn(), self.elector()
            ending = self._term(worker, elector)
            if ending is not _Ending.STOPPED:
                if self.clock.monotonic() - began > _LASTING_S:
                    self.backoff.reset()
                self._rest(self.backoff.next_s(), unless=self.told_to_stop)

    def _term(self, worker: Worker, elector: Elector) -> _Ending:
        """One worker, from its start to its end."""
        ending = self._follow(worker, elector)
        clean = ending is _Ending.STOPPED and self._stop(worker, elector)
        code = worker.exit_code()
        self.fence.close()
        worker.kill()
        if ending is not _Ending.STOPPED:
            logs.event(
                _LOG, ending.value, level=logging.ERROR, identity=elector.identity, lease=elector.name, exit_code=code
            )
        if elector.leading():
            if not clean:
                # What the worker sent last may be on its way still.
                self._rest(elector.lease_s - elector.renew_s)
            elector.release()
        return ending

    def _follow(self, worker: Worker, elector: Elector) -> _Ending:
        """Compete, and lead when the lead is won."""
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
            self._tick()
        return _Ending.STOPPED

    def _stop(self, worker: Worker, elector: Elector) -> bool:
        """Have the worker finish while the lead lasts. Whether nothing that it sent can take effect any more."""
        worker.terminate()
        began = due = self.clock.monotonic()
        while (code := worker.exit_code()) is None and self.clock.monotonic() - began < self.stop_s:
            if elector.leading() and self.clock.monotonic() >= due:
                due = self.clock.monotonic() + self.retry_s
                self._attempt(elector)
            self._tick()
        return code == 0

    def _attempt(self, elector: Elector) -> None:
        elector.attempt()
        self.fence.lead_until(elector.leading_until)

    def _rest(self, seconds: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until and not unless():
            self._tick()

    def _tick(self) -> None:
        self.fence.supervise()
        self.clock.wait(_NEVER, _TICK_S)
