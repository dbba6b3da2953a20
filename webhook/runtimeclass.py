"""Which RuntimeClass GPU pods get: a pod that names one that does not exist is rejected.

What the API server says of it is remembered for some seconds: a pod's creation waits for it.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar, assert_never

from gpushare import names
from gpushare.errors import GpuShareError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import hand_over

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)


class Mode(Enum):
    """When `runtimeClassName` is written."""

    WHERE_NEEDED = "where-needed"
    IF_EXISTS = "if-exists"
    ALWAYS = "always"
    NEVER = "never"


class UnknownRuntimeClassError(GpuShareError):
    """No one has said yet whether the RuntimeClass exists, or whether pods need it."""


@dataclass(frozen=True, slots=True)
class RuntimeClassChoice:
    """What is written into a pod that names no RuntimeClass."""

    name: str | None  # None to leave it out
    only_cdi: bool = False
    """It was left out because every node hands over by CDI, or because an administrator refuses it to all pods, so the
    pod is right on such nodes alone."""


class NoAnswerError(GpuShareError):
    """The API server has not said anything about the object since the start."""

    def __init__(self, problem: str, *, forbidden: bool) -> None:
        super().__init__(problem)
        self.forbidden = forbidden  # whether it must not be read: nothing changes until an administrator acts


@dataclass(kw_only=True)
class Lookup(Generic[T]):
    """Looks at most once in `fresh_s` seconds. Safe for many threads."""

    api: KubeApi
    clock: Clock
    path: str
    read: Callable[[JsonObject | None], T]  # what the object says; what its absence says, for None
    remedy: str  # what to do if it must not be read
    fresh_s: float = 10.0  # how long an answer holds, so also how late a change is noticed
    retry_s: float = 1.0  # between tries while there has been no answer at all: pods are refused meanwhile
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
        """What it says, or said last. Raises NoAnswerError: the API server has not answered since the start."""
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
            try:
                found = self.api.get(self.path, timeout_s=self.timeout_s)
            except kube.NotFoundError:
                found = None
            self._answers = [self.read(found)]
            self._is_forbidden = False
        except kube.ForbiddenError as error:
            self._problem = f"{error}; {self.remedy}"
            if not self._is_forbidden:  # nothing changes until somebody acts, so once is enough
                self._log_problem()
            self._is_forbidden = True
        except (kube.KubeError, WireError) as error:
            self._problem = str(error)
            self._is_forbidden = False
            self._log_problem()

    def _log_problem(self) -> None:
        logs.event(
            _LOG,
            "not looked up",
            level=logging.WARNING,
            path=self.path,
            error=self._problem,
            assumed=self._answers[-1] if self._answers else None,
        )


class RuntimeClass:
    def __init__(self, *, api: KubeApi, clock: Clock, name: str, mode: Mode, namespace: str = names.NAMESPACE) -> None:
        self.name = name
        self.mode = mode
        self._exists = Lookup(
            api=api,
            clock=clock,
            path=f"/apis/node.k8s.io/v1/runtimeclasses/{name}",
            read=lambda found: found is not None,
            remedy="allow the webhook's ServiceAccount to get runtimeclasses of node.k8s.io,"
            " or set --runtime-class-mode to always or never",
        )
        self._all_cdi = Lookup(
            api=api,
            clock=clock,
            path=hand_over.path(namespace),
            read=hand_over.is_all_cdi,
            remedy=f"allow the webhook's ServiceAccount to get the ConfigMap {names.HAND_OVER}",
        )
        self._refused = Lookup(
            api=api,
            clock=clock,
            path=hand_over.policy_path(namespace),
            read=lambda found: hand_over.refuses(found, name),
            remedy=f"allow the webhook's ServiceAccount to get the ConfigMap {names.RUNTIME_CLASS_POLICY}",
        )

    def current(self) -> RuntimeClassChoice:
        """What to write now. Raises UnknownRuntimeClassError: the API server has not answered since the start.

        Both guesses would harm: without the class containers lack the driver, with one that does not exist the pod is
        rejected.
        """
        match self.mode:
            case Mode.ALWAYS:
                return RuntimeClassChoice(self.name)
            case Mode.NEVER:
                return RuntimeClassChoice(None)
            case Mode.IF_EXISTS:
                return self._if_exists()
            case Mode.WHERE_NEEDED:
                left_out = self._holds(self._all_cdi) or self._holds(self._refused)
                return RuntimeClassChoice(None, only_cdi=True) if left_out else self._if_exists()
            case _:
                assert_never(self.mode)

    def _if_exists(self) -> RuntimeClassChoice:
        try:
            return RuntimeClassChoice(self.name if self._exists.current() else None)
        except NoAnswerError as error:
            raise UnknownRuntimeClassError(
                f"it is not known yet whether RuntimeClass {self.name} exists ({error}); try again"
            ) from error

    def _holds(self, lookup: Lookup[bool]) -> bool:
        try:
            return lookup.current()
        except NoAnswerError as error:
            if error.forbidden:  # the rights are of a version that wrote it into every pod
                return False
            raise UnknownRuntimeClassError(
                f"it is not known yet whether GPU pods need RuntimeClass {self.name} ({error}); try again"
            ) from error
