"""Whether the cluster has the RuntimeClass: a pod that names one that does not exist is rejected."""

import logging
import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, assert_never

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


@dataclass(kw_only=True)
class RuntimeClass:
    """The RuntimeClass that GPU pods get, looked up at most once in `fresh_s` seconds. Safe for many threads."""

    api: KubeApi
    clock: Clock
    name: str
    mode: Mode
    fresh_s: float = 10.0
    timeout_s: float = 1.0
    """Short, because a pod's creation waits for it."""
    _exists: bool = field(init=False, default=False)
    _looked_at: float | None = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def current(self) -> str | None:
        """The name to write; None to leave it out. If the API server does not answer, what it said last holds."""
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
            if self._looked_at is None or now - self._looked_at >= self.fresh_s:
                self._looked_at = now  # also after a failure, so that not every pod waits for the timeout
                self._look()
            return self._exists

    def _look(self) -> None:
        try:
            self.api.get(f"/apis/node.k8s.io/v1/runtimeclasses/{self.name}", timeout_s=self.timeout_s)
            self._exists = True
        except kube.NotFoundError:
            self._exists = False
        except kube.KubeError as error:
            logs.event(
                _LOG,
                "runtime class unknown",
                level=logging.WARNING,
                runtime_class=self.name,
                error=str(error),
                assumed=self._exists,
            )
