"""Tries again until something is so, or time is up."""

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
    """The rest of the plan was not carried out; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for one thing."""

    clock: Clock
    streams: Streams
    timeout_s: float

    def until(self, what: str, condition: Callable[[], T | None], *, every_s: float = ROUND_S) -> T:
        """What a condition gives in the end. The API server may be away meanwhile.

        Args:
            what: how it is while that is not so, for people.
            condition: is asked again and again.
            every_s: in this distance.

        Raises:
            StoppedError: time is up.
        """
        began, told = self.clock.monotonic(), ""
        while True:
            problem = ""
            try:
                if value := condition():
                    return value
            except kube.TRANSIENT as error:
                problem = f" ({error})"
            if self.clock.monotonic() - began >= self.timeout_s:
                raise StoppedError(f"{what} after {self.timeout_s:.0f} s{problem}")
            if problem and problem != told:
                told = problem
                self.streams.progress(f"{what} now{problem}; trying again")
            self.clock.wait(threading.Event(), every_s)
