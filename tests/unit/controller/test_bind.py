"""One Binding binds a pod with its GPUs; doing it again changes nothing."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from controller.extender.bind import BindResult, Outcome
from controller.watches import PodSink
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from testing.builders import make_container
from testing.controller.world import World, is_binding, path_of, uid_of

BINDING = "/binding"


def test_a_bind_is_one_request_that_carries_the_choice(world: World) -> None:
    pod = world.add_pod(3, 0, 2)
    world.see()
    world.api.calls.clear()
    assert world.bind(pod).outcome is Outcome.BOUND
    (call,) = world.api.calls
    assert (call.verb, call.path) == ("create", path_of(pod) + BINDING)
    assert call.params == {"timeout": "2s"}
    annotations = call.body["metadata"].pop("annotations")
    assert call.body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod["metadata"]["name"], "namespace": "team", "uid": uid_of(pod)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-a"},
    }
    assert annotations["devices.gpushare.dev/c0"] == "GPU-0"
    assert annotations["memory.gpushare.dev/c2"] == "2048"
    assert "devices.gpushare.dev/c1" not in annotations
    assert annotations[names.ALIYUN_ASSUME_TIME] == "1767226600000000000"
    assert world.api.read(path_of(pod))["spec"]["nodeName"] == "node-a"


@pytest.mark.parametrize("seen", [True, False])
def test_other_systems_annotations_count_containers_as_the_pod_has_them(world: World, seen: bool) -> None:
    pod = world.add_pod(0, 6, 7)
    if seen:
        world.see()
    world.bind(pod)
    annotations = world.api.read(path_of(pod))["metadata"]["annotations"]
    on = {container: annotations[names.PREFIX_INDEX + container] for container in ("c1", "c2")}
    assert orjson.loads(annotations[names.ACK_ALLOCATION]) == {"1": {on["c1"]: 6}, "2": {on["c2"]: 7}}


def test_a_second_bind_succeeds_without_a_request_and_to_another_node_is_an_error(world: World) -> None:
    pod = world.add_pod(3)
    for see in (False, True):
        world.bind(pod)
        if see:
            world.see()
        world.api.calls.clear()
        assert world.bind(pod).outcome is Outcome.BOUND_BEFORE
        assert world.bind(pod, "node-b").error == f"pod team/{pod['metadata']['name']} is bound to node node-a already"
        assert (world.api.calls, world.used("node-b")) == ([], {})


def test_a_pod_that_no_one_has_shown_is_read_once_and_again_if_it_could_not_be(world: World) -> None:
    pod = world.add_pod(3, name="p")
    world.api.fail_next(lambda call: call.verb == "get", kube.ServerFaultError("boom"))
    assert world.bind(pod).error == "pod team/p could not be read: boom; it is tried again"
    world.api.calls.clear()
    assert world.bind(pod).error == ""
    assert world.api.count("get", "/pods/") == 1


def test_a_pod_recreated_under_the_same_name_is_not_bound_for_its_predecessor(world: World) -> None:
    old = world.add_pod(3, name="same")
    world.api.vanish(path_of(old))
    new = world.add_pod(3, name="same")
    assert world.bind(old).error == f"pod team/same with uid {uid_of(old)} no longer exists"
    assert world.held_by(new) is None
    assert world.used() == {}


def test_a_pod_without_a_request_or_of_which_nothing_is_left_to_give_is_not_ours_to_bind(world: World) -> None:
    plain, bare = world.add_pod(0, name="plain"), world.add_pod(3, name="bare")
    world.see()
    record = world.state.index.pending(uid_of(bare))
    assert record is not None
    PodSink(world.state.index).upsert(replace(record, request=None))
    for pod in (plain, bare):
        error = f"pod team/{pod['metadata']['name']} asks for no GPU; let kube-scheduler bind it"
        assert world.bind(pod) == BindResult(Outcome.INVALID, error)


SUFFIX = (
    "[0].resources.limits[aliyun.com/gpu-mem]: 10G has a suffix, but the resource is counted in units; write the number"
    " alone, such as 10"
)


@pytest.mark.parametrize(
    ("containers", "seen", "why"),
    [
        ([make_container("c", "10G")], True, SUFFIX),
        ([make_container("c", "10G")], False, SUFFIX),
        (7, False, ": expected a list, found a number"),
    ],
)
def test_nonsense_is_refused_with_the_field(world: World, containers: object, seen: bool, why: str) -> None:
    pod = world.add_pod(3)
    world.edit_pod(pod, lambda found: found["spec"].update(containers=containers))
    if seen:
        world.see()
    assert world.bind(pod) == BindResult(Outcome.INVALID, f"spec.containers{why}")


def test_a_replica_that_does_not_lead_binds_nothing(world: World) -> None:
    pod = world.add_pod(3)
    world.leads = False
    assert world.bind(pod).error == "this replica of the gpushare controller does not lead; try again"
    assert world.api.calls == []


@pytest.mark.parametrize(
    ("leads", "seconds", "outcome"), [(False, 0, Outcome.NOT_LEADING), (True, 4, Outcome.OUT_OF_TIME)]
)
def test_a_leader_that_falls_or_has_no_time_left_when_it_has_prepared_sends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, leads: bool, seconds: int, outcome: Outcome
) -> None:
    """Reading the token and connecting may take seconds."""
    pod, create = world.add_pod(3), world.api.create
    world.see()

    def slow(*args: Any, **options: Any) -> JsonObject:
        world.leads = leads
        world.clock.at += seconds
        return create(*args, **options)

    monkeypatch.setattr(world.api, "create", slow)
    assert world.bind(pod).outcome is outcome
    assert (world.api.count("create"), world.used()) == (0, {})


def test_a_refused_binding_gives_the_memory_back(world: World) -> None:
    pod = world.add_pod(3)
    world.api.fail_next(is_binding, kube.ForbiddenError("pods/binding is forbidden"))
    error = "the API server refused the Binding: pods/binding is forbidden"
    assert world.bind(pod) == BindResult(Outcome.API_ERROR, error)
    assert world.used() == {}
    assert world.bind(pod).error == ""


def test_a_pod_bound_by_somebody_else_without_gpus_is_an_error(world: World) -> None:
    pod = world.add_pod(3, name="p")
    world.edit_pod(pod, lambda found: found["spec"].update(nodeName="node-a"))
    expected = "pod team/p was bound to node node-a without GPUs, not by gpushare; delete it so that it is recreated"
    assert world.bind(pod).error == expected
    world.see()
    assert world.bind(pod).error == expected
    assert world.used() == {}


def test_an_unexpected_failure_while_sending_keeps_the_memory(world: World) -> None:
    pod = world.add_pod(3)
    world.see()
    object.__setattr__(world.binder, "deadline_s", "not a number")
    with pytest.raises(TypeError, match="not supported between"):
        world.bind(pod)
    assert (world.used(), world.state.index.unconfirmed()) == ({"GPU-0": 3}, 1)
