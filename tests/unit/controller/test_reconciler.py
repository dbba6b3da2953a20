"""The leader's chores, against the fake API server."""

import logging
import threading

import pytest

from controller.reconcile.waiting import MAX_ACTIONS
from controller.snapshot import Snapshot
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from testing.controller.world import World, path_of

EVENTS = "/api/v1/namespaces/team/events"
GIVEN_UP = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]


def waiting(world: World, gib: int) -> JsonObject:
    pod = world.add_pod(gib)
    world.edit_pod(pod, lambda found: found["status"].update(conditions=GIVEN_UP))
    world.see()
    return pod


def said(world: World) -> list[tuple[str, str]]:
    return sorted((event["reason"], event["message"]) for event in world.api.objects(EVENTS))


def test_a_waiting_pod_is_told_why_with_numbers(world: World) -> None:
    pod = waiting(world, 11)
    world.reconciler.tick()
    world.reconciler.tick()
    tail = "10, 10 GiB (its largest GPU has 10 GiB in all)"
    message = f"needs 11 GiB on one GPU; free per GPU on node-a: {tail}; free per GPU on node-b: {tail}"
    assert said(world) == [("GpuShareUnschedulable", message)]
    (event,) = world.api.objects(EVENTS)
    assert event["type"] == "Warning"
    assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
    assert event["source"] == {"component": "gpushare-controller"}


def test_a_pod_that_the_scheduler_has_not_given_up_on_is_left_alone(world: World) -> None:
    world.add_pod(11)
    world.see()
    world.reconciler.tick()
    assert said(world) == []


def test_a_pod_that_fits_is_nudged_when_the_scheduler_does_not_notice(world: World) -> None:
    pod = waiting(world, 5)
    world.reconciler.tick()
    assert world.api.count("patch") == 0
    world.clock.at += 3
    world.reconciler.tick()
    assert world.api.read(path_of(pod))["metadata"]["labels"] == {names.LABEL_RETRY: "1"}


def test_a_pod_recreated_is_not_nudged_for_its_predecessor(world: World) -> None:
    pod = waiting(world, 5)
    world.reconciler.tick()
    world.api.vanish(path_of(pod))
    world.add_pod(5, name=pod["metadata"]["name"])
    world.clock.at += 3
    world.reconciler.tick()
    assert world.api.count("patch") == 1
    assert "labels" not in world.api.read(path_of(pod))["metadata"]


def test_only_so_many_pods_are_cared_for_in_one_tick(world: World) -> None:
    for _ in range(MAX_ACTIONS + 5):
        waiting(world, 11)
    world.reconciler.tick()
    assert len(said(world)) == MAX_ACTIONS
    world.reconciler.tick()
    assert len(said(world)) == MAX_ACTIONS + 5


def test_an_event_that_cannot_be_posted_is_only_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    waiting(world, 11)
    world.api.fail_next(lambda call: call.verb == "create", kube.ForbiddenError("events is forbidden"))
    world.reconciler.tick()
    assert "event failed" in caplog.messages


def test_a_pod_whose_allocation_cannot_be_read_is_told_once(world: World) -> None:
    pod = world.add_pod(3)
    world.edit_pod(pod, lambda found: found["metadata"].update(annotations={names.ANNOTATION_ALLOCATION: "[]"}))
    world.edit_pod(pod, lambda found: found["spec"].update(nodeName="node-a"))
    world.see()
    for _ in range(2):
        world.reconciler.tick()
    assert said(world) == [
        (
            "GpuShareUnreadableAllocation",
            "what this pod holds cannot be read, so its node takes no new pods:"
            " annotation gpushare.dev/allocation: expected an object, found a list;"
            " and annotation devices.gpushare.dev/c0: expected UUIDs of different GPUs, found None;"
            " delete it, or install the version of gpushare that bound it",
        )
    ]


def test_a_pod_that_is_counted_from_its_other_annotations_is_told_so(world: World) -> None:
    pod = world.add_pod(3)
    world.bind(pod)
    world.edit_pod(pod, lambda found: found["metadata"]["annotations"].update({names.ANNOTATION_ALLOCATION: "[]"}))
    world.see()
    world.reconciler.tick()
    assert said(world) == [
        (
            "GpuShareUnreadableAllocation",
            "its allocation cannot be read and is counted from its other annotations:"
            " annotation gpushare.dev/allocation: expected an object, found a list",
        )
    ]


def test_the_ledger_is_checked_now_and_then(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.reconciler.tick()
    assert world.reconciler.audit_differences == 0
    monkeypatch.setattr(Snapshot, "differences", lambda _: ["node x: missing"])
    world.reconciler.tick()
    assert world.reconciler.audit_differences == 0
    world.clock.at += 60
    world.reconciler.tick()
    assert world.reconciler.audit_differences == 1
    assert "ledger differs" in caplog.messages


def test_a_failing_chore_does_not_end_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop, ticks = threading.Event(), 0

    def boom() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 2:
            stop.set()
        raise RuntimeError("boom")

    monkeypatch.setattr(world.reconciler, "tick", boom)
    with caplog.at_level(logging.ERROR):
        world.reconciler.run(stop)
    assert ticks == 2
    assert caplog.messages == ["reconcile failed"] * 2
