"""The word by which the webhook knows whether GPU pods need a RuntimeClass."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from controller.reconcile.loop import WRITE_AGAIN_S, WRITE_RETRY_S, HandOverSummary
from gpushare import names
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver
from gpushare.wire import hand_over
from testing.builders import make_inventory, make_node
from testing.controller.world import NODES, World

PATH = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps"


@pytest.fixture
def world() -> World:
    world = World()
    world.api.seed(PATH, {"metadata": {"name": names.HAND_OVER, "namespace": names.NAMESPACE}})
    return world


@pytest.fixture
def summary(world: World) -> HandOverSummary:
    return HandOverSummary(writer=world.writer, namespace=names.NAMESPACE)


def add_node(world: World, name: str, by: HandOver | None) -> None:
    """Args: by: None for a node without an inventory."""
    inventory = by and replace(make_inventory(10, node=name), hand_over=by)
    world.api.seed(NODES, make_node(inventory, name=name))
    world.see()


def said(world: World) -> str:
    return hand_over.word(world.api.read(f"{PATH}/{names.HAND_OVER}"))


def tick(world: World, summary: HandOverSummary) -> str:
    summary.tick(world.snapshot())
    return said(world)


CDI, ENVVAR, MOUNTS = HandOver


@pytest.mark.parametrize(
    ("nodes", "word"),
    [
        ([], "none"),
        ([None], "none"),
        ([CDI], "cdi"),
        ([CDI, CDI, None], "cdi"),
        ([ENVVAR], "envvar"),
        ([MOUNTS, MOUNTS], "volume-mounts"),
        ([CDI, ENVVAR], "mixed"),
    ],
)
def test_one_word_tells_of_all_nodes(world: World, summary: HandOverSummary, nodes: Any, word: str) -> None:
    for number, by in enumerate(nodes):
        add_node(world, f"node-{number}", by)
    assert tick(world, summary) == word
    assert hand_over.is_all_cdi(world.api.read(f"{PATH}/{names.HAND_OVER}")) is (word == "cdi")


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"metadata": {"labels": {"gpushare": "true"}}}, True),
        ({"metadata": {"labels": {"gpushare": "false"}}}, False),
        ({"metadata": {"annotations": {names.ANNOTATION_INVENTORY: "{"}}}, True),
        ({"capacity": {"aliyun.com/gpu-mem": "104"}, "allocatable": {"aliyun.com/gpu-mem": "0"}}, True),
        ({"capacity": {"nano-gpu/gpu-percent": "400"}}, True),
        ({"capacity": {"aliyun.com/gpu-mem": "0"}}, False),
        ({"capacity": {"nvidia.com/gpu": "4"}}, False),
    ],
)
def test_a_node_that_will_share_counts(world: World, summary: HandOverSummary, fields: Any, counts: bool) -> None:
    """Else pods that are created meanwhile would be right on the nodes of today only."""
    node = make_node(name="awaited")
    node["metadata"] |= fields.pop("metadata", {})
    node["status"] |= fields
    world.api.seed(NODES, node)
    world.see()
    assert tick(world, summary) == ("unknown" if counts else "none")
    add_node(world, "a", CDI)
    assert tick(world, summary) == ("mixed" if counts else "cdi")


def test_it_is_written_when_it_changes_and_now_and_then_again(world: World, summary: HandOverSummary) -> None:
    add_node(world, "a", CDI)
    tick(world, summary)
    tick(world, summary)
    assert world.api.count("patch") == 1
    add_node(world, "b", ENVVAR)
    tick(world, summary)
    assert (said(world), world.api.count("patch")) == ("mixed", 2)
    world.api.edit(f"{PATH}/{names.HAND_OVER}", lambda found: found.update(data={"hand-over": "cdi"}))
    world.clock.at += WRITE_AGAIN_S - 1
    assert tick(world, summary) == "cdi"
    world.clock.at += 1
    tick(world, summary)
    assert (said(world), world.api.count("patch")) == ("mixed", 3)


FAULTS = [kube.ForbiddenError("no"), kube.NotFoundError("gone"), kube.UnreachableError("down")]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_failed_write_is_told_once_and_tried_again(
    world: World, summary: HandOverSummary, caplog: pytest.LogCaptureFixture, fault: kube.KubeError
) -> None:
    caplog.set_level(logging.INFO)
    add_node(world, "a", CDI)
    world.api.fail_next(lambda call: call.verb == "patch", fault, times=2)
    for _ in range(3):
        tick(world, summary)
        tick(world, summary)
        world.clock.at += WRITE_RETRY_S
    assert (said(world), world.api.count("patch")) == ("cdi", 3)
    assert caplog.messages == ["hand-over not written", "hand-over summarized"]


def test_a_summary_that_was_not_written_is_not_told_as_written(
    world: World, summary: HandOverSummary, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tick(world, summary)
    add_node(world, "a", CDI)
    world.api.fail_next(lambda call: call.verb == "patch", kube.UnreachableError("down"))
    assert tick(world, summary) == "none"
    assert caplog.messages == ["hand-over summarized", "hand-over not written"]


def test_a_change_is_not_kept_back_by_a_write_that_failed(world: World, summary: HandOverSummary) -> None:
    world.api.fail_next(lambda call: call.verb == "patch", kube.UnreachableError("down"))
    tick(world, summary)
    add_node(world, "a", ENVVAR)
    assert tick(world, summary) == "envvar"
    world.leads = False  # and no one but the leader writes it
    add_node(world, "b", CDI)
    assert tick(world, summary) == "envvar"
