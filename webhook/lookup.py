"""What one object of the API server says, remembered for some seconds: a pod's creation waits for it."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from gpushare.errors import GpuShareError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)


class NoAnswerError(GpuShareError):
    """The API server has not said anything about the object since the start."""

    def __init__(self, problem: str, *, forbidden: bool) -> None:
        super().__init__(problem)
        self.forbidden = forbidden
        """Whether it must not be read: nothing changes until an administrator acts."""


@dataclass(kw_only=True)
class Lookup(Generic[T]):
    """Looks at most once in `fresh_s` seconds. Safe for many threads."""

    api: KubeApi
    clock: Clock
    path: str
    read: Callable[[JsonObject | None], T]
    """What the object says; what its absence says, for None."""
    way_out: str
    """What to do if it must not be read."""
    fresh_s: float = 10.0
    """How long an answer holds, so also how late a change is noticed."""
    retry_s: float = 1.0
    """Between tries while there has been no answer at all: pods are refused meanwhile."""
    timeout_s: float = 0.7
    """Short, because a pod's creation waits for it: three of them, one after the other, fit into the 3 s for which
    servers before 1.30 wait before they create the pod as it is."""
    _answers: list[T] = field(init=False, default_factory=list)
    """The last one; empty until the API server has answered once."""
    _problem: str = field(init=False, default="")
    _is_forbidden: bool = field(init=False, default=False)
    _looked_at: float | None = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def current(self) -> T:
        """What it says. If the API server does not answer, what it said last holds.

        Raises:
            NoAnswerError: it has not answered since the start.
        """
        with self._lock:
            now = self.clock.monotonic()
            holds_s = self.fresh_s if self._answers else self.retry_s
            if self._looked_at is None or now - self._looked_at >= holds_s:
                self._look()
                # Also after a failure, so that not every pod waits for the timeout.
                self._looked_at = self.clock.monotonic()
            if not self._answers:
                raise NoAnswerError(self._problem, forbidden=self._is_forbidden)
            return self._answers[-1]

    def _look(self) -> None:
        try:
            self._learn(self._get())
        except kube.ForbiddenError as error:
            self._problem = f"{error}; {self.way_out}"
            if not self._is_forbidden:  # nothing changes until somebody acts, so once is enough
                self._log_problem()
            self._is_forbidden = True
        except (kube.KubeError, WireError) as error:
            self._problem = str(error)
            self._is_forbidden = False
            self._log_problem()

    def _get(self) -> JsonObject | None:
        try:
            return self.api.get(self.path, timeout_s=self.timeout_s)
        except kube.NotFoundError:
            return None

    def _learn(self, found: JsonObject | None) -> None:
        self._answers = [self.read(found)]
        self._is_forbidden = False

    def _log_problem(self) -> None:
        logs.event(
            _LOG,
            "not looked up",
            level=logging.WARNING,
            path=self.path,
            error=self._problem,
            assumed=self._answers[-1] if self._answers else None,
        )
