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


def test_a_stale_replace_is_a_conflict(api: FakeKube) -> None:
    first = api.create(PODS, pod("a"))
    api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}})
    with pytest.raises(kube.ConflictError):
        api.replace(f"{PODS}/a", first)
    fresh = api.get(f"{PODS}/a")
    fresh["metadata"]["labels"] = None
    assert api.replace(f"{PODS}/a", fresh)["metadata"]["labels"] is None


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


def test_a_binding_sets_node_and_annotations_in_one_version(api: FakeKube) -> None:
    made = api.create(PODS, pod("a", annotations={"forged": "yes", "own": "1"}))
    api.create(f"{PODS}/a/binding", binding("n1", uid=made["metadata"]["uid"], annotations={"forged": "no"}))
    bound = api.read(f"{PODS}/a")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"forged": "no", "own": "1"}
    with pytest.raises(kube.ConflictError, match='pod a is already assigned to node "n1"'):
        api.create(f"{PODS}/a/binding", binding("n2"))


def test_a_binding_with_another_uid_is_refused_but_not_by_old_servers(api: FakeKube) -> None:
    api.create(PODS, pod("a"))
    with pytest.raises(kube.ConflictError, match="UID in precondition: other"):
        api.create(f"{PODS}/a/binding", binding("n1", uid="other"))
    api.binding_checks_uid = False
    api.create(f"{PODS}/a/binding", binding("n1", uid="other"))


def test_a_running_pod_lingers_after_delete(api: FakeKube) -> None:
    api.create(PODS, pod("a"))
    api.create(f"{PODS}/a/binding", binding("n1"))
    api.delete(f"{PODS}/a")
    assert api.read(f"{PODS}/a")["metadata"]["deletionTimestamp"]
    api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    with pytest.raises(kube.NotFoundError):
        api.get(f"{PODS}/a")


def test_a_list_has_pages_of_one_version_and_selectors(api: FakeKube) -> None:
    for i in range(5):
        api.seed(f"/api/v1/namespaces/ns{i % 2}/pods", pod(f"p{i}", labels={"odd": str(i % 2)}))
    page = api.get(ALL_PODS, {"limit": "2"})
    names = [p["metadata"]["name"] for p in page["items"]]
    api.seed(PODS, pod("late"))
    while token := page["metadata"].get("continue"):
        page = api.get(ALL_PODS, {"limit": "2", "continue": token})
        names += [p["metadata"]["name"] for p in page["items"]]
    assert sorted(names) == ["p0", "p1", "p2", "p3", "p4"]
    assert len(api.get("/api/v1/namespaces/ns1/pods")["items"]) == 2
    assert len(api.get(ALL_PODS, {"labelSelector": "odd=1"})["items"]) == 2
    assert len(api.get(ALL_PODS, {"labelSelector": "odd"})["items"]) == 5
    api.seed(PODS, {"metadata": {"name": "b"}, "spec": {"nodeName": "n1"}})
    assert [p["metadata"]["name"] for p in api.get(ALL_PODS, {"fieldSelector": "spec.nodeName=n1"})["items"]] == ["b"]


def test_an_expired_page_token_is_gone(api: FakeKube) -> None:
    for name in "abc":
        api.seed(PODS, pod(name))
    token = api.get(ALL_PODS, {"limit": "1"})["metadata"]["continue"]
    api.compact()
    with pytest.raises(kube.GoneError):
        api.get(ALL_PODS, {"limit": "1", "continue": token})


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
