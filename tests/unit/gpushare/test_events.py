import re
from datetime import UTC, datetime

import pytest

from gpushare.kube import api as kube
from gpushare.kube.api import EventType, node_path, pod_path
from testing.builders import make_ref
from testing.fakes.kube import FakeKube

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


def make(message: str = "no GPU") -> dict[str, object]:
    return kube.event(make_ref("web"), EventType.WARNING, "GpuRefused", message, component="x", now=NOW)


def test_an_event_points_at_its_pod_and_is_created_in_its_namespace() -> None:
    event = make()
    about = {"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "default", "uid": "uid-web"}
    assert event["involvedObject"] == about
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "GpuRefused", "no GPU")
    assert event["firstTimestamp"] == "2026-11-21T10:00:00Z"
    api = FakeKube()
    kube.post_event(api, make())
    assert [str(call) for call in api.calls] == ["create /api/v1/namespaces/default/events"]


def test_what_the_api_server_accepts_of_messages_and_paths() -> None:
    message = str(make("ä" * 2000)["message"])
    assert len(message.encode()) <= 1024
    assert message.endswith("ä ...")
    assert pod_path("ns", "p", "binding") == "/api/v1/namespaces/ns/pods/p/binding"
    assert (node_path("n"), node_path("n", "status")) == ("/api/v1/nodes/n", "/api/v1/nodes/n/status")


@pytest.mark.parametrize("name", ["a" * 228 + "-.-b", "a" * 229 + ".b", "a" * 253])
def test_the_name_of_an_event_is_one_that_the_api_server_accepts(name: str) -> None:
    event = kube.event(make_ref(name), EventType.NORMAL, "R", "m", component="x", now=NOW)
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{part}(\.{part})*", event["metadata"]["name"])
    assert len(event["metadata"]["name"]) <= 253
