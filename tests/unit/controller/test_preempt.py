"""The preempt verb over HTTP, as kube-scheduler asks."""

import logging
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller import preemption
from controller.extender import preempt
from gpushare.cluster.budgets import Budget
from gpushare.kube.api import JsonObject
from gpushare.model.selector import LabelSelector
from testing.builders import make_container, make_pod
from testing.controller.world import World, uid_of


def running(world: World, *gib: int, node: str = "node-a", priority: int = 0) -> JsonObject:
    """A pod that the extender has bound."""
    pod = world.add_pod(*gib)
    world.edit_pod(pod, lambda found: found["spec"].update(priority=priority))
    assert world.bind(pod, node).error == ""
    world.see()
    return pod


def wanting(world: World, *gib: int, priority: int = 100) -> JsonObject:
    pod = world.add_pod(*gib)
    pod["spec"]["priority"] = priority
    return pod


def meta(**nodes: Sequence[JsonObject | str]) -> dict[str, Any]:
    """The scheduler's choice by UIDs; underscores stand for hyphens."""
    return {
        name.replace("_", "-"): {"Pods": [{"UID": _uid(pod)} for pod in pods], "NumPDBViolations": 0}
        for name, pods in nodes.items()
    }


def whole(**nodes: Sequence[JsonObject]) -> dict[str, Any]:
    return {name.replace("_", "-"): {"Pods": list(pods), "NumPDBViolations": 0} for name, pods in nodes.items()}


def _uid(pod: JsonObject | str) -> str:
    return pod if isinstance(pod, str) else uid_of(pod)


def ask(world: World, pod: JsonObject, nodes: dict[str, Any]) -> Any:
    return world.post("preempt", {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": nodes})[
        "NodeNameToMetaVictims"
    ]


def test_victims_on_the_wrong_gpu_are_replaced_and_hopeless_nodes_dropped(world: World) -> None:
    running(world, 5, priority=100)
    wrong = running(world, 4, priority=1)  # on the GPU where an equal has 5 GiB
    right = running(world, 7, priority=2)
    equal = running(world, 9, node="node-b", priority=100)
    small = running(world, 9, node="node-b", priority=100)
    answer = ask(world, wanting(world, 8), meta(node_a=[wrong], node_b=[equal, small], node_x=["u"]))
    assert answer == meta(node_a=[right])


def test_whole_pods_are_answered_with_uids(world: World) -> None:
    low, lower = running(world, 9, priority=2), running(world, 9, priority=1)
    asked = wanting(world, 8)
    answer = world.post("preempt", {"pod": asked, "nodeNameToVictims": whole(node_a=[low, lower])})
    assert answer == {"NodeNameToMetaVictims": meta(node_a=[low, lower])}


@pytest.mark.parametrize("unready", ["", "this replica does not lead"])
def test_a_pod_without_a_request_preempts_as_the_scheduler_says(world: World, unready: str) -> None:
    world.unready = unready
    pod = make_pod(make_container())
    assert ask(world, pod, meta(x=["a", "b"], y=[])) == meta(x=["a", "b"])


def test_a_pod_that_may_be_bound_there_leaves_the_victims_as_they_are(world: World) -> None:
    pod = wanting(world, 10)
    world.bind(pod)
    assert ask(world, pod, meta(node_a=["cpu"])) == meta(node_a=["cpu"])


def test_a_protected_pod_is_spared_and_counted(world: World) -> None:
    everybody = LabelSelector((), "")
    spared, other = running(world, 9, priority=1), running(world, 9, priority=2)
    known = {
        ("team", name): Budget(namespace="team", name=name, selector=everybody, allowed=0, disrupted=frozenset(names))
        for name, names in (("a", [other["metadata"]["name"]]), ("b", []))
    }
    pod = wanting(world, 9)
    world.budgets.by_key = {("team", "a"): known["team", "a"]}
    assert ask(world, pod, meta(node_a=[])) == meta(node_a=[other])
    world.budgets.by_key = known
    assert ask(world, pod, meta(node_a=[spared]))["node-a"]["NumPDBViolations"] == 1


def test_a_group_that_no_one_has_begun_is_begun_where_there_is_room(world: World) -> None:
    victim = running(world, 9, priority=1)
    running(world, 9, priority=100)
    pod = wanting(world, 9)
    pod["metadata"] |= {"labels": {"app": "web"}, "annotations": {"gpushare.dev/same-gpu-as": "app=web"}}
    assert ask(world, pod, meta(node_a=[victim])) == meta(node_a=[victim])
    pod["metadata"]["labels"] = {}
    assert ask(world, pod, meta(node_a=[victim])) == {}


def test_a_replica_that_is_not_ready_evicts_no_one(world: World) -> None:
    victim = running(world, 9, priority=1)
    world.unready = "this replica does not lead"
    assert ask(world, wanting(world, 10), meta(node_a=[victim])) == {}


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("[]", "Pod.spec: expected an object, found a list"),
        (
            '{"containers":[{"name":"c","resources":{"limits":{"aliyun.com/gpu-mem":"x"}}}]}',
            "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 'x' is not a number; write a whole number of"
            " units such as 3",
        ),
    ],
)
def test_garbage_evicts_no_one_and_is_logged(
    world: World, caplog: pytest.LogCaptureFixture, spec: str, error: str
) -> None:
    body = '{"Pod":{"metadata":{},"spec":SPEC},"NodeNameToMetaVictims":{"node-a":{"Pods":[{"UID":"u"}]}}}'
    response = world.client().post("/gpushare-scheduler/preempt", body.replace("SPEC", spec).encode())
    assert (response.status, orjson.loads(response.body)) == (200, {"NodeNameToMetaVictims": {}})
    [line] = [record for record in caplog.records if record.getMessage() == "preempt failed"]
    assert line.gpushare_fields == {"error": error}  # type: ignore[attr-defined]  # set by `logs.event`


def test_a_bug_evicts_no_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = running(world, 9, priority=1)
    monkeypatch.setattr("controller.preemption.decide", lambda *_: 1 / 0)
    assert ask(world, wanting(world, 10), meta(node_a=[victim])) == {}


def test_nodes_for_which_there_is_no_time_are_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    victims = {node: running(world, 9, node=node, priority=1) for node in ("node-a", "node-b")}
    for node in victims:
        running(world, 9, node=node, priority=100)
    decide = preemption.decide

    def slow(*args: Any) -> Any:
        world.clock.at += preempt.BUDGET_S
        return decide(*args)

    monkeypatch.setattr("controller.preemption.decide", slow)
    asked = wanting(world, 8)
    answer = ask(world, asked, meta(node_a=[victims["node-a"]], node_b=[victims["node-b"]]))
    assert answer == meta(node_a=[victims["node-a"]])
    assert counted(world)["gpushare_preempt_nodes_total", "late"] == 1


def counted(world: World) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(world.client().get("/metrics").body.decode())
        for sample in family.samples
    }


def test_what_was_decided_is_counted_and_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    running(world, 5, priority=100)
    wrong, right = running(world, 4, priority=1), running(world, 7, priority=2)
    pod = wanting(world, 8)
    with caplog.at_level(logging.INFO):
        ask(world, pod, meta(node_a=["cpu", wrong], node_b=["disk"], node_x=["u", "v"]))
        ask(world, wanting(world, 11), meta(node_b=["cpu"]))
        world.client().post("/gpushare-scheduler/preempt", b"x")
    found = counted(world)
    assert found["gpushare_extender_requests_total", "nodes", "preempt"] == 1
    assert found["gpushare_extender_requests_total", "no-nodes", "preempt"] == 1
    assert found["gpushare_extender_requests_total", "invalid", "preempt"] == 1
    assert found["gpushare_preempt_nodes_total", "chosen"] == 1
    assert found["gpushare_preempt_nodes_total", "as-given"] == 1
    assert found["gpushare_preempt_nodes_total", "dropped"] == 2
    assert found["gpushare_preempt_victims_total", "kept"] == 2
    assert found["gpushare_preempt_victims_total", "added"] == 1
    assert found["gpushare_preempt_victims_total", "dropped"] == 4
    first, _ = [record for record in caplog.records if record.getMessage() == "preempt"]
    assert first.gpushare_fields == {  # type: ignore[attr-defined]  # set by `logs.event`
        "pod": f"team/{pod['metadata']['name']}",
        "uid": uid_of(pod),
        "priority": 100,
        "nodes": {"chosen": 1, "as-given": 1, "dropped": 1},
        "victims": {"kept": 2, "dropped": 3, "added": 1},
        "chosen": f"node-a: {uid_of(right)}, cpu",
    }
