"""Pods that were created for nodes as they were: without a RuntimeClass while all nodes handed over by CDI."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controller.reconcile.waiting import SETTLE_S
from controller.reconcile.writer import FIRST_S
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import HandOver
from gpushare.wire import hand_over
from testing.builders import Json, make_inventory, make_node
from testing.controller.bypassing import REPLICA_SET, is_there, requests, run_containers, said, tick, when_more
from testing.controller.world import NODES, World, path_of, uid_of

JOB = {**REPLICA_SET, "kind": "Job"}
WHY = (
    "node-b hands GPUs over by envvar, and the pod was created without the RuntimeClass that this needs, while all"
    " nodes did so by CDI; create it again"
)


def seed_node(world: World, name: str, gib: int, by: HandOver) -> None:
    world.api.seed(NODES, make_node(replace(make_inventory(gib, node=name), hand_over=by)))


@pytest.fixture
def world() -> World:
    """The pods' own node hands over by CDI, and the one that has joined by the variable."""
    world = World()
    seed_node(world, "node-a", 10, HandOver.CDI)
    seed_node(world, "node-b", 10, HandOver.ENVVAR)
    world.list_all()
    return world


def waiting(world: World, owner: Mapping[str, Any] | None = REPLICA_SET, gib: int = 3, by: str = "cdi") -> JsonObject:
    owners = [dict(owner)] if owner else []
    return world.add_waiting(gib, annotations={names.ANNOTATION_HAND_OVER: by}, ownerReferences=owners)


def settle(world: World) -> None:
    tick(world)
    tick(world, SETTLE_S)


def deletions(world: World) -> list[JsonObject]:
    return [call.body for call in requests(world) if call.verb == "delete"]


def test_one_that_a_controller_owns_is_told_why_and_deleted_after_a_while(world: World) -> None:
    pod = waiting(world)
    tick(world)
    tick(world, SETTLE_S - 1)
    assert is_there(world, pod)
    tick(world, 1)
    assert not is_there(world, pod)
    assert said(world) == [("GpuShareUnschedulable", f"{WHY}: it is deleted now, so that its controller does so")]
    [body] = deletions(world)
    assert body["preconditions"]["uid"] == uid_of(pod)
    assert world.reconciler.recreated == 1


@pytest.mark.parametrize(
    ("owner", "told"),
    [(None, WHY), (JOB, f"{WHY}: delete it, so that its Job, which will count it as failed, makes it again")],
)
def test_what_only_its_author_may_delete_is_told_so(world: World, owner: JsonObject | None, told: str) -> None:
    pod = waiting(world, owner)
    settle(world)
    tick(world, 20, times=5)
    assert said(world) == [("GpuShareUnschedulable", told)]
    assert is_there(world, pod)
    assert world.api.count("get", "pods/") == (1 if owner else 0)


@pytest.mark.parametrize(
    ("fields", "other"),
    [
        ({"by": ""}, HandOver.ENVVAR),  # it has the class, or needs none
        ({}, HandOver.CDI),
        ({"gib": 11}, HandOver.ENVVAR),  # a new one would wait as well
    ],
)
def test_a_pod_that_would_wait_if_it_were_new_stays(world: World, fields: dict[str, Any], other: HandOver) -> None:
    world.api.vanish(f"{NODES}/node-b")
    seed_node(world, "node-b", 10, other)
    pod = waiting(world, **fields)
    settle(world)
    tick(world, FIRST_S)
    assert is_there(world, pod)
    assert deletions(world) == []


def test_an_owner_whose_new_pods_are_as_bad_loses_ever_fewer(world: World) -> None:
    waiting(world)
    lost = when_more(world, range(600), lambda: len(deletions(world)), lambda: waiting(world))
    assert lost == [30, 90, 210, 450]


def test_a_pod_that_was_bound_or_replaced_meanwhile_is_not_deleted(world: World) -> None:
    scheduled, replaced = waiting(world), waiting(world, {**REPLICA_SET, "uid": "another"})
    tick(world)
    world.clock.at += SETTLE_S
    world.edit_pod(scheduled, lambda found: found["spec"].update(nodeName="node-a"))
    world.api.vanish(path_of(replaced))
    world.add_pod(3, name=replaced["metadata"]["name"])
    world.reconciler.tick()
    assert (deletions(world), said(world)) == ([], [])


@pytest.mark.parametrize("verb", ["get", "delete"])
def test_a_request_that_fails_is_made_again_later(world: World, verb: str) -> None:
    pod = waiting(world)
    tick(world)
    world.api.fail_next(lambda call: call.verb == verb and "pods/" in call.path, kube.UnreachableError("down"))
    tick(world, SETTLE_S)
    tick(world, SETTLE_S - 1)
    assert is_there(world, pod)
    tick(world, 1)
    assert not is_there(world, pod)


# Those that are on a node already, of which its device plugin says that they can never start there.


def bound(world: World, owner: Mapping[str, Any] | None = REPLICA_SET) -> JsonObject:
    pod = world.add_pod(3, ownerReferences=[dict(owner)] if owner else [])
    world.see()
    world.bind(pod)
    return pod


def refuse(world: World, pod: JsonObject, why: str = hand_over.AGAIN, **report: Json) -> None:
    waits = {"reason": "CreateContainerConfigError", "message": f"rpc error: desc = pod team/p: because; {why}"}
    states = [{"name": "c0", "state": {"waiting": waits}, **report}]
    world.edit_pod(pod, lambda found: found["status"].update(containerStatuses=states))


def test_one_that_its_node_can_never_start_is_told_so_and_deleted_after_a_while(world: World) -> None:
    pod = bound(world)
    tick(world, SETTLE_S)
    refuse(world, pod)
    tick(world)
    tick(world, SETTLE_S - 1)
    assert is_there(world, pod)
    assert world.used() == {"GPU-0": 3}
    tick(world, 1)
    assert not is_there(world, pod)
    why = "node-a handed GPUs over in another way when it came there, so its containers cannot start"
    deleted = "it is deleted now, so that its controller recreates it"
    assert (said(world), world.reconciler.recreated) == ([("GpuShareRejected", f"{why}; {deleted}")], 1)


@pytest.mark.parametrize(
    ("owner", "why", "report"),
    [
        (None, hand_over.AGAIN, {}),  # its node's plugin has told its author
        (JOB, hand_over.AGAIN, {}),
        (REPLICA_SET, "GPU GPU-0 is gone", {}),
        (REPLICA_SET, hand_over.AGAIN, {"lastState": {"terminated": {}}}),  # it ran, so it may hold what is of worth
    ],
)
def test_another_one_on_a_node_stays(world: World, owner: JsonObject | None, why: str, report: Json) -> None:
    pod = bound(world, owner)
    refuse(world, pod, why, **report)
    tick(world, SETTLE_S, times=5)
    assert is_there(world, pod)
    assert said(world) == []
    assert world.api.count("get", "pods/") == (1 if owner is JOB else 0)


def test_one_that_has_started_meanwhile_is_not_deleted(world: World) -> None:
    pod = bound(world)
    refuse(world, pod)
    tick(world)
    world.clock.at += SETTLE_S
    run_containers(world, pod, "c0")
    world.reconciler.tick()
    assert is_there(world, pod)
    assert said(world) == []
