"""Pods that come to a node without GPUs are given them there, if the webhook has made them so that it helps."""

import pytest

from controller.reconcile import advice, bypassed_pods
from gpushare import names
from gpushare.kube import api as kube
from testing.controller.bypassing import REPLICA_SET, add_bypassed, annotations, requests, run_containers, said, tick
from testing.controller.world import World, path_of, uid_of

ROOM = "to have it placed where there is room, "
AGAIN = "delete it and create it again without spec.nodeName and with the scheduler gpushare-scheduler"


def test_a_pod_on_a_node_is_given_gpus_there_by_one_patch(world: World) -> None:
    pod = add_bypassed(world, 3, name="late")
    tick(world)
    assert world.gpus_of(pod) == ["GPU-0"]
    assert annotations(world, pod)[names.ANNOTATION_LATE] == "true"
    assert annotations(world, pod)[f"{names.PREFIX_DEVICES}c0"] == "GPU-0"
    assert annotations(world, pod)[names.ALIYUN_ASSIGNED] == "true"
    (patch,) = (call for call in world.api.calls if call.verb == "patch")
    assert patch.body["metadata"]["uid"] == uid_of(pod)
    assert "resourceVersion" not in patch.body["metadata"]
    assert world.used() == {"GPU-0": 3}
    assert said(world) == [
        (
            "GpuShareBoundLate",
            "it came to node-a without GPUs, and was given them there: container c0: GPU-0",
        )
    ]
    assert world.state.cache.snapshot().differences() == []
    bypassed = world.reconciler.bypassed
    assert (bypassed.bound_late, bypassed.recreated, bypassed.rejected_deleted) == (1, 0, 0)
    world.api.calls.clear()
    tick(world, 60)
    assert requests(world) == []


def test_its_memory_counts_from_the_choice_until_the_watch_shows_it(world: World) -> None:
    add_bypassed(world, 9)
    world.see()
    world.reconciler.tick()
    assert world.used() == {"GPU-0": 9}
    assert world.bind(world.add_pod(9)).error == ""
    assert world.used() == {"GPU-0": 9, "GPU-1": 9}
    world.reconciler.tick()
    assert world.api.count("patch") == 1
    world.see()
    assert world.used() == {"GPU-0": 9, "GPU-1": 9}
    assert world.state.cache.snapshot().unconfirmed == 0


def test_other_news_of_the_pod_do_not_end_what_is_set_aside_for_it(world: World) -> None:
    pod = add_bypassed(world, 9)
    world.see()
    world.api.fail_next(lambda call: call.verb == "patch", "lost-request")
    world.reconciler.tick()
    world.edit_pod(pod, lambda found: found["metadata"].update(labels={"some": "news"}))
    world.see()
    assert world.used() == {"GPU-0": 9}
    assert world.state.cache.snapshot().differences() == []


def test_every_container_is_given_its_own(world: World) -> None:
    pod = add_bypassed(world, 8, 0, 8)
    tick(world)
    given = {key: value for key, value in annotations(world, pod).items() if key.startswith(names.PREFIX_DEVICES)}
    assert sorted(given) == ["devices.gpushare.dev/c0", "devices.gpushare.dev/c2"]
    assert sorted(given.values()) == ["GPU-0", "GPU-1"]


def test_a_pod_that_does_not_fit_is_told_why_and_given_gpus_when_there_is_room(world: World) -> None:
    first = world.add_pod(9)
    assert world.bind(first).error == ""
    assert world.bind(world.add_pod(8)).error == ""
    pod = add_bypassed(world, 3)
    for _ in range(3):
        tick(world, 1)
    assert said(world) == [
        (
            "GpuShareWaiting",
            "it came to node-a without GPUs and waits there for room:"
            f" needs 3 GiB on one GPU; free per GPU on node-a: 1, 2 GiB; {ROOM}{AGAIN}",
        )
    ]
    assert world.api.count("get", "pods/bypassed") == 0
    world.finish(first)
    tick(world, 1)
    assert world.gpus_of(pod) == ["GPU-0"]


def test_a_waiting_pod_is_told_ever_less_often(world: World) -> None:
    add_bypassed(world, 11)
    told = []
    for second in range(0, 6000, 30):
        before = len(said(world))
        tick(world, 30)
        if len(said(world)) > before:
            told.append(second)
    assert told == [0, 2700, 5400]


def test_a_controllers_pod_is_told_what_to_do_with_it(world: World) -> None:
    add_bypassed(world, 11, owner=REPLICA_SET)
    tick(world)
    ((_, message),) = said(world)
    assert message.endswith(
        f"{ROOM}delete it, so that its controller makes it again without spec.nodeName and with the scheduler"
        " gpushare-scheduler"
    )


def test_a_node_that_has_no_gpus_is_the_reason(world: World) -> None:
    add_bypassed(world, 3, node="node-x")
    tick(world)
    ((reason, message),) = said(world)
    assert reason == advice.REASON_WAITING
    assert "node node-x is unknown to the gpushare controller" in message


@pytest.mark.parametrize("gib", [3, 11])
def test_a_pod_whose_containers_have_started_is_only_told(world: World, gib: int) -> None:
    """Even if there is no room for it: more room would not help."""
    pod = add_bypassed(world, gib)
    run_containers(world, pod, "c0")
    for _ in range(5):
        tick(world, 30)
    assert said(world) == [
        (
            "GpuShareWithoutGpu",
            "its containers have started on node-a without GPUs from gpushare-controller, and cannot be given any more;"
            f" {AGAIN}",
        )
    ]
    assert world.api.count("patch") == 0
    assert world.api.count("get", "pods/bypassed") <= 3
    assert world.used() == {}


def test_a_container_that_asks_for_nothing_may_have_started(world: World) -> None:
    pod = add_bypassed(world, 3, 0)
    run_containers(world, pod, "c1")
    tick(world)
    assert world.held_by(pod) is not None


def test_a_request_that_cannot_be_understood_is_told(world: World) -> None:
    pod = add_bypassed(world, 3, annotations={names.ANNOTATION_POLICY: "fast"})
    tick(world)
    assert said(world) == [
        (
            "GpuShareInvalidRequest",
            "it is on node-a without GPUs, because what it asks for cannot be understood:"
            " metadata.annotations[gpushare.dev/gpu-policy]: 'fast' is no policy; write binpack, spread, dense or fgd;"
            " fix that in its manifest, then delete it and create it again",
        )
    ]
    assert world.held_by(pod) is None


@pytest.mark.parametrize("status", [{"phase": "Succeeded"}, {"phase": "Failed"}])
def test_a_pod_that_has_ended_needs_nothing(world: World, status: dict[str, str]) -> None:
    pod = add_bypassed(world, 3)
    world.edit_pod(pod, lambda found: found["status"].update(status))
    tick(world)
    assert requests(world) == []


def test_a_pod_that_is_being_deleted_is_given_nothing(world: World) -> None:
    pod = add_bypassed(world, 3)
    world.api.delete(path_of(pod))
    world.api.calls.clear()
    tick(world)
    assert requests(world) == []


def test_what_another_system_bound_is_left_alone(world: World) -> None:
    add_bypassed(world, 3, annotations={names.ALIYUN_IDX: "1"})
    tick(world)
    assert requests(world) == []
    assert world.used() == {"GPU-1": 3}


def test_the_older_pod_is_first(world: World) -> None:
    young = add_bypassed(world, 6, node="node-c", creationTimestamp="2026-01-01T00:00:09Z")
    old = add_bypassed(world, 6, node="node-c", creationTimestamp="2026-01-01T00:00:01Z")
    world.add_node("node-c", 10)
    tick(world)
    assert world.held_by(old) is not None
    assert world.held_by(young) is None


def test_only_so_many_are_cared_for_in_one_tick(world: World) -> None:
    for _ in range(bypassed_pods.MAX_STEPS + 3):
        add_bypassed(world, 1)
    tick(world)
    assert world.api.count("patch") == bypassed_pods.MAX_STEPS
    tick(world)
    assert world.api.count("patch") == bypassed_pods.MAX_STEPS + 3


def test_a_follower_writes_nothing(world: World) -> None:
    add_bypassed(world, 3)
    add_bypassed(world, 99)
    add_bypassed(world, 3, mutated=False, owner=REPLICA_SET)
    world.leads = False
    tick(world)
    assert requests(world) == []
    assert world.used() == {}


def test_the_pod_itself_decides_and_not_what_the_watch_says(world: World) -> None:
    """The watch may be seconds behind."""
    bound, changed_since, gone = (add_bypassed(world, 3) for _ in range(3))
    world.see()
    world.edit_pod(bound, lambda found: found["metadata"].update(annotations={names.ALIYUN_IDX: "1"}))
    world.edit_pod(changed_since, lambda found: found["spec"]["containers"][0].pop("env"))
    world.api.vanish(path_of(gone))
    world.reconciler.tick()
    assert world.api.count("patch") == 0
    assert said(world) == []
    world.reconciler.tick()
    assert world.api.count("get") == 4


def test_a_pod_recreated_under_the_same_name_is_not_given_its_predecessors_gpus(world: World) -> None:
    pod = add_bypassed(world, 3)
    world.see()
    world.api.vanish(path_of(pod))
    add_bypassed(world, 9, name=pod["metadata"]["name"], mutated=False)
    world.reconciler.tick()
    assert world.api.count("patch") == 0


def test_an_api_server_that_says_no_is_asked_again_ever_later(world: World, caplog: pytest.LogCaptureFixture) -> None:
    pod = add_bypassed(world, 3)
    world.see()
    world.api.fail_next(lambda call: call.verb == "patch", kube.ForbiddenError("no"), times=99)
    tries = []
    for second in range(100):
        before = world.api.count("patch")
        world.reconciler.tick()
        if world.api.count("patch") > before:
            tries.append(second)
        world.clock.at += 1
    assert tries == [0, 5, 15, 35, 75]
    assert world.used() == {}
    assert world.held_by(pod) is None
    assert caplog.messages.count("not cared for") == 5
