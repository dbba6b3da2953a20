"""What the leader writes beside Bindings, it writes only while it leads, and no error ends it."""

from typing import Any

import pytest

from controller.reconcile.apply import Writer
from controller.reconcile.deliver import LateBinder, NotNow
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.request import PodRequest
from gpushare.wire import pods as pods_wire
from gpushare.wire import requests as requests_wire
from testing.controller.bypassing import add_bypassed, requests
from testing.controller.world import RESOURCE_CONFIG, World
from testing.fakes.kube import FakeKube


@pytest.fixture
def writer(world: World) -> Writer:
    return Writer(api=world.api, clock=world.clock, leading=lambda: world.leads)


def wanted(pod: JsonObject) -> PodRequest:
    request = requests_wire.of_pod(pod, RESOURCE_CONFIG)
    assert request is not None
    return request


def test_a_follower_writes_nothing_at_all(world: World, writer: Writer) -> None:
    pod = pods_wire.ref(world.add_pod(3))
    world.leads = False
    writer.warn(pod, "Reason", "full")
    writer.nudge(pod, "1")
    writer.tell(pod, "Reason", "message")
    assert writer.delete(pod, "1") is False
    assert requests(world) == []


def test_a_leader_that_falls_while_it_prepares_changes_no_pod(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the token and connecting may take seconds."""
    waiting, bypassed_pod = pods_wire.ref(world.add_pod(3)), add_bypassed(world, 3)
    world.see()
    request = wanted(bypassed_pod)
    for verb in ("patch", "delete"):
        monkeypatch.setattr(world.api, verb, lambda *a, verb=verb, **o: leaving(world, verb, *a, **o))
    writer = Writer(api=world.api, clock=world.clock, leading=lambda: world.leads)
    binder = LateBinder(api=world.api, state=world.state, clock=world.clock, leading=lambda: world.leads)
    writer.nudge(waiting, "1")
    world.leads = True
    assert writer.delete(waiting, "1") is False
    world.leads = True
    assert binder.bind(request, NodeName("node-a")) == NotNow("this replica does not lead any more")
    assert requests(world) == []
    assert world.used() == {}


def leaving(world: World, verb: str, *args: Any, **options: Any) -> JsonObject:
    world.leads = False
    found: JsonObject = getattr(FakeKube, verb)(world.api, *args, **options)
    return found


def test_a_nudge_that_fails_is_only_logged(world: World, writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    pod = pods_wire.ref(world.add_pod(3))
    world.api.fail_next(lambda call: call.verb == "patch", kube.TooManyRequestsError("slow down"))
    writer.nudge(pod, "1")
    assert caplog.messages == ["nudge failed"]


def test_a_pod_that_is_gone_was_not_deleted(world: World, writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    pod = pods_wire.ref(world.add_pod(3))
    world.api.fail_next(lambda call: call.verb == "delete", kube.NotFoundError("gone"))
    assert writer.delete(pod, "1") is False
    assert caplog.messages == []


def test_a_pod_that_has_its_gpus_is_not_given_others(world: World) -> None:
    pod = world.add_bound(3)
    request = wanted(pod)
    binder = LateBinder(api=world.api, state=world.state, clock=world.clock, leading=lambda: True)
    found = binder.bind(request, NodeName("node-a"))
    assert found == NotNow("it has its GPUs already, or is on node-a")
    assert world.api.count("patch") == 0
    assert world.used() == {"GPU-0": 3}


def test_a_pod_that_ended_meanwhile_is_given_nothing(world: World) -> None:
    pod = add_bypassed(world, 3)
    request = wanted(pod)
    world.finish(pod)
    world.see()
    binder = LateBinder(api=world.api, state=world.state, clock=world.clock, leading=lambda: True)
    assert isinstance(binder.bind(request, NodeName("node-a")), NotNow)
    assert world.used() == {}
