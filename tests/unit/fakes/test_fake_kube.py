"""The fake API server keeps the semantics that other tests rely on."""

from typing import Any

import pytest

from gpushare.kube import api as kube
from testing.fakes.kube import FakeKube

PODS = "/api/v1/namespaces/team/pods"
ALL_PODS = "/api/v1/pods"


def pod(name: str, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}, "spec": {"containers": []}}


def binding(node: str, **meta: Any) -> dict[str, Any]:
    return {"metadata": meta, "target": {"kind": "Node", "name": node}}


@pytest.fixture
def api() -> FakeKube:
    return FakeKube()


def test_a_patch_that_changes_nothing_makes_no_version(api: FakeKube) -> None:
    made = api.create(PODS, pod("a", labels={"x": "1"}))
    assert api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}}) == made


def test_the_status_is_written_through_its_subresource_only(api: FakeKube) -> None:
    api.create(PODS, pod("a"))
    api.patch(f"{PODS}/a", {"status": {"phase": "Running"}})
    assert api.read(f"{PODS}/a")["status"] == {"phase": "Pending"}
    api.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}, "spec": {"x": 1}})
    assert api.read(f"{PODS}/a")["status"] == {"phase": "Running"}
    assert api.read(f"{PODS}/a")["spec"] == {"containers": []}


def test_a_binding_with_another_uid_is_refused(api: FakeKube) -> None:
    api.create(PODS, pod("a"))
    with pytest.raises(kube.ConflictError, match="UID in precondition: other"):
        api.create(f"{PODS}/a/binding", binding("n1", uid="other"))


def test_a_running_pod_lingers_after_delete(api: FakeKube) -> None:
    api.create(PODS, pod("a"))
    api.create(f"{PODS}/a/binding", binding("n1"))
    api.delete(f"{PODS}/a")
    assert api.read(f"{PODS}/a")["metadata"]["deletionTimestamp"]
    api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    with pytest.raises(kube.NotFoundError):
        api.get(f"{PODS}/a")


def events(api: FakeKube, since: str, **params: str) -> list[tuple[str, str]]:
    stream = api.watch(ALL_PODS, {"resourceVersion": since, **params}, timeout_s=0.01)
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in stream]


def test_a_watch_resumes_and_sees_objects_leave_its_selector(api: FakeKube) -> None:
    since = api.get(ALL_PODS)["metadata"]["resourceVersion"]
    middle = api.create(PODS, pod("a", labels={"x": "1"}))["metadata"]["resourceVersion"]
    api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "2"}}})
    api.delete(f"{PODS}/a")
    assert events(api, since) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert events(api, middle) == [("MODIFIED", "a"), ("DELETED", "a")]
    assert events(api, since, labelSelector="x=1") == [("ADDED", "a"), ("DELETED", "a")]
    assert events(api, since, allowWatchBookmarks="true")[-1] == ("BOOKMARK", "")


def test_a_watch_from_a_forgotten_version_is_gone(api: FakeKube) -> None:
    since = api.create(PODS, pod("a"))["metadata"]["resourceVersion"]
    open_watch = api.watch(ALL_PODS, {"resourceVersion": since}, timeout_s=5)
    api.compact()
    assert [event["object"]["code"] for event in open_watch] == [410]
    with pytest.raises(kube.GoneError):
        api.watch(ALL_PODS, {"resourceVersion": since}, timeout_s=5)
