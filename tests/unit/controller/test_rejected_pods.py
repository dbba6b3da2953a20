"""What nodes rejected after a restart is deleted, if its controller has made another one."""

import pytest

from controller.reconcile import bypass_decision
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.resource_config import ResourceConfig
from testing.controller.bypassing import REPLICA_SET, add_bypassed, is_there, reject, requests, said, tick
from testing.controller.world import World, path_of

RACE = "UnexpectedAdmissionError"
NO_DEVICES = (
    "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
    " aliyun.com/gpu-mem, which is unexpected"
)


def rejected(
    world: World, owner: JsonObject | None = None, reason: str = RACE, message: str = NO_DEVICES
) -> JsonObject:
    pod = add_bypassed(world, 3, owner=owner)
    reject(world, pod, reason, message)
    return pod


def settle(world: World, ticks: int = 2) -> None:
    for _ in range(ticks):
        tick(world, bypass_decision.SETTLE_S)


def test_a_rejected_pod_of_a_controller_is_deleted_after_a_while(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    pod = rejected(world, REPLICA_SET)
    caplog.set_level("INFO")
    tick(world)
    tick(world, bypass_decision.SETTLE_S - 1)
    assert is_there(world, pod)
    assert (world.used(), world.state.cache.snapshot().differences()) == ({}, [])
    tick(world, 1)
    assert not is_there(world, pod)
    assert [call.verb for call in requests(world)] == ["get", "delete"]
    assert caplog.messages.count("rejected pod deleted") == world.reconciler.bypassed.rejected_deleted == 1


def test_a_rejected_pod_that_has_lost_its_owner_is_not_deleted(world: World) -> None:
    """The watch may be seconds behind, and no one would recreate it."""
    pod = rejected(world, REPLICA_SET)
    tick(world)
    world.edit_pod(pod, lambda found: found["metadata"].pop("ownerReferences"))
    world.clock.at += bypass_decision.SETTLE_S
    world.reconciler.tick()
    assert [call.verb for call in requests(world)] == ["get"]
    assert is_there(world, pod)


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
    assert bypass_decision.is_ours(failed, ResourceConfig().resources) is expected
    assert bypass_decision.is_ours(failed, ResourceConfig(whole_gpus=True).resources) is (
        expected or names.GPU in failed
    )


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


def test_a_new_pod_of_the_same_name_is_left_alone(world: World) -> None:
    pod = rejected(world, {**REPLICA_SET, "kind": "StatefulSet"})
    tick(world)
    world.api.vanish(path_of(pod))
    world.add_pod(3, name=pod["metadata"]["name"])
    world.clock.at += bypass_decision.SETTLE_S
    world.reconciler.tick()
    assert [call.verb for call in requests(world)] == ["get"]


def test_a_deletion_that_is_refused_is_tried_ever_less_often(world: World) -> None:
    rejected(world, REPLICA_SET)
    tick(world)
    world.clock.at += bypass_decision.SETTLE_S
    world.api.fail_next(lambda call: call.verb == "delete", kube.ForbiddenError("no"), times=99)
    for _ in range(20):
        tick(world, 1)
    assert world.api.count("delete") == 3
