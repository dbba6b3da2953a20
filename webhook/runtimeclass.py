"""Whether the cluster has the RuntimeClass: a pod that names one that does not exist is rejected."""

import logging
import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, assert_never

from gpushare.errors import GpuShareError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)


class Mode(Enum):
    """When `runtimeClassName` is written."""

    IF_EXISTS = "if-exists"
    ALWAYS = "always"
    NEVER = "never"

    @classmethod
    def parse(cls, text: str) -> "Mode":
        """Read a setting."""
        try:
            return cls(text)
        except ValueError:
            raise ValueError(f"write one of {', '.join(mode.value for mode in cls)}") from None


class UnknownRuntimeClassError(GpuShareError):
    """No one has said yet whether the RuntimeClass exists."""


@dataclass(kw_only=True)
class RuntimeClass:
    """The RuntimeClass that GPU pods get, looked up at most once in `fresh_s` seconds. Safe for many threads."""

    api: KubeApi
    clock: Clock
    name: str
    mode: Mode
    fresh_s: float = 10.0
    """How long an answer holds, so also how late a RuntimeClass that is created after its pods is noticed."""
    retry_s: float = 1.0
    """Between tries while there has been no answer at all: pods are refused meanwhile."""
    timeout_s: float = 1.0
    """Short, because a pod's creation waits for it."""
    _exists: bool | None = field(init=False, default=None)
    """None until the API server has answered once."""
    _problem: str = field(init=False, default="")
    _is_forbidden: bool = field(init=False, default=False)
    _looked_at: float | None = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def current(self) -> str | None:
        """The name to write; None to leave it out. If the API server does not answer, what it said last holds.

        Raises:
            UnknownRuntimeClassError: it has not answered since the start. Both guesses would harm: without the class
                the containers of GPU nodes lack the driver, and with one that does not exist the pod is rejected.
        """
        match self.mode:
            case Mode.ALWAYS:
                return self.name
            case Mode.NEVER:
                return None
            case Mode.IF_EXISTS:
                return self.name if self._lookup() else None
            case _:
                assert_never(self.mode)

    def _lookup(self) -> bool:
        with self._lock:
            now = self.clock.monotonic()
            holds_s = self.retry_s if self._exists is None else self.fresh_s
            if self._looked_at is None or now - self._looked_at >= holds_s:
                self._look()
                # Also after a failure, so that not every pod waits for the timeout.
                self._looked_at = self.clock.monotonic()
            if self._exists is None:
                raise UnknownRuntimeClassError(
                    f"it is not known yet whether RuntimeClass {self.name} exists ({self._problem}); try again"
                )
            return self._exists

    def _look(self) -> None:
        try:
            self.api.get(f"/apis/node.k8s.io/v1/runtimeclasses/{self.name}", timeout_s=self.timeout_s)
            self._learn(exists=True)
        except kube.NotFoundError:
            self._learn(exists=False)
        except kube.ForbiddenError as error:
            self._problem = (
                f"{error}; allow the webhook's ServiceAccount to get runtimeclasses of node.k8s.io,"
                " or set --runtime-class-mode to always or never"
            )
            if not self._is_forbidden:  # nothing changes until somebody acts, so once is enough
                self._log_problem()
            self._is_forbidden = True
        except kube.KubeError as error:
            self._problem = str(error)
            self._is_forbidden = False
            self._log_problem()

    def _learn(self, *, exists: bool) -> None:
        self._exists = exists
        self._is_forbidden = False

    def _log_problem(self) -> None:
        logs.event(
            _LOG,
            "runtime class unknown",
            level=logging.WARNING,
            runtime_class=self.name,
            error=self._problem,
            assumed=self._exists,
        )
