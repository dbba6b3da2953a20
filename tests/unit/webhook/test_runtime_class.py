"""The RuntimeClass is written only if it exists, and no admission waits long to find out."""

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.kube import api as kube
from tests.unit.webhook.builders import container, pod, review
from tests.unit.webhook.conftest import Webhook
from webhook.app import Services, create_app
from webhook.metrics import Metrics
from webhook.runtimeclass import Mode, RuntimeClass, UnknownRuntimeClassError
from webhook.settings import Settings


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


def test_one_that_is_created_later_is_found_within_ten_seconds() -> None:
    api, clock = Api(kube.NotFoundError("no")), Clock()
    found = runtime_class(api, clock)
    assert found.current() is None
    clock.seconds, api.answer = 10.0, None
    assert found.current() == "nvidia"


def test_without_any_answer_nothing_is_assumed_and_it_is_asked_again_soon(caplog: pytest.LogCaptureFixture) -> None:
    api, clock = Api(kube.UnreachableError("down")), Clock()
    found = runtime_class(api, clock)
    for _ in range(2):
        with pytest.raises(
            UnknownRuntimeClassError,
            match=r"^it is not known yet whether RuntimeClass nvidia exists \(down\); try again$",
        ):
            found.current()
    assert len(api.calls) == 1
    assert caplog.messages == ["runtime class unknown"]
    clock.seconds, api.answer = 1.0, None
    assert found.current() == "nvidia"


FORBIDDEN = (
    "no; allow the webhook's ServiceAccount to get runtimeclasses of node.k8s.io,"
    " or set --runtime-class-mode to always or never"
)


def test_a_look_that_is_forbidden_is_no_answer_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    api, clock = Api(kube.ForbiddenError("no")), Clock()
    found = runtime_class(api, clock)
    for second in range(5):
        clock.seconds = float(second)
        with pytest.raises(UnknownRuntimeClassError, match=re.escape(f"({FORBIDDEN})")):
            found.current()
    assert caplog.messages == ["runtime class unknown"]
    clock.seconds, api.answer = 10.0, None
    assert found.current() == "nvidia"
    clock.seconds, api.answer = 20.0, kube.ForbiddenError("no")
    assert found.current() == "nvidia"


@pytest.fixture
def ignorant() -> Iterator[Webhook]:
    """A webhook that has not reached the API server since its start."""
    clock = Clock()
    services = Services(
        clock=clock,
        metrics=Metrics(lambda: None),
        runtime_class=runtime_class(Api(kube.UnreachableError("down")), clock),
        not_ready=lambda: "",
    )
    with create_app(Settings(), services).test_client() as http:
        yield Webhook(http, services.metrics)


def test_gpu_pods_have_to_come_again_while_it_is_unknown(ignorant: Webhook) -> None:
    response = ignorant.ask("/mutate", review(pod(container(gpu_mem=2))))
    assert response["allowed"] is False
    assert response["status"] == {
        "code": 503,
        "reason": "ServiceUnavailable",
        "message": "it is not known yet whether RuntimeClass nvidia exists (down); try again",
    }


def test_pods_that_it_does_not_concern_are_decided_meanwhile(ignorant: Webhook) -> None:
    assert ignorant.ask("/mutate", review(pod(container())))["allowed"]
    assert ignorant.ask("/mutate", review(pod(container(gpu_mem=2), runtimeClassName="mine")))["allowed"]
    assert ignorant.ask("/mutate", review(pod(container(gpu_mem="x"))))["status"]["code"] == 400


@pytest.mark.parametrize(("mode", "expected"), [(Mode.ALWAYS, "nvidia"), (Mode.NEVER, None)])
def test_a_fixed_choice_needs_no_look(mode: Mode, expected: str | None) -> None:
    api = Api()
    assert runtime_class(api, Clock(), mode).current() == expected
    assert api.calls == []
