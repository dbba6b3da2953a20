"""Events that tell a pod's author why it does not start."""

import pytest

from deviceplugin.refusals import Refusals
from gpushare.kube import api as kube
from testing.builders import Json, make_ref
from testing.clock import ManualClock
from testing.deviceplugin.build import fields_of
from testing.fakes.kube import FakeKube


class Scene:
    def __init__(self) -> None:
        self.api, self.clock = FakeKube(), ManualClock()
        self.refusals = Refusals(api=self.api, clock=self.clock)

    def tell(self, pod: str = "pod", container: str = "main", gpu: str = "GPU-1") -> None:
        message = f"GPU {gpu} is gone"
        self.refusals.post(make_ref(pod), (container, message), "GpuRefused", message)

    @property
    def posted(self) -> list[Json]:
        return self.api.objects("/api/v1/namespaces/default/events")


@pytest.mark.parametrize("at", [0.0, 1000.0])  # also right after the machine has started
def test_another_pod_container_or_message_is_news_and_after_half_an_hour_it_is_told_again(at: float) -> None:
    scene = Scene()
    scene.clock.at = at
    for seconds, posted in ((0, 1), (1799, 1), (2, 2)):
        scene.clock.at += seconds
        scene.tell()
        assert len(scene.posted) == posted
    for news in ({"pod": "other"}, {"container": "side"}, {"gpu": "GPU-2"}):
        scene.clock.at += 1
        scene.tell(**news)
    assert len(scene.posted) == 5


def test_a_failure_is_logged_and_tried_at_the_next_refusal(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.api.fail_next(lambda call: call.verb == "create", kube.UnreachableError("connection refused"))
    scene.tell()
    assert scene.posted == []
    assert fields_of(caplog, "event not posted") == [{"pod": "default/pod", "error": "connection refused"}]
    scene.tell()
    assert len(scene.posted) == 1


def test_only_the_latest_refusals_are_remembered() -> None:
    scene = Scene()
    for i in range(1100):
        scene.tell(f"p{i}")
    scene.tell("p1099")
    assert len(scene.posted) == 1100
    scene.clock.at += 1
    scene.tell("p0")
    assert len(scene.posted) == 1101
