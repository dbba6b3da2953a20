"""The extender over HTTP."""

from dataclasses import replace

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.extender import messages
from controller.metrics import MOST_GPUS, MOST_NAMESPACES, Metrics
from controller.state import ClusterState
from controller.watches import PodSink
from gpushare import names
from gpushare.cluster import node_records, pod_records
from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName
from gpushare.model.ledger import Grant, NodeLedger
from gpushare.runtime import intake
from gpushare.units import GIB as GIB_UNIT, MemoryUnit, ResourceConfig
from testing.builders import make_allocation, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.podding import bound
from testing.clock import ManualClock
from testing.controller.world import World, bind_request, is_binding
from testing.fakes.kube import LandsLater

NODES = ["node-a", "node-b"]


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


@pytest.mark.parametrize("unready", ["", "this replica does not lead"])
def test_a_pod_without_a_request_passes_everywhere_even_when_nothing_is_ready(world: World, unready: str) -> None:
    world.unready = unready
    pod = make_pod(make_container())
    assert world.post("filter", {"Pod": pod, "NodeNames": ["x", "y"]})["NodeNames"] == ["x", "y"]
    assert world.post("prioritize", {"Pod": pod, "NodeNames": ["x", "y"]}) == []


def test_a_replica_that_is_not_ready_says_so_inside_of_the_answer(world: World) -> None:
    world.unready = "this replica does not lead"
    pod = world.add_pod(3)
    assert world.post("filter", {"Pod": pod, "NodeNames": NODES})["Error"] == "this replica does not lead"
    assert world.post("prioritize", {"Pod": pod, "NodeNames": NODES}) == []
    assert world.post("bind", bind_request(pod)) == {"Error": "this replica does not lead"}
    asked = {"Pod": pod, "NodeNameToMetaVictims": {"node-a": {"Pods": [{"UID": "u"}]}}}
    assert world.post("preempt", asked) == {"NodeNameToMetaVictims": {}}
    assert world.client().post("/gpushare-scheduler/bind").close, "else kube-scheduler would ask it forever"
    assert world.api.calls == []


def test_a_request_that_cannot_be_understood_fails_with_the_field(world: World) -> None:
    pod = {"metadata": {}, "spec": {"containers": [make_container("c", "0")]}}
    error = "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 0 asks for nothing"
    assert world.post("filter", {"Pod": pod, "NodeNames": NODES})["Error"].startswith(error)
    assert world.post("prioritize", {"Pod": pod, "NodeNames": NODES}) == []


def test_a_bug_is_an_answer_without_a_stack_trace(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(world.table), "filter", lambda *_, **__: 1 / 0)
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


def test_other_methods_and_paths_are_told_so(world: World) -> None:
    client = world.client()
    assert client.get("/gpushare-scheduler/filter").status == 405
    assert client.post("/metrics").status == 405
    assert client.get("/").status == client.post("/gpushare-scheduler/bind/x").status == 404


def test_the_paths_of_nano_gpu_answer_the_same(world: World) -> None:
    pod = world.add_pod(3)
    nodes, victims = {"NodeNames": NODES}, {"NodeNameToMetaVictims": {"node-a": {"Pods": [{"UID": "u"}]}}}
    for ours, nanos, more in (
        ("filter", "filter", nodes),
        ("prioritize", "priorities", nodes),
        ("preempt", "preempt", victims),
        ("bind", "bind", bind_request(pod)),
    ):
        found = world.client().post(f"/scheduler/{nanos}", orjson.dumps(body := {"Pod": pod, **more}))
        assert (found.status, orjson.loads(found.body)) == (200, world.post(ours, body))
    assert world.held_by(pod) is not None


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
    world.add_node("a", 5)
    for name, gib in (("second", [3]), ("first", [8, 4])):
        world.add_bound(*gib, name=name)
    pods = [
        {"name": name, "namespace": "team", "usedGPU": used}
        for name, used in (("first", 4), ("second", 3), ("first", 8))
    ]
    devices = [
        {"id": 0, "uuid": "GPU-0", "totalGPU": 10, "usedGPU": 7, "pods": pods[:2]},
        {"id": 1, "uuid": "GPU-1", "totalGPU": 10, "usedGPU": 8, "pods": pods[2:]},
    ]
    client = world.client()
    everything = orjson.loads(client.get("/gpushare-scheduler/inspect").body)
    assert [(node["name"], node["usedGPU"]) for node in everything["nodes"]] == [
        ("a", 0),
        ("node-a", 15),
        ("node-b", 0),
    ]
    assert everything["nodes"][1] == {"name": "node-a", "totalGPU": 20, "usedGPU": 15, "devs": devices}
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
    leading = [("gpushare_leading", "1 while leading", lambda: 1.0)]
    world.metrics.watch(world.state, leading, lambda: {("team", "Fits"): 2}, is_read=lambda: True)
    first, second = world.add_pod(3), world.add_pod(4)
    world.post("filter", {"Pod": first, "NodeNames": [*NODES, "node-x"]})
    world.post("filter", {"Pod": world.add_pod(11), "NodeNames": NODES})
    world.api.fail_next(is_binding, LandsLater())
    for pod in (first, second):
        world.post("bind", bind_request(pod))
    found = world.counted()
    gib = 1024**3
    assert found["gpushare_extender_requests_total", "bind", "bound"] == 1
    assert found["gpushare_extender_requests_total", "bind", "in-doubt"] == 1
    assert found["gpushare_extender_requests_total", "filter", "no-fit"] == 1
    assert found["gpushare_extender_request_duration_seconds_count", "filter"] == 2
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
    assert found["gpushare_pods_waiting", "Fits", "team"] == 2
    assert found["gpushare_reservations_unconfirmed",] == 1
    assert found["gpushare_pods_unreadable",] == 0
    assert found["gpushare_leading",] == 1


def test_the_namespaces_in_which_most_pods_wait_have_series_and_the_others_share_one_for_each_reason(
    world: World,
) -> None:
    counts = {(f"n{number}", "Fits"): number for number in range(1, MOST_NAMESPACES + 3)}
    nothing = {("_others", reason): 0 for reason in ("Fits", "NotTried")}
    world.metrics.watch(world.state, (), lambda: {**nothing, **counts}, is_read=lambda: False)
    found = {key[:0:-1]: value for key, value in world.counted().items() if key[0] == "gpushare_pods_waiting"}
    assert found == {key: count for key, count in counts.items() if count > 2} | {**nothing, ("_others", "Fits"): 3}


def test_over_committed_compute_is_a_metric(world: World) -> None:
    world.metrics.watch(world.state, {}, dict, is_read=lambda: True)
    for name in ("a", "b"):
        allocation = make_allocation(name, replace(make_grant(0), compute_percent=60))
        PodSink(world.state.index).upsert(Bound(ref=allocation.pod, node=allocation.node, allocation=allocation))
    assert (
        'gpushare_gpu_over_committed_compute_ratio{UUID="GPU-0",node="node-a"} 0.2'
        in world.metrics.page().body.decode()
    )


CONFIG = ResourceConfig()
GIB = 1024**3


def with_pods(state: ClusterState, count: int, *, node: str = "node-a", gpu: str = "GPU-0", gib: int = 1) -> None:
    """One in each of so many namespaces, on a GPU of its own if the name has a place for its number."""
    index = state.index
    for number in range(count):
        pod = bound(f"p{number}-{node}", make_grant(gpu.format(number), gib=gib), node=node)
        pod["metadata"]["namespace"] = f"team-{number:05}"
        record = pod_records.read(pod, CONFIG)
        assert record is not None
        index.set_pod(record)


def with_node(state: ClusterState, name: str, *gib: int) -> None:
    state.index.set_node(NodeName(name), node_records.read(make_node(make_inventory(*gib, node=name))))


def page(state: ClusterState, *, is_read: bool = True) -> str:
    metrics = Metrics(ManualClock())
    metrics.watch(state, {}, dict, is_read=lambda: is_read)
    return metrics.page().body.decode()


def found(state: ClusterState, name: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(page(state))
    return {
        tuple(each.labels.values()): each.value for family in families if family.name == name for each in family.samples
    }


def test_the_namespaces_that_hold_most_have_series_and_the_others_share_one() -> None:
    state = ClusterState(resource_config=CONFIG)
    with_node(state, "node-a", 4000)
    with_pods(state, MOST_NAMESPACES)
    assert (names.OTHERS,) not in found(state, "gpushare_namespace_pods")
    with_pods(state, MOST_NAMESPACES + 5)
    with_pods(state, 5, node="node-b")  # which is not there
    granted = found(state, "gpushare_namespace_memory_granted_bytes")
    assert len(granted) == MOST_NAMESPACES + 1
    assert granted[names.OTHERS,] == 5 * GIB
    assert sum(granted.values()) == (MOST_NAMESPACES + 5) * GIB
    assert sum(found(state, "gpushare_namespace_pods").values()) == MOST_NAMESPACES + 5


def test_over_committed_gpus_have_a_bound_and_the_worst_are_told() -> None:
    """A forged allocation may name GPUs that do not exist, as long as an annotation can be."""
    state = ClusterState(resource_config=CONFIG)
    with_node(state, "node-a", 8)
    with_pods(state, MOST_GPUS + 5, gpu="GPU-made-up-{}" + "x" * 300)
    with_pods(state, 1, gpu="GPU-0", gib=20)
    over = found(state, "gpushare_gpu_over_committed_bytes")
    assert len(over) == MOST_GPUS
    assert 'gpushare_gpu_over_committed_bytes{UUID="GPU-0",node="node-a"} 1.2884901888e+10' in page(state)
    assert max(over.values()) == 12 * GIB
    assert max(len(gpu) for labels in over for gpu in labels) <= 253


def test_the_number_of_series_is_what_the_page_promises() -> None:
    state, nodes = ClusterState(resource_config=CONFIG), 20
    for number in range(nodes):
        with_node(state, f"node-{number}", 8, 8)
        with_pods(state, 100, node=f"node-{number}", gpu="GPU-{}")
    lines = [line for line in page(state).splitlines() if not line.startswith("#")]
    assert len(lines) <= 8 * nodes + 2 * (100 + 1) + 2 * MOST_GPUS + 300
    assert len([line for line in lines if "node=" in line and "UUID=" not in line]) <= 8 * nodes


def test_before_all_pods_are_read_no_node_looks_empty() -> None:
    """A new leader lists nodes and pods at the same time, and those of a large cluster for most of a minute."""
    state = ClusterState(resource_config=CONFIG)
    with_node(state, "node-a", 16)
    assert "node-a" not in page(state, is_read=False)
    with_pods(state, 1)
    assert 'gpushare_node_memory_granted_bytes{node="node-a"} 1.0' in page(state)


def test_what_may_be_granted_is_told_beside_what_gpus_have() -> None:
    state, known = ClusterState(resource_config=CONFIG), make_inventory(16, 16)
    more = replace(known, gpus=(replace(known.gpus[0], extra_mib=8 * 1024), known.gpus[1]))
    state.index.set_node(NodeName("node-a"), node_records.read(make_node(more)))
    kinds = ("total", "usable", "grantable")
    assert [found(state, f"gpushare_node_memory_{kind}_bytes")["node-a",] / GIB for kind in kinds] == [32, 32, 40]


@pytest.mark.parametrize(
    ("unit", "grant", "used", "total"),
    [
        (MemoryUnit(4096), make_grant(0, gib=5), 2, 3),  # use is rounded up, and size down
        (GIB_UNIT, replace(make_grant(0, gib=0), memory_percent=50), 8, 15),  # which no one wrote down in MiB
        (GIB_UNIT, replace(make_grant(0, gib=14), whole=True), 15, 15),  # all of it, however large it was
    ],
    ids=["coarse unit", "part", "whole"],
)
def test_use_is_in_whole_units(unit: MemoryUnit, grant: Grant, used: int, total: int) -> None:
    ledger = NodeLedger.of(make_inventory(15, unit=unit), [make_allocation("p", grant)])
    [node] = messages.inspected({NodeName("node-a"): ledger})["nodes"]
    [device] = node["devs"]
    assert (device["usedGPU"], device["totalGPU"], node["usedGPU"], node["totalGPU"]) == (used, total) * 2
    assert device["pods"] == [{"name": "p", "namespace": "default", "usedGPU": used}]
