"""The label by which the controller's Service finds the replica that leads."""

import logging

import pytest

from controller.reconcile.loop import LABEL_AGAIN_S, WRITE_RETRY_S, LeaderLabel
from gpushare import names
from gpushare.kube import api as kube
from testing.controller.world import World

PODS = f"/api/v1/namespaces/{names.NAMESPACE}/pods"
LED = {names.LABEL_LEADER: "true"}


@pytest.fixture
def world() -> World:
    """Three replicas, of which the last led until it froze, and a pod of another component."""
    world = World()
    for name, labels in {"a": {}, "b": {}, "c": LED}.items():
        world.api.seed(PODS, {"metadata": {"name": name, "labels": {names.LABEL_APP: names.CONTROLLER, **labels}}})
    world.api.seed(PODS, {"metadata": {"name": "other", "labels": LED}})
    return world


@pytest.fixture
def label(world: World) -> LeaderLabel:
    return LeaderLabel(writer=world.writer, namespace=names.NAMESPACE, pod="b", timeout_s=2)


def labelled(world: World) -> list[str]:
    found = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in world.api.objects(PODS)}
    return [name for name, labels in found.items() if labels.get(names.LABEL_LEADER) == "true"]


def test_the_leader_alone_is_labelled_and_again_where_somebody_changes_it(world: World, label: LeaderLabel) -> None:
    """Also the last patch of a former leader, which was late."""
    label.tick()
    assert (labelled(world), label.is_written) == (["b", "other"], True)
    world.api.edit(f"{PODS}/b", lambda pod: pod["metadata"]["labels"].pop(names.LABEL_LEADER))
    world.api.edit(f"{PODS}/a", lambda pod: pod["metadata"]["labels"].update(LED))
    world.clock.at += LABEL_AGAIN_S - 1
    label.tick()
    assert labelled(world) == ["a", "other"]
    world.clock.at += 1
    label.tick()
    assert labelled(world) == ["b", "other"]


@pytest.mark.parametrize("verb", ["list", "patch"])
def test_what_fails_is_told_once_and_tried_again(
    world: World, label: LeaderLabel, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.api.fail_next(lambda call: call.verb == verb, kube.UnreachableError("down"), times=2)
    found = []
    for _ in range(3):
        label.tick()
        found.append(label.is_written)
        world.clock.at += WRITE_RETRY_S
    assert (labelled(world), found) == (["b", "other"], [False, False, True])
    assert caplog.messages == ["leader label not written"]


def test_nothing_is_taken_from_others_where_no_pod_has_the_name(world: World, caplog: pytest.LogCaptureFixture) -> None:
    label = LeaderLabel(writer=world.writer, namespace=names.NAMESPACE, pod="host-7", timeout_s=2)
    label.tick()
    assert (labelled(world), label.is_written) == (["c", "other"], False)
    assert caplog.messages == ["leader label not written"]


def test_another_pod_that_is_gone_by_then_keeps_no_one_back(world: World, label: LeaderLabel) -> None:
    world.api.fail_next(lambda call: call.path == f"{PODS}/c", kube.NotFoundError("gone"))
    label.tick()
    assert label.is_written


def test_a_replica_that_no_longer_leads_labels_no_one_and_has_nothing_to_tell(
    world: World, label: LeaderLabel, caplog: pytest.LogCaptureFixture
) -> None:
    world.leads = False
    label.tick()
    assert (labelled(world), label.is_written, caplog.messages) == (["c", "other"], False, [])
