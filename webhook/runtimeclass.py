"""Which RuntimeClass GPU pods get: a pod that names one that does not exist is rejected.

What the API server says of it is remembered for some seconds: a pod's creation waits for it.
"""

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gpushare import names
from gpushare.errors import GpuShareError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import hand_over

_LOG: Final = logging.getLogger(__name__)


class Mode(Enum):
    WHERE_NEEDED = "where-needed"
    IF_EXISTS = "if-exists"
    ALWAYS = "always"
    NEVER = "never"


class UnknownRuntimeClassError(GpuShareError):
    """No one has said yet whether the RuntimeClass exists, or whether pods need it."""


@dataclass(frozen=True, slots=True)
class RuntimeClassChoice:
    name: str | None  # None to leave it out
    only_cdi: bool = False
    """It was left out because every node hands over by CDI, or because an administrator refuses it to all pods, so the
    pod is right on such nodes alone."""


@dataclass(kw_only=True)
class Lookup:
    """Whether an object says so. Looks at most once in `fresh_s` seconds. Safe for many threads."""

    api: KubeApi
    clock: Clock
    path: str
    read: Callable[[JsonObject | None], bool]  # what the object says; what its absence says, for None
    what: str  # what is asked, after "whether"
    remedy: str  # what to do if it must not be read
    if_forbidden: bool | None = None  # what counts as long as it must not be read; None: no one knows
    fresh_s: float = 10.0  # how long an answer holds, so also how late a change is noticed
    retry_s: float = 1.0  # between tries while there has been no answer at all: pods are refused meanwhile
    timeout_s: float = 0.7
    """Short, because a pod's creation waits for it: three of them, one after the other, fit into the 3 s for which
    servers before 1.30 wait before they create the pod as it is."""
    _answer: bool | None = field(init=False, default=None)  # the last one
    _problem: GpuShareError | None = field(init=False, default=None)  # of the last look
    _looked_at: float | None = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def current(self) -> bool:
        """What it says, or said last. Raises UnknownRuntimeClassError: there was no answer since the start."""
        with self._lock:
            now = self.clock.monotonic()
            holds_s = self.retry_s if self._answer is None else self.fresh_s
            if self._looked_at is None or now - self._looked_at >= holds_s:
                self._look()
                # Also after a failure, so that not every pod waits for the timeout.
                self._looked_at = self.clock.monotonic()
            is_forbidden = isinstance(self._problem, kube.ForbiddenError)
            known = self.if_forbidden if self._answer is None and is_forbidden else self._answer
            if known is None:
                raise UnknownRuntimeClassError(f"it is not known yet whether {self.what} ({self._told}); try again")
            return known

    def _look(self) -> None:
        before, self._problem = self._problem, None
        try:
            try:
                found = self.api.get(self.path, timeout_s=self.timeout_s)
            except kube.NotFoundError:
                found = None
            self._answer = self.read(found)
        except (kube.KubeError, WireError) as error:
            self._problem = error
            # Where it is forbidden nothing changes until somebody acts, so once is enough.
            if not isinstance(error, kube.ForbiddenError) or not isinstance(before, kube.ForbiddenError):
                logs.event(
                    _LOG, "not looked up", level=logging.WARNING, path=self.path, error=self._told, assumed=self._answer
                )

    @property
    def _told(self) -> str:
        remedy = f"; {self.remedy}" if isinstance(self._problem, kube.ForbiddenError) else ""
        return f"{self._problem}{remedy}"


class RuntimeClass:
    def __init__(self, *, api: KubeApi, clock: Clock, name: str, mode: Mode, namespace: str = names.NAMESPACE) -> None:
        self.name, self.mode = name, mode
        allow = "allow the webhook's ServiceAccount to get"
        self._exists = Lookup(
            api=api,
            clock=clock,
            path=f"/apis/node.k8s.io/v1/runtimeclasses/{name}",
            read=lambda found: found is not None,
            what=f"RuntimeClass {name} exists",
            remedy=f"{allow} runtimeclasses of node.k8s.io, or set --runtime-class-mode to always or never",
        )
        # Without the right, which was of a version that wrote the class into every pod, pods need it.
        need = functools.partial(
            Lookup, api=api, clock=clock, what=f"GPU pods need RuntimeClass {name}", if_forbidden=False
        )
        self._all_cdi = need(
            path=hand_over.path(namespace), read=hand_over.is_all_cdi, remedy=f"{allow} the ConfigMap {names.HAND_OVER}"
        )
        self._refused = need(
            path=hand_over.path(namespace, names.RUNTIME_CLASS_POLICY),
            read=lambda found: hand_over.refuses(found, name),
            remedy=f"{allow} the ConfigMap {names.RUNTIME_CLASS_POLICY}",
        )

    def current(self) -> RuntimeClassChoice:
        """What to write now. Raises UnknownRuntimeClassError: the API server has not answered since the start.

        Both guesses would harm: without the class containers lack the driver, with one that does not exist the pod is
        rejected.
        """
        if self.mode is Mode.WHERE_NEEDED and (self._all_cdi.current() or self._refused.current()):
            return RuntimeClassChoice(None, only_cdi=True)
        is_written = self.mode is Mode.ALWAYS or (self.mode is not Mode.NEVER and self._exists.current())
        return RuntimeClassChoice(self.name if is_written else None)
