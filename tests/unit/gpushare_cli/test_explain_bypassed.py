"""What is said of a pod that is on a node and was given no GPUs: what the controller does about it."""

import pytest

from testing.builders import Json, make_container, make_inventory, make_node, make_pod
from testing.cli.explaining import copy, explain
from testing.cli.podding import mutated
from testing.cli.simulating import lines

NODE = make_node(make_inventory(15, 15))


def bypassed(gpu_mem: int = 3, **metadata: object) -> Json:
    pod = mutated(make_pod(make_container(gpu_mem=gpu_mem), node="node-a"))
    pod["metadata"] |= metadata
    return pod


def owned(kind: str) -> Json:
    return {"ownerReferences": [{"kind": kind, "name": "web", "uid": "u", "controller": True}]}


OWNER = owned("ReplicaSet")


@pytest.mark.parametrize(
    ("pod", "code", "why"),
    [
        (bypassed(), 0, "there is room: the controller chooses its GPUs within moments, and its containers start then"),
        (
            bypassed(20),
            3,
            "its containers wait until there is room: needs 20 GiB on one GPU; free per GPU on node-a: 15, 15 GiB (its"
            " largest GPU has 15 GiB in all); or delete it and create it again",
        ),
        (
            bypassed(20, **OWNER),
            3,
            "its containers wait until there is room: needs 20 GiB on one GPU; free per GPU on node-a: 15, 15 GiB (its"
            " largest GPU has 15 GiB in all); or delete it, so that its controller makes it again",
        ),
        (
            make_pod(node="node-a"),
            3,
            "the webhook did not change it, so its containers would not see GPUs that they are given; delete it and"
            " create it again",
        ),
        (
            make_pod(make_container(gpu_mem="many"), node="node-a"),
            3,
            "what it asks for cannot be understood: spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 'many' is"
            " not a number; write a whole number of units such as 3; fix that and delete it and create it again",
        ),
    ],
)
def test_a_pod_on_a_node_without_gpus_is_told_what_happens_next(pod: Json, code: int, why: str) -> None:
    found = explain(copy(pod), NODE)
    said = [" ".join(line.split()) for line in found.out.splitlines()]
    assert (found.code, said[1]) == (code, "STATE: on node-a without GPUs")
    assert said[2] == f"WHY: {why}"


def started(pod: Json, container: str = "main") -> Json:
    pod = copy(pod)
    pod["status"] |= {"phase": "Running", "containerStatuses": [{"name": container, "state": {"running": {}}}]}
    return pod


ELSEWHERE = " without spec.nodeName and with the scheduler gpushare-scheduler"
TOO_LATE = "its containers have started without GPUs from gpushare, and cannot be given any more; delete it"
UNCHANGED = "the webhook did not change it, so its containers would not see GPUs that they are given; "


def plain(**metadata: object) -> Json:
    """Not changed by the webhook."""
    pod = make_pod(node="node-a")
    pod["metadata"] |= metadata
    return pod


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (started(bypassed()), f"{TOO_LATE} and create it again{ELSEWHERE}"),
        (started(bypassed(20, **OWNER)), f"{TOO_LATE}, so that its controller makes it again{ELSEWHERE}"),
        (plain(**OWNER), f"{UNCHANGED}the controller deletes it, so that its owner recreates it"),
        (started(plain(**OWNER)), f"{TOO_LATE}, so that its controller makes it again{ELSEWHERE}"),
        (started(plain()), f"{UNCHANGED}delete it and create it again"),
        (
            plain(**owned("Job")),
            f"{UNCHANGED}delete it, so that its Job, which will count it as failed, makes it again while"
            " gpushare-webhook is running",
        ),
        (started(plain(**owned("Job"))), f"{TOO_LATE}, so that its controller makes it again{ELSEWHERE}"),
        (
            plain(**owned("Node")),
            f"{UNCHANGED}static pods cannot ask for GPUs: make it a Deployment or a DaemonSet, created while"
            " gpushare-webhook is running",
        ),
    ],
)
def test_what_is_said_of_a_pod_without_gpus_is_what_the_controller_does(pod: Json, why: str) -> None:
    found = explain(pod, NODE)
    assert found.code == 3
    assert f"WHY: {why}" in [" ".join(line.split()) for line in found.out.splitlines()]


def test_a_container_that_asks_for_no_gpu_may_have_started() -> None:
    pod = bypassed()
    pod["spec"]["containers"].append({"name": "log"})
    assert explain(started(pod, "log"), NODE).code == 0


@pytest.mark.parametrize(
    ("pod", "code", "may"), [(plain(**OWNER), 3, "may start it"), (started(plain()), 0, "has started it")]
)
def test_a_pod_of_another_plugin_is_left_alone(pod: Json, code: int, may: str) -> None:
    found = explain(pod, make_node(name="node-a"))
    assert (found.code, found.out) == (
        code,
        lines(
            "POD:    default/pod",
            "STATE:  on node-a without GPUs from gpushare",
            "WHY:    the webhook did not change it, and nothing says that gpushare hands out GPUs there: anyone else"
            " who"
            f" does so {may}, and gpushare leaves it alone",
        ),
    )


def test_a_pod_whose_node_is_gone_gets_nothing() -> None:
    assert "WHY:       its node node-a is gone\n" in explain(bypassed(), make_node(name="node-b")).out
