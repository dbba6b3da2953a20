"""Events that tell a pod's author why it does not start."""

import pytest

from deviceplugin.decision import Reason, Refuse
from deviceplugin.refusals import Refusals
from gpushare.identity import ContainerName
from gpushare.kube import api as kube
from testing.builders import Json, make_ref
from testing.deviceplugin.build import ManualClock, fields_of
from testing.fakes.kube import FakeKube

MAIN = (ContainerName("main"),)
GONE = Refuse(Reason.GPU_GONE, "GPU GPU-1 is gone")


@pytest.fixture
def api() -> FakeKube:
    return FakeKube()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def refusals(api: FakeKube, clock: ManualClock) -> Refusals:
    return Refusals(api=api, clock=clock)


def posted(api: FakeKube) -> list[Json]:
    return api.objects("/api/v1/namespaces/default/events")


def test_the_author_is_told_once_however_often_the_kubelet_tries(refusals: Refusals, api: FakeKube) -> None:
    for _ in range(50):
        refusals.tell(make_ref(), MAIN, GONE)
    (event,) = posted(api)
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "GpuRefused", "GPU GPU-1 is gone")
    assert event["source"] == {"component": "gpushare-device-plugin"}
    assert event["involvedObject"]["uid"] == "uid-pod"


def test_another_pod_container_or_message_is_news(refusals: Refusals, api: FakeKube, clock: ManualClock) -> None:
    refusals.tell(make_ref(), MAIN, GONE)
    refusals.tell(make_ref("other"), MAIN, GONE)
    clock.seconds += 1
    refusals.tell(make_ref(), (ContainerName("side"),), GONE)
    refusals.tell(make_ref(), MAIN, Refuse(Reason.GPU_GONE, "GPU GPU-2 is gone"))
    assert len(posted(api)) == 4


def test_after_half_an_hour_it_is_told_again(refusals: Refusals, api: FakeKube, clock: ManualClock) -> None:
    refusals.tell(make_ref(), MAIN, GONE)
    clock.seconds += 1799
    refusals.tell(make_ref(), MAIN, GONE)
    assert len(posted(api)) == 1
    clock.seconds += 2
    refusals.tell(make_ref(), MAIN, GONE)
    assert len(posted(api)) == 2


def test_right_after_the_machine_has_started_it_is_told_too(
    refusals: Refusals, api: FakeKube, clock: ManualClock
) -> None:
    clock.seconds = 0.0
    refusals.tell(make_ref(), MAIN, GONE)
    assert len(posted(api)) == 1


def test_a_failure_is_logged_and_tried_at_the_next_refusal(
    refusals: Refusals, api: FakeKube, caplog: pytest.LogCaptureFixture
) -> None:
    api.fail_next(lambda call: call.verb == "create", kube.UnreachableError("connection refused"))
    refusals.tell(make_ref(), MAIN, GONE)
    assert posted(api) == []
    assert fields_of(caplog, "event not posted") == [{"pod": "default/pod", "error": "connection refused"}]
    refusals.tell(make_ref(), MAIN, GONE)
    assert len(posted(api)) == 1


def test_only_the_latest_refusals_are_remembered(refusals: Refusals, api: FakeKube, clock: ManualClock) -> None:
    for i in range(1100):
        refusals.tell(make_ref(f"p{i}"), MAIN, GONE)
    refusals.tell(make_ref("p1099"), MAIN, GONE)
    assert len(posted(api)) == 1100
    clock.seconds += 1
    refusals.tell(make_ref("p0"), MAIN, GONE)
    assert len(posted(api)) == 1101
