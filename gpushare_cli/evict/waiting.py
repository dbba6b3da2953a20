"""One wait for all that a drain or a defragmentation waits for."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from gpushare.errors import GpuShareError
from gpushare.kube import api as kube
from gpushare.runtime.clock import Clock
from gpushare_cli.console import Streams

T = TypeVar("T")
ROUND_S: Final = 2.0


class StoppedError(GpuShareError):
    """It does not go on; says why. Its cause is the error of the API server that it ended with, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """Tries again until something is so, or time is up."""

    clock: Clock
    streams: Streams
    timeout_s: float

    def until(self, what: str, condition: Callable[[], T | None], *, every_s: float = ROUND_S) -> T:
        """The first true value that a condition gives; `what` says how it is before. A server may be away meanwhile."""
        began, told = self.clock.monotonic(), ""
        while True:
            cause: kube.KubeError | None = None
            try:
                if value := condition():
                    return value
            except kube.TRANSIENT as error:
                cause = error
            problem = f" ({cause})" if cause else ""
            if self.clock.monotonic() - began >= self.timeout_s:
                raise StoppedError(f"{what} after {self.timeout_s:.0f} s{problem}") from cause
            if problem and problem != told:
                told = problem
                self.streams.progress(f"{what} now{problem}; trying again")
            self.clock.wait(threading.Event(), every_s)
