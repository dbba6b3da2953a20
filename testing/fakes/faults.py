"""What can go wrong with a request to the fake API server, planned by tests."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Params


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it arrived."""

    verb: str
    """get, list, watch, create, update, patch or delete: RBAC's words."""
    path: str
    body: Any = None
    params: Params = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


@dataclass(frozen=True, slots=True)
class Delayed:
    """The request is held until the event is set, then done and answered."""

    until: threading.Event


@dataclass(frozen=True, slots=True)
class LandsLater:
    """The caller is told that there was no answer; the request takes effect at the next `land`."""


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """The request is done, or fails; before its caller is told, something else happens."""

    act: Callable[[], object]
    fault: "Fault | None" = None


# An error is raised without effect. "lost-reply" takes effect, "lost-request" does not; both raise UnreachableError.
Fault = kube.KubeError | Literal["lost-reply", "lost-request"] | Delayed | LandsLater | Meanwhile
Predicate = Callable[[Call], bool]


@dataclass(slots=True)
class _Planned:
    predicate: Predicate
    fault: Fault
    times: int


class Faults:
    """Disturbs requests as planned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []
        self._bypassed: list[Callable[[], object]] = []

    def plan(self, predicate: Predicate, fault: Fault, times: int) -> None:
        with self._lock:
            self._planned.append(_Planned(predicate, fault, times))

    def forget(self) -> None:
        with self._lock:
            self._planned.clear()

    def land(self) -> int:
        with self._lock:
            bypassed, self._bypassed = self._bypassed, []
        return sum(_lands(act) for act in bypassed)

    def lose(self) -> None:
        with self._lock:
            self._bypassed.clear()

    def serve(self, call: Call, act: Callable[[], JsonObject]) -> JsonObject:
        """Do a request, or what was planned for it."""
        return self._serve(call, act, self._next(call))

    def _serve(self, call: Call, act: Callable[[], JsonObject], fault: Fault | None) -> JsonObject:
        match fault:
            case None:
                return act()
            case kube.KubeError() as error:
                raise error
            case Delayed(until):
                if not until.wait(30):
                    raise AssertionError(f"{call} was held for 30 s")
                return act()
            case Meanwhile(other, fault):
                try:
                    return self._serve(call, act, fault)
                finally:
                    other()
            case LandsLater():
                with self._lock:
                    self._bypassed.append(act)
                raise kube.UnreachableError(f"{call}: timed out")
            case "lost-request":
                raise kube.UnreachableError(f"{call}: connection refused")
            case "lost-reply":
                _lands(act)
                raise kube.UnreachableError(f"{call}: connection reset")

    def _next(self, call: Call) -> Fault | None:
        with self._lock:
            for planned in self._planned:
                if planned.predicate(call):
                    planned.times -= 1
                    if planned.times == 0:
                        self._planned.remove(planned)
                    return planned.fault
        return None


def _lands(act: Callable[[], object]) -> bool:
    try:
        act()
    except kube.KubeError:
        return False
    return True
