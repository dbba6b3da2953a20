"""The RuntimeClass is written only if it exists, and no admission waits long to find out."""

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.kube import api as kube
from webhook.runtimeclass import Mode, RuntimeClass


@dataclass
class Clock:
    seconds: float = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.seconds += seconds
        return stop.is_set()


@dataclass
class Api:
    """Answers one path; `answer` is an error or None for success."""

    answer: kube.KubeError | None = None
    calls: list[tuple[str, float]] = field(default_factory=list)

    def get(self, path: str, params: object = None, *, timeout_s: float = 5.0) -> Any:
        self.calls.append((path, timeout_s))
        if self.answer:
            raise self.answer
        return {}

    def __getattr__(self, verb: str) -> Any:
        raise AssertionError(f"{verb} is not needed")


def runtime_class(api: Api, clock: Clock, mode: Mode = Mode.IF_EXISTS) -> RuntimeClass:
    return RuntimeClass(api=api, clock=clock, name="nvidia", mode=mode)


def test_it_is_looked_up_with_a_short_deadline_at_most_every_ten_seconds() -> None:
    api, clock = Api(), Clock()
    found = runtime_class(api, clock)
    assert [found.current(), found.current()] == ["nvidia", "nvidia"]
    assert api.calls == [("/apis/node.k8s.io/v1/runtimeclasses/nvidia", 1.0)]
    clock.seconds = 9.9
    assert (found.current(), len(api.calls)) == ("nvidia", 1)
    clock.seconds, api.answer = 10.0, kube.NotFoundError("no")
    assert (found.current(), len(api.calls)) == (None, 2)


def test_without_an_answer_the_last_one_holds() -> None:
    api, clock = Api(), Clock()
    found = runtime_class(api, clock)
    assert found.current() == "nvidia"
    clock.seconds, api.answer = 10.0, kube.UnreachableError("down")
    assert [found.current(), found.current()] == ["nvidia", "nvidia"]
    assert len(api.calls) == 2  # not once for each pod while the server is down


@pytest.mark.parametrize(
    "error", [kube.UnreachableError("down"), kube.ForbiddenError("no"), kube.ServerFaultError("oops")]
)
def test_without_any_answer_it_is_left_out(error: kube.KubeError) -> None:
    assert runtime_class(Api(error), Clock()).current() is None


@pytest.mark.parametrize(("mode", "expected"), [(Mode.ALWAYS, "nvidia"), (Mode.NEVER, None)])
def test_a_fixed_choice_needs_no_look(mode: Mode, expected: str | None) -> None:
    api = Api()
    assert runtime_class(api, Clock(), mode).current() == expected
    assert api.calls == []
