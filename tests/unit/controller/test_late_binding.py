"""Pods that come to a node without GPUs are given them there, if the webhook has made them so that it helps."""

from typing import Any

import pytest

from controller.reconcile import bypassed
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.wire import allocations
from testing.builders import make_allocation, make_grant
from testing.controller import bypassing
from testing.controller.bypassing import REPLICA_SET, add_bypassed, annotations, requests, run_containers, said, tick
from testing.controller.world import World, path_of, uid_of
from testing.fakes.kube import Call, Fault, LandsLater

ROOM = "to have it placed where there is room, "
HOW = "without spec.nodeName and with the scheduler gpushare-scheduler"
AGAIN = f"delete it and create it again {HOW}"


def test_a_pod_on_a_node_is_given_gpus_there_by_one_patch(world: World) -> None:
    pod = add_bypassed(world, 3, name="late")
    tick(world)
    assert (world.gpus_of(pod), annotations(world, pod)[names.ANNOTATION_LATE]) == (["GPU-0"], "true")
    assert annotations(world, pod)[f"{names.PREFIX_DEVICES}c0"] == "GPU-0"
    assert annotations(world, pod)[names.ALIYUN_ASSIGNED] == "true"
    (patch,) = (call for call in world.api.calls if call.verb == "patch")
    assert patch.params == {"timeout": "2s"}
    assert patch.body["metadata"]["uid"] == uid_of(pod)
    assert "resourceVersion" not in patch.body["metadata"]
    assert world.used() == {"GPU-0": 3}
    assert said(world) == [
        ("GpuShareBoundLate", "it came to node-a without GPUs, and was given them there: container c0: GPU-0")
    ]
    assert world.audit() == []
    bypassed = world.reconciler.bypassed
    assert (bypassed.bound_late, bypassed.recreator.recreated, bypassed.rejected_deleted) == (1, 0, 0)
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
    assert world.snapshot().bypassed == [], "the API server has said that it has its GPUs"
    world.see()
    assert (world.used(), world.state.index.unconfirmed()) == ({"GPU-0": 9, "GPU-1": 9}, 0)


def test_a_pod_that_does_not_fit_is_told_why_and_given_gpus_when_there_is_room(world: World) -> None:
    first, _ = world.add_bound(9), world.add_bound(8)
    pod = add_bypassed(world, 3)
    assert bypassing.when_more(world, range(0, 2730, 30), lambda: len(said(world))) == [0, 2700]  # ever less often
    why = "needs 3 GiB on one GPU; free per GPU on node-a: 1, 2 GiB"
    message = f"it came to node-a without GPUs and waits there for room: {why}; {ROOM}{AGAIN}"
    assert (set(said(world)), world.api.count("get", "pods/bypassed")) == ({("GpuShareWaiting", message)}, 0)
    world.finish(first)
    tick(world, 1)
    assert world.gpus_of(pod) == ["GPU-0"]


@pytest.mark.parametrize(
    ("fields", "reason", "begins", "ends"),
    [
        (
            {"node": "node-x", "owner": REPLICA_SET},
            "GpuShareWaiting",
            "it came to node-x without GPUs and waits there for room: node node-x is unknown to the gpushare contr",
            f"{ROOM}delete it, so that its controller makes it again {HOW}",
        ),
        (
            {"annotations": {names.ANNOTATION_POLICY: "fast"}},
            "GpuShareInvalidRequest",
            "it is on node-a without GPUs, because what it asks for cannot be understood: metadata.",
            "; fix that in its manifest, then delete it and create it again",
        ),
    ],
    ids=["unknown node", "odd request"],
)
def test_its_author_is_told_what_to_do(world: World, fields: Any, reason: str, begins: str, ends: str) -> None:
    pod = add_bypassed(world, 3, **fields)
    tick(world)
    [(told, message)] = said(world)
    assert (told, message.startswith(begins), message.endswith(ends)) == (reason, True, True)
    assert world.held_by(pod) is None


@pytest.mark.parametrize("gib", [3, 11])
def test_a_pod_whose_containers_have_started_is_only_told(world: World, gib: int) -> None:
    """Even if there is no room for it: more room would not help."""
    pod = add_bypassed(world, gib)
    run_containers(world, pod, "c0")
    tick(world, 30, times=5)
    started = "its containers have started on node-a without GPUs from gpushare-controller"
    assert said(world) == [("GpuShareWithoutGpu", f"{started}, and cannot be given any now; {AGAIN}")]
    assert world.api.count("patch") == 0
    assert world.api.count("get", "pods/bypassed") <= 3
    assert world.used() == {}


def test_pods_that_have_ended_or_go_or_have_their_gpus_are_left_alone(world: World) -> None:
    world.finish(add_bypassed(world, 3))
    bypassing.reject(world, add_bypassed(world, 3), "Evicted", "")
    world.api.delete(path_of(add_bypassed(world, 3)))
    add_bypassed(world, 3, annotations={names.ALIYUN_IDX: "1"})
    world.api.calls.clear()
    tick(world)
    assert (requests(world), world.used()) == ([], {"GPU-1": 3})


def test_the_older_pod_is_first(world: World) -> None:
    young = add_bypassed(world, 6, node="node-c", creationTimestamp="2026-01-01T00:00:09Z")
    old = add_bypassed(world, 6, node="node-c", creationTimestamp="2026-01-01T00:00:01Z")
    world.add_node("node-c", 10)
    tick(world)
    assert world.held_by(old) is not None
    assert world.held_by(young) is None


def test_only_so_many_are_cared_for_in_one_tick(world: World) -> None:
    world.api.fail_next(lambda call: call.verb == "get", kube.ForbiddenError("no"), times=3)
    for _ in range(bypassed.MAX_STEPS + 3):
        add_bypassed(world, 1)
    tick(world)
    assert (world.api.count("get"), world.api.count("patch")) == (bypassed.MAX_STEPS, bypassed.MAX_STEPS - 3)
    tick(world)
    assert world.api.count("get") == bypassed.MAX_STEPS + 3


def test_a_follower_writes_nothing(world: World) -> None:
    add_bypassed(world, 3)
    add_bypassed(world, 99)
    add_bypassed(world, 3, mutated=False, owner=REPLICA_SET)
    world.leads = False
    tick(world)
    assert (requests(world), world.used()) == ([], {})


def test_the_pod_itself_decides_and_not_what_the_watch_says(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The watch may be seconds behind."""
    bound, changed_since, gone = (add_bypassed(world, 3) for _ in range(3))
    world.see()
    world.edit_pod(bound, lambda found: found["metadata"].update(annotations={names.ALIYUN_IDX: "1"}))
    world.edit_pod(changed_since, lambda found: found["spec"]["containers"][0].pop("env"))
    world.api.vanish(path_of(gone))
    world.reconciler.tick()
    assert (world.api.count("patch"), said(world)) == (0, [])
    assert caplog.messages == []
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
    assert bypassing.when_more(world, range(100), lambda: world.api.count("patch")) == [0, 5, 15, 35, 75]
    assert world.used() == {}
    assert world.held_by(pod) is None
    told = [line.gpushare_fields for line in caplog.records if line.getMessage() == "not handled"]  # type: ignore[attr-defined]  # set by `logs.event`
    assert [line["retry_s"] for line in told] == [5, 10, 20, 40, 80]
    assert told[0]["error"] == "the API server refused it: no"


def is_patch(call: Call) -> bool:
    return call.verb == "patch"


def disturbed(world: World, gib: int, fault: Fault, *, unread: bool = False) -> JsonObject:
    """A pod whose first patch goes wrong, and of which the watch has shown nothing since."""
    pod = add_bypassed(world, gib)
    world.see()
    world.api.fail_next(is_patch, fault)
    if unread:  # the first look finds the pod, the one after the patch does not
        world.api.fail_next(lambda call: call.verb == "get" and world.api.count("patch") > 0, "lost-request")
    world.reconciler.tick()
    return pod


def test_a_lost_reply_is_resolved_by_reading_the_pod(world: World) -> None:
    pod = disturbed(world, 3, "lost-reply")
    assert (world.state.index.unconfirmed(), world.used()) == (0, {"GPU-0": 3})
    world.see()
    assert world.held_by(pod) is not None
    assert (world.used(), world.reconciler.bypassed.bound_late) == ({"GPU-0": 3}, 1)


def test_a_lost_reply_and_a_pod_that_cannot_be_read_keep_the_memory(world: World) -> None:
    disturbed(world, 9, "lost-reply", unread=True)
    assert (world.state.index.unconfirmed(), world.used()) == (1, {"GPU-0": 9})
    world.after(130)
    assert world.used() == {"GPU-0": 9}
    world.see()
    assert (world.state.index.unconfirmed(), world.used()) == (0, {"GPU-0": 9})
    assert world.audit() == []


@pytest.mark.parametrize("fault", ["lost-request", LandsLater(), kube.ServerFaultError("boom")])
def test_without_any_word_the_same_choice_is_sent_again(world: World, fault: Fault) -> None:
    pod = disturbed(world, 9, fault)
    assert world.used() == {"GPU-0": 9}
    # By now GPU-0 has too little left for the pod; what was set aside for it is its own.
    tick(world, 5)
    assert world.gpus_of(pod) == ["GPU-0"]
    world.api.land()
    world.see()
    assert (world.used(), world.state.index.unconfirmed()) == ({"GPU-0": 9}, 0)


def test_an_in_doubt_reservation_ends_when_the_pod_shows_nothing_long_after(world: World) -> None:
    pod = disturbed(world, 9, "lost-request")
    run_containers(world, pod, "c0")  # so that no one tries again
    tick(world, 60)
    assert world.used() == {"GPU-0": 9}
    tick(world, 61)
    assert (world.used(), world.state.index.unconfirmed()) == ({}, 0)


def test_a_pod_that_ends_gives_back_what_was_set_aside_for_it(world: World) -> None:
    pod = disturbed(world, 9, LandsLater())
    world.finish(pod)
    tick(world, 1)
    assert world.used() == {}
    world.api.land()
    tick(world, 1)
    assert (world.used(), world.audit()) == ({}, [])


def test_what_is_refused_is_given_back(world: World) -> None:
    pod = disturbed(world, 9, kube.TooManyRequestsError("no"))
    assert world.used() == {}
    tick(world, 5)
    assert world.held_by(pod) is not None


def test_a_refusal_because_somebody_else_was_first_shows_what_he_gave(world: World) -> None:
    pod = add_bypassed(world, 9)
    world.see()
    theirs = make_allocation("x", make_grant(1, gib=9, container="c0"))
    written = {names.ANNOTATION_ALLOCATION: allocations.encode(theirs)}
    world.api.fail_next(is_patch, kube.ConflictError("somebody was first"))
    real = world.api.patch

    def patch(path: str, body: JsonObject, **options: object) -> JsonObject:
        world.edit_pod(pod, lambda found: found["metadata"].update(annotations=written))
        return real(path, body)

    world.api.patch = patch  # type: ignore[method-assign,assignment] # somebody else writes in between
    world.reconciler.tick()
    assert (world.used(), annotations(world, pod)) == ({"GPU-1": 9}, written)


def test_one_silence_is_enough_for_a_tick(world: World) -> None:
    for _ in range(5):
        add_bypassed(world, 1)
    world.see()
    world.api.fail_next(is_patch, "lost-request", times=9)
    world.reconciler.tick()
    assert world.api.count("patch") == 1
    world.api.calm()
    world.api.fail_next(lambda call: call.verb == "get", "lost-request", times=9)
    world.api.calls.clear()
    world.reconciler.tick()
    assert world.api.count("get") == 1


def test_gpus_that_fell_ill_while_no_one_knows_are_not_sent_again(world: World) -> None:
    pod = disturbed(world, 9, "lost-request")
    world.state.index.set_unhealthy(world.ledger().inventory.node, frozenset({0}))
    tick(world, 5)
    assert (world.api.count("patch"), world.used()) == (1, {"GPU-0": 9})
    # Long after, the uncertainty ends and the pod gets others.
    tick(world, 65, times=5)
    assert (world.gpus_of(pod), world.audit()) == (["GPU-1"], [])
