"""Pods that come past the scheduler are given GPUs on their node, or recreated where the webhook was not asked."""

import itertools
from typing import Any

import pytest

from controller.reconcile import bypassed
from controller.reconcile.writer import FORGET_S
from gpushare import names
from gpushare.identity import PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.units import ResourceConfig
from gpushare.wire import allocations, interop
from testing.builders import make_allocation, make_grant
from testing.controller import bypassing
from testing.controller.bypassing import (
    REPLICA_SET,
    add_bypassed,
    annotations,
    is_there,
    requests,
    run_containers,
    said,
    tick,
)
from testing.controller.world import World, path_of, uid_of
from testing.fakes.kube import Call, Fault, LandsLater
from tests.unit.controller.conftest import lines

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


def test_pods_that_are_told_nothing_new_keep_no_one_waiting(world: World) -> None:
    for _ in range(bypassed.MAX_STEPS):
        add_bypassed(world, 30)
    tick(world)
    last = add_bypassed(world, 3)
    world.api.fail_next(lambda call: call.verb == "get", kube.ForbiddenError("no"))
    tick(world)
    tick(world, 5)
    assert world.held_by(last) is not None


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
    add_bypassed(world, 9, name=pod["metadata"]["name"])
    world.reconciler.tick()
    assert world.api.count("patch") == 0


def test_an_api_server_that_says_no_is_asked_again_ever_later(world: World, caplog: pytest.LogCaptureFixture) -> None:
    pod = add_bypassed(world, 3)
    world.see()
    world.api.fail_next(lambda call: call.verb == "patch", kube.ForbiddenError("no"), times=99)
    assert bypassing.when_more(world, range(100), lambda: world.api.count("patch")) == [0, 5, 15, 35, 75]
    assert world.used() == {}
    assert world.held_by(pod) is None
    told = lines(caplog, "not handled")
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


BLIND = (
    "gpushare-webhook did not change this pod when it was created, so its containers would not see the GPUs that they"
    " are given; "
)


def bypassed_pod(world: World, owner: JsonObject | None = None) -> JsonObject:
    return add_bypassed(world, 3, mutated=False, owner=REPLICA_SET if owner is None else owner)


def deletions(world: World) -> list[str]:
    return [call.path.rpartition("/")[2] for call in world.api.calls if call.verb == "delete"]


def gone(world: World) -> None:
    """The kubelet ends pods whose deletion was asked for."""
    for pod in world.api.objects("/api/v1/pods"):
        if "deletionTimestamp" in pod["metadata"]:
            world.api.vanish(path_of(pod))


def test_a_controllers_pod_is_deleted_after_it_was_told(world: World) -> None:
    pod = bypassed_pod(world)
    version = world.api.read(path_of(pod))["metadata"]["resourceVersion"]
    tick(world)
    told = f"{BLIND}it is deleted now, so that its controller recreates it"
    assert said(world) == [("GpuShareNotMutated", told)]
    assert [call.verb for call in requests(world)] == ["get", "create", "delete"]
    same = {"uid": uid_of(pod), "resourceVersion": version}
    assert requests(world)[-1].body == {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": same}
    assert (world.reconciler.recreated, world.used()) == (1, {})


@pytest.mark.parametrize(
    ("owner", "advice"),
    [
        (None, "delete it and create it again"),
        ({**REPLICA_SET, "kind": "Job"}, "delete it, so that its Job, which will count it as failed, makes it again"),
        (
            {**REPLICA_SET, "kind": "Node"},
            "static pods cannot ask for GPUs: make it a Deployment or a DaemonSet, created",
        ),
    ],
)
def test_pods_that_only_people_may_delete_are_told_so(world: World, owner: JsonObject | None, advice: str) -> None:
    pod = add_bypassed(world, 3, mutated=False, owner=owner)
    tick(world, 10, times=6)
    assert said(world) == [("GpuShareNotMutated", f"{BLIND}{advice} while gpushare-webhook is running")]
    assert is_there(world, pod)
    assert world.api.count("get", "pods/") == (1 if owner else 0)


def test_a_pod_whose_template_has_annotations_of_another_system_is_recreated(world: World) -> None:
    """Once its node's plugin has refused it: until then another system may have given it its devices."""
    pod = bypassed_pod(world)
    world.edit_pod(pod, lambda found: found["metadata"].update(annotations={names.ALIYUN_IDX: "0"}))
    tick(world, 60)
    assert (world.used(), requests(world)) == ({"GPU-0": 3}, [])
    waits = {"reason": "CreateContainerConfigError", "message": f"container c0 {interop.OTHER_DEVICES}"}
    states = [{"name": "c0", "state": {"waiting": waits}}]
    world.edit_pod(pod, lambda found: found["status"].update(containerStatuses=states))
    tick(world)
    assert [reason for reason, _ in said(world)] == ["GpuShareNotMutated"]
    assert deletions(world) == [pod["metadata"]["name"]]
    assert world.used() == {}


@pytest.mark.parametrize("owner", [None, REPLICA_SET])
def test_a_pod_on_a_node_that_another_system_serves_is_left_alone(world: World, owner: JsonObject | None) -> None:
    """Its plugin may start the pod without what this webhook writes."""
    add_bypassed(world, 3, node="node-x", mutated=False, owner=owner)
    world.api.seed("/api/v1/nodes", {"metadata": {"name": "node-x"}})
    tick(world, 60, times=3)
    assert requests(world) == []


def test_a_pod_whose_gpu_container_has_run_is_never_deleted(world: World) -> None:
    running = bypassed_pod(world)
    run_containers(world, running, "c0")
    crashed = bypassed_pod(world, {**REPLICA_SET, "uid": "another"})
    states = [{"name": "c0", "state": {"waiting": {}}, "lastState": {"terminated": {}}}]
    world.edit_pod(crashed, lambda found: found["status"].update(containerStatuses=states))
    tick(world, 60, times=4)
    assert (deletions(world), {reason for reason, _ in said(world)}) == ([], {"GpuShareWithoutGpu"})
    assert is_there(world, running)


def test_what_cannot_be_fixed_is_looked_at_once_and_told_ever_less_often(world: World) -> None:
    pods = [bypassed_pod(world, {**REPLICA_SET, "uid": name}) for name in "abc"]
    for pod in pods:
        run_containers(world, pod, "c0")
    told = bypassing.when_more(world, range(0, 180_000, 60), lambda: len(said(world)))
    minutes = [(after - before) // 60 for before, after in itertools.pairwise(told)]
    assert minutes == [45, 90, 180, 360, 720, 1440]
    assert len(said(world)) == 3 * len(told)
    assert world.api.count("get", "pods/") == 3


def test_a_pod_that_changes_is_looked_at_again(world: World) -> None:
    pod = bypassed_pod(world)
    run_containers(world, pod, "c0")
    tick(world)
    world.edit_pod(pod, lambda found: found["metadata"].update(labels={"app": "web"}))
    tick(world, 60, times=5)
    assert (world.api.count("get", "pods/"), len(said(world))) == (2, 1)


def test_a_pod_that_the_watch_shows_wrongly_is_looked_at_first(world: World) -> None:
    runs, goes = (bypassed_pod(world, {**REPLICA_SET, "uid": uid}) for uid in ("one", "two"))
    world.see()
    run_containers(world, runs, "c0")
    world.edit_pod(goes, lambda found: found["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    world.reconciler.tick()
    assert (world.api.count("get", "pods/"), deletions(world)) == (2, [])


def test_one_pod_is_tried_first_and_the_others_follow_if_that_worked(world: World) -> None:
    for _ in range(4):
        bypassed_pod(world)
    tick(world, 1, times=60)
    assert len(deletions(world)) == 1
    gone(world)
    tick(world, 1)
    assert len(deletions(world)) == 1 + 3


def test_an_absent_webhook_makes_no_storm(world: World) -> None:
    """The owner replaces what is deleted by pods that are as bad."""
    for _ in range(3):
        bypassed_pod(world)

    def replace() -> None:
        gone(world)
        bypassed_pod(world)

    told = bypassing.when_more(world, range(0, 4000, 10), lambda: len(deletions(world)), replace)
    assert [after - before for before, after in itertools.pairwise(told)] == [60, 120, 240, 480, 960, 960, 960]


@pytest.mark.parametrize("error", [kube.ConflictError("it has changed"), kube.ForbiddenError("pods is forbidden")])
def test_a_failed_deletion_is_tried_again_and_told_once(
    world: World, caplog: pytest.LogCaptureFixture, error: kube.KubeError
) -> None:
    pod = bypassed_pod(world)
    world.api.fail_next(lambda call: call.verb == "delete", error)
    tick(world)
    assert is_there(world, pod)
    tick(world, 1)
    assert len(deletions(world)) == 1, "not before 5 s, and then ever later"
    assert "not deleted" in caplog.messages
    tick(world, 5)
    assert not is_there(world, pod)
    assert len(said(world)) == 1


def test_tries_of_an_owner_are_forgotten(world: World) -> None:
    tries, now = world.reconciler.bypassed.recreator, 0.0
    for pod in ("one", "two"):  # the second one is as bad as the first
        tries.note([("rs", PodUid(pod))], now)
        tries.deleted("rs", now)
    assert not tries.may_delete("rs", now)
    tries.note([], now + FORGET_S)
    assert tries.may_delete("rs", now + FORGET_S)


RACE = "UnexpectedAdmissionError"
NO_DEVICES = (
    "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
    " aliyun.com/gpu-mem, which is unexpected"
)


def rejected(
    world: World, owner: JsonObject | None = None, reason: str = RACE, message: str = NO_DEVICES
) -> JsonObject:
    pod = add_bypassed(world, 3, owner=owner)
    bypassing.reject(world, pod, reason, message)
    return pod


def test_a_rejected_pod_of_a_controller_is_deleted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    pod = rejected(world, REPLICA_SET)
    caplog.set_level("INFO")
    tick(world)
    tick(world, bypassed.SETTLE_S - 1)
    assert is_there(world, pod)
    assert (world.used(), world.audit()) == ({}, [])
    tick(world, 1)
    assert not is_there(world, pod)
    assert [call.verb for call in requests(world)] == ["get", "delete"]
    assert caplog.messages.count("rejected pod deleted") == world.reconciler.bypassed.rejected_deleted == 1


@pytest.mark.parametrize("again", [False, True], ids=["has lost its owner", "has a successor of the same name"])
def test_a_rejected_pod_that_changed_meanwhile_is_not_deleted(world: World, again: bool) -> None:
    """The watch may be seconds behind, and no one would recreate it."""
    pod = rejected(world, {**REPLICA_SET, "kind": "StatefulSet"})
    tick(world)
    if again:
        world.api.vanish(path_of(pod))
        world.add_pod(3, name=pod["metadata"]["name"])
    else:
        world.edit_pod(pod, lambda found: found["metadata"].pop("ownerReferences"))
    world.after(bypassed.SETTLE_S)
    assert [call.verb for call in requests(world)] == ["get"]


def test_a_rejected_pod_of_no_one_is_told_what_to_do_once(world: World) -> None:
    pod = rejected(world)
    tick(world, bypassed.SETTLE_S, times=5)
    why = "node-a rejected it, as happens when a node starts again before its GPUs are reported"
    assert said(world) == [("GpuShareRejected", f"{why}: {RACE}: {NO_DEVICES}; delete it and create it again")]
    assert is_there(world, pod)


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (f"{RACE}: {NO_DEVICES}", True),
        ("OutOfaliyun.com/gpu-mem: Pod was rejected: Node didn't have enough resource: aliyun.com/gpu-mem", True),
        ("OutOfnano-gpu/gpu-percent: too few", True),
        (f"{RACE}: Allocate failed due to no healthy devices present; nvidia.com/gpu", False),
        ("OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu", False),
        ("Evicted: The node was low on resource: aliyun.com/gpu-mem", False),
        ("NodeAffinity: Pod was rejected", False),
        ("", False),
    ],
)
def test_only_what_a_node_rejects_for_our_resources_counts(failed: str, expected: bool) -> None:
    assert bypassed.is_ours(failed, ResourceConfig().resources) is expected
    whole = ResourceConfig(whole_gpus=True).resources
    assert bypassed.is_ours(failed, whole) is (expected or names.GPU in failed)


def test_other_failures_are_left_alone(world: World) -> None:
    rejected(world, REPLICA_SET, "Evicted", "The node was low on resource: memory")
    ran = add_bypassed(world, 3, owner=REPLICA_SET)
    states = [{"name": "c0", "state": {"terminated": {"exitCode": 1}}}]
    status = {"phase": "Failed", "reason": RACE, "message": NO_DEVICES, "containerStatuses": states}
    world.edit_pod(ran, lambda found: found["status"].update(status))
    tick(world, bypassed.SETTLE_S, times=3)
    assert requests(world) == []


@pytest.mark.parametrize("kind", ["Job", "Node"])
def test_the_record_of_a_job_is_left_to_it(world: World, kind: str) -> None:
    pod = rejected(world, {**REPLICA_SET, "kind": kind})
    tick(world, bypassed.SETTLE_S, times=5)
    assert is_there(world, pod)
    assert [call.verb for call in requests(world)] == ["get"]
