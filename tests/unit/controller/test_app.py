"""The extender over HTTP."""

from dataclasses import replace

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.watches import PodSink
from gpushare.cluster.records import Bound
from gpushare.kube.api import JsonObject
from gpushare.resource_config import ResourceConfig
from gpushare.runtime import intake
from testing.builders import make_allocation, make_container, make_grant, make_pod
from testing.controller.world import World
from testing.fakes.kube import LandsLater

NODES = ["node-a", "node-b"]


def asked_to_bind(pod: JsonObject) -> JsonObject:
    meta = pod["metadata"]
    return {"PodName": meta["name"], "PodNamespace": "team", "PodUID": meta["uid"], "Node": "node-a"}


def test_filter_returns_every_fitting_node_and_numbers_for_the_others(world: World) -> None:
    for _ in range(2):
        world.bind(world.add_pod(6), "node-b")
    answer = world.post("filter", {"Pod": world.add_pod(5), "NodeNames": [*NODES, "node-x"]})
    assert answer == {
        "Nodes": None,
        "NodeNames": ["node-a"],
        "FailedNodes": {
            "node-b": "needs 5 GiB on one GPU; free per GPU on node-b: 4, 4 GiB",
            "node-x": "node node-x is unknown to the gpushare controller; it may have been added a moment ago",
        },
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_a_node_that_can_never_hold_the_pod_is_unresolvable(world: World) -> None:
    answer = world.post("filter", {"Pod": world.add_pod(11), "NodeNames": ["node-a"]})
    assert list(answer["FailedAndUnresolvableNodes"]) == ["node-a"]
    assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"]  # for Kubernetes 1.20


def test_what_filter_found_is_kept_for_prioritize_and_bind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = world.add_pod(3, 3)
    args = {"Pod": pod, "NodeNames": NODES}
    assert world.post("filter", args)["NodeNames"] == NODES
    monkeypatch.setattr("gpushare.cluster.node_ledger.place", lambda *_: pytest.fail("judged again"))
    assert [each["Host"] for each in world.post("prioritize", args)] == NODES
    assert world.bind(pod, NODES[0]).error == ""


def test_whole_nodes_are_answered_with_whole_nodes(world: World) -> None:
    nodes = [{"metadata": {"name": name}, "extra": name} for name in [*NODES, "node-x"]]
    answer = world.post("filter", {"pod": world.add_pod(5), "nodes": {"items": nodes}})
    assert answer["Nodes"] == {"metadata": {}, "items": nodes[:2]}
    assert answer["NodeNames"] is None
    assert list(answer["FailedNodes"]) == ["node-x"]


def test_the_fuller_node_scores_higher_when_packing(world: World) -> None:
    world.bind(world.add_pod(6), "node-b")
    answer = world.post("prioritize", {"Pod": world.add_pod(4), "NodeNames": [*NODES, "node-x"]})
    assert answer == [{"Host": "node-a", "Score": 1}, {"Host": "node-b", "Score": 10}, {"Host": "node-x", "Score": 0}]


@pytest.mark.parametrize("unready", ["", "this replica does not lead"])
def test_a_pod_without_a_request_passes_everywhere_even_when_nothing_is_ready(world: World, unready: str) -> None:
    world.unready = unready
    pod = make_pod(make_container())
    assert world.post("filter", {"Pod": pod, "NodeNames": ["x", "y"]})["NodeNames"] == ["x", "y"]
    scores = [{"Host": "x", "Score": 0}]
    assert world.post("prioritize", {"Pod": pod, "NodeNames": ["x"]}) == scores


def test_a_replica_that_is_not_ready_says_so_inside_of_the_answer(world: World) -> None:
    world.unready = "this replica does not lead"
    pod = world.add_pod(3)
    assert world.post("filter", {"Pod": pod, "NodeNames": NODES})["Error"] == "this replica does not lead"
    assert world.post("prioritize", {"Pod": pod, "NodeNames": NODES}) == []
    assert world.post("bind", asked_to_bind(pod)) == {"Error": "this replica does not lead"}
    assert world.api.calls == []


@pytest.mark.parametrize(
    ("verb", "body", "error"),
    [
        ("filter", b"", "the body: empty; expected JSON"),
        ("filter", b"\xff\xfe", "the body: not JSON (line 1, column 1)"),
        ("filter", b'{"NodeNames":[]}', "Pod: missing; expected ExtenderArgs {Pod, Nodes, NodeNames}"),
        ("bind", b"[]", "the body: expected an object, found a list"),
        ("bind", b'{"PodNamespace":"n","PodName":"p"}', "PodUID: expected a string, found nothing"),
    ],
)
def test_garbage_is_answered_with_200_and_an_error(world: World, verb: str, body: bytes, error: str) -> None:
    response = world.client().post(f"/gpushare-scheduler/{verb}", body)
    assert (response.status, orjson.loads(response.body)["Error"]) == (200, error)


def test_a_request_that_cannot_be_understood_fails_with_the_field(world: World) -> None:
    pod = {"metadata": {}, "spec": {"containers": [make_container("c", "0")]}}
    error = "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 0 asks for nothing"
    assert world.post("filter", {"Pod": pod, "NodeNames": NODES})["Error"].startswith(error)
    assert world.post("prioritize", {"Pod": pod, "NodeNames": NODES}) == []


def test_a_bug_is_an_answer_without_a_stack_trace(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(world.node_verdicts), "filter", lambda *_, **__: 1 / 0)
    answer = world.post("filter", {"Pod": world.add_pod(3), "NodeNames": NODES})
    assert answer["Error"] == "gpushare controller: internal error: ZeroDivisionError"


def test_a_body_that_is_too_large_is_answered_with_200(world: World) -> None:
    response = world.client().post("/gpushare-scheduler/bind", b" " * (64 * 2**20 + 1))
    message = "the body: it has 67108865 bytes of JSON, with all defaults; at most 67108864 are read"
    assert (response.status, orjson.loads(response.body)) == (200, {"Error": message})


def test_a_large_request_may_have_to_come_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake.Intake, "_take", lambda _self, _amount, _held: False)
    response = world.client().post("/gpushare-scheduler/filter", b" " * 100_000)
    assert orjson.loads(response.body)["Error"] == "the body: other large requests are being looked at; try again"
    assert world.post("filter", {"Pod": world.add_pod(3), "NodeNames": NODES})["NodeNames"]


def test_a_body_without_a_length_is_answered_with_200(world: World) -> None:
    response = world.client().post("/gpushare-scheduler/bind", chunked=True)
    message = "the body: Transfer-Encoding is not read; send a Content-Length"
    assert (response.status, orjson.loads(response.body)) == (200, {"Error": message})


def test_other_methods_and_paths_are_told_so(world: World) -> None:
    client = world.client()
    assert client.get("/gpushare-scheduler/filter").status == 405
    assert client.post("/metrics").status == 405
    assert client.get("/").status == client.post("/gpushare-scheduler/bind/x").status == 404


def test_a_bug_behind_a_page_is_an_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.metrics, "page", lambda: 1 / 0)
    assert world.client().get("/metrics").status == 500


def test_the_paths_of_nano_gpu_answer_the_same(world: World) -> None:
    pod = world.add_pod(3)
    nodes = {"Pod": pod, "NodeNames": NODES}
    victims = {"Pod": pod, "NodeNameToMetaVictims": {"node-a": {"Pods": [{"UID": "u"}]}}}

    def post(path: str, body: object) -> object:
        response = world.client().post(path, orjson.dumps(body))
        assert response.status == 200
        return orjson.loads(response.body)

    for ours, nanos, body in (
        ("filter", "filter", nodes),
        ("prioritize", "priorities", nodes),
        ("preempt", "preempt", victims),
        ("bind", "bind", asked_to_bind(pod)),
    ):
        assert post(f"/scheduler/{nanos}", body) == post(f"/gpushare-scheduler/{ours}", body)
    assert world.held_by(pod) is not None


def test_a_member_of_a_group_fits_only_beside_the_others(world: World) -> None:
    def member(gib: int) -> JsonObject:
        return world.add_pod(gib, labels={"app": "web"}, annotations={"gpushare.dev/same-gpu-as": "app=web"})

    first, second, third = member(3), member(8), member(7)
    assert world.post("filter", {"Pod": first, "NodeNames": NODES})["NodeNames"] == NODES
    world.bind(first)
    world.see()
    assert world.post("filter", {"Pod": second, "NodeNames": NODES})["NodeNames"] == []
    assert world.post("filter", {"Pod": third, "NodeNames": NODES})["NodeNames"] == ["node-a"]
    scores = world.post("prioritize", {"Pod": third, "NodeNames": NODES})
    assert [each["Score"] > 0 for each in scores] == [True, False]


def test_whole_gpus_are_none_of_the_extenders_business_unless_they_are_this_projects(world: World) -> None:
    pod = make_pod({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}})
    assert world.post("filter", {"Pod": pod, "NodeNames": ["x"]})["NodeNames"] == ["x"]
    world.start_controller(ResourceConfig(whole_gpus=True))
    world.list_all()
    world.bind(world.add_pod(1))
    world.bind(world.add_pod(10))
    answer = world.post("filter", {"Pod": pod, "NodeNames": [*NODES, "x"]})
    assert answer["NodeNames"] == ["node-b"]


def test_inspect_shows_the_ledger(world: World) -> None:
    world.bind(world.add_pod(3))
    client = world.client()
    everything = orjson.loads(client.get("/gpushare-scheduler/inspect").body)
    assert [(node["name"], node["usedGPU"]) for node in everything["nodes"]] == [("node-a", 3), ("node-b", 0)]
    one = orjson.loads(client.get("/gpushare-scheduler/inspect/node-b").body)
    assert [node["name"] for node in one["nodes"]] == ["node-b"]
    none = client.get("/gpushare-scheduler/inspect/node-x")
    expected = {"nodes": [], "error": "node node-x has no GPUs that gpushare knows of"}
    assert (none.status, orjson.loads(none.body)) == (200, expected)
    world.unready = "not now"
    assert orjson.loads(client.get("/gpushare-scheduler/inspect").body)["error"] == "not now"


def test_probes_and_version(world: World) -> None:
    client = world.client()
    assert client.get("/healthz").body == b"ok\n"
    assert (client.get("/readyz").status, client.get("/readyz").body) == (200, b"ok\n")
    world.unready = "still reading"
    assert (client.get("/readyz").status, client.get("/readyz").body) == (503, b"still reading\n")
    assert client.get("/healthz").status == 200
    assert client.get("/version").body == b"1.2.3\n"


def test_metrics_count_what_was_asked_and_what_is_held(world: World) -> None:
    leading = {"gpushare_leading": ("1 while leading", lambda: 1.0)}
    world.metrics.watch(world.state, leading, lambda: {"Fits": 2}, is_read=lambda: True)
    first, second = world.add_pod(3), world.add_pod(4)
    world.post("filter", {"Pod": first, "NodeNames": [*NODES, "node-x"]})
    world.post("filter", {"Pod": world.add_pod(11), "NodeNames": NODES})
    world.api.fail_next(lambda call: call.path.endswith("/binding"), LandsLater())
    for pod in (first, second):
        world.post("bind", asked_to_bind(pod))
    page = world.client().get("/metrics").body.decode()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    gib = 1024**3
    assert found["gpushare_extender_requests_total", "bind", "bound"] == 1
    assert found["gpushare_extender_requests_total", "bind", "in-doubt"] == 1
    assert found["gpushare_extender_requests_total", "filter", "no-fit"] == 1
    assert found["gpushare_extender_seconds_count", "filter"] == 2
    assert found["gpushare_filter_nodes_total", "fits"] == 2
    assert found["gpushare_filter_nodes_total", "failed"] == 1
    assert found["gpushare_filter_nodes_total", "unresolvable"] == 2
    assert found["gpushare_node_memory_total_bytes", "node-a"] == 20 * gib
    assert found["gpushare_node_memory_granted_bytes", "node-a"] == 7 * gib
    assert found["gpushare_node_memory_usable_bytes", "node-a"] == 20 * gib
    assert found["gpushare_node_gpus", "Healthy", "node-a"] == 2
    assert found["gpushare_node_pods", "node-a"] == 2
    assert found["gpushare_namespace_memory_granted_bytes", "team"] == 7 * gib
    assert found["gpushare_namespace_pods", "team"] == 2
    assert found["gpushare_pods_waiting", "Fits"] == 2
    assert found["gpushare_reservations_unconfirmed",] == 1
    assert found["gpushare_pods_unreadable",] == 0
    assert found["gpushare_leading",] == 1


def test_over_committed_compute_is_a_metric(world: World) -> None:
    world.metrics.watch(world.state, {}, dict, is_read=lambda: True)
    for name in ("a", "b"):
        allocation = make_allocation(name, replace(make_grant(0), compute_percent=60))
        PodSink(world.state).upsert(Bound(ref=allocation.pod, node=allocation.node, allocation=allocation))
    assert 'gpushare_gpu_over_committed_compute_ratio{UUID="GPU-0",node="node-a"} 0.2' in world.metrics.page().decode()
