"""Pods that the webhook did not change are recreated by their controllers, and an absent webhook makes no storm."""

import itertools

import pytest

from controller.reconcile import bypassed
from controller.reconcile.writer import FORGET_S
from gpushare import names
from gpushare.identity import PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.units import ResourceConfig
from gpushare.wire import interop
from testing.controller import bypassing
from testing.controller.bypassing import REPLICA_SET, add_bypassed, is_there, requests, run_containers, said, tick
from testing.controller.world import World, path_of, uid_of

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


def settle(world: World, ticks: int = 2) -> None:
    for _ in range(ticks):
        tick(world, bypassed.SETTLE_S)


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
    settle(world, 5)
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
    settle(world, 3)
    assert requests(world) == []


@pytest.mark.parametrize("kind", ["Job", "Node"])
def test_the_record_of_a_job_is_left_to_it(world: World, kind: str) -> None:
    pod = rejected(world, {**REPLICA_SET, "kind": kind})
    settle(world, 5)
    assert is_there(world, pod)
    assert [call.verb for call in requests(world)] == ["get"]
