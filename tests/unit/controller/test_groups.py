"""Pods that want each other's GPU: the first of a group may go anywhere, and there is only one first."""

import threading

import pytest

from controller.extender.bind import Outcome
from controller.state import Reserved
from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.request import PodRequest, RequestShape
from gpushare.model.verdict import RefusalReason, Refused, Verdict
from gpushare.placement.place import place
from gpushare.placement.policies import Rankings
from gpushare.wire import requests
from testing.controller.bypassing import add_bypassed, tick
from testing.controller.world import RESOURCE_CONFIG, World, path_of
from testing.fakes.kube import Fault, LandsLater

A, B = NodeName("node-a"), NodeName("node-b")
GROUP = {names.ANNOTATION_SAME_GPU: "app=web"}
WEB = {"app": "web"}


def member(world: World, gib: int = 3, namespace: str = "team") -> JsonObject:
    return world.add_pod(gib, namespace=namespace, labels=WEB, annotations=GROUP)


def request(pod: JsonObject) -> PodRequest:
    found = requests.of_pod(pod, RESOURCE_CONFIG)
    assert found is not None
    return found


def is_first(world: World, pod: JsonObject) -> bool:
    asked = request(pod)
    affinity = world.state.resolve(asked.shape, asked.labels, asked.pod).affinity
    assert affinity is not None
    return affinity.first


def gpu_of(world: World, pod: JsonObject) -> str:
    [gpu] = world.gpus_of(pod)
    return f"{world.api.read(path_of(pod))['spec']['nodeName']}/{gpu}"


def test_a_pod_without_such_a_request_stays_as_it_is(world: World) -> None:
    for pod in (world.add_pod(3), world.add_pod(3, annotations={names.ANNOTATION_OTHER_GPU: "app=web"})):
        asked = request(pod)
        assert world.state.resolve(asked.shape, asked.labels) is asked.shape


def test_the_first_of_a_group_is_first_until_there_is_another(world: World) -> None:
    one, two = member(world), member(world)
    assert is_first(world, one)
    assert world.bind(one, B).error == ""
    assert not is_first(world, two)
    world.see()
    assert not is_first(world, two)
    refused = world.bind(two, A)
    assert refused.error.startswith("needs 3 GiB on one GPU; free per GPU on node-a: ")
    assert world.bind(two, B).error == ""
    assert gpu_of(world, two) == gpu_of(world, one)
    for pod in (one, two):
        world.finish(pod)
    world.see()
    assert is_first(world, member(world))


def test_a_resolved_request_is_resolved_again(world: World) -> None:
    one, two = member(world), member(world)
    asked = request(two)
    resolved = world.state.resolve(asked.shape, asked.labels)
    assert world.state.resolve(resolved, asked.labels) is resolved
    world.bind(one)
    assert world.state.resolve(resolved, asked.labels) == asked.shape


def test_a_pod_that_does_not_belong_to_the_group_is_never_its_first(world: World) -> None:
    guest = world.add_pod(3, labels={"app": "guest"}, annotations=GROUP)
    assert not is_first(world, guest)
    assert world.bind(guest).error != ""
    assert world.bind(member(world)).error == ""
    assert world.bind(guest).error == ""


def test_groups_of_other_namespaces_do_not_count(world: World) -> None:
    world.bind(member(world, namespace="other"))
    world.see()
    assert is_first(world, member(world))


def test_labels_count_as_they_are_now(world: World) -> None:
    one = world.add_bound(3)
    assert is_first(world, member(world))
    world.edit_pod(one, lambda found: found["metadata"].update(labels=WEB))
    world.see()
    two = member(world)
    assert not is_first(world, two)
    assert world.bind(two).error == ""
    assert gpu_of(world, two) == gpu_of(world, one)
    assert world.state.cache.snapshot().differences() == []


def test_what_another_system_bound_may_be_of_the_group(world: World) -> None:
    add_bypassed(world, 3, labels=WEB, annotations={names.ALIYUN_IDX: "1"})
    world.see()
    two = member(world)
    assert not is_first(world, two)
    assert world.bind(two).error == ""
    assert gpu_of(world, two) == "node-a/GPU-1"


def test_a_pod_that_waits_for_gpus_on_its_node_is_not_counted_yet(world: World) -> None:
    add_bypassed(world, 11, labels=WEB)
    tick(world)
    assert is_first(world, member(world))


def test_two_that_both_seem_to_be_first_end_on_one_gpu(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While GPUs are chosen for the second, the first one starts the group on another node."""
    one, two = member(world), member(world)

    def meanwhile(shape: RequestShape, ledger: object, rankings: Rankings) -> Verdict:
        monkeypatch.setattr("gpushare.cluster.node_ledger.place", place)
        assert world.bind(one, B).error == ""
        return place(shape, ledger, rankings)  # type: ignore[arg-type] # passed on as it came

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", meanwhile)
    found = world.state.reserve(request(two), A, now=0)
    assert isinstance(found, Refused)
    assert found.reason is RefusalReason.NO_MATCHING_GPU
    assert isinstance(world.state.reserve(request(two), B, now=0), Reserved)


@pytest.mark.parametrize("fault", ["lost-request", LandsLater()])
def test_the_first_of_a_group_whose_binding_failed_may_start_it_on_another_node(world: World, fault: Fault) -> None:
    """Its own reservation, which stays for as long as the Binding is in doubt, is no member of the group."""
    one = member(world)
    world.see()
    world.api.fail_next(lambda call: call.path.endswith("/binding"), fault)
    assert world.bind(one, A).outcome is Outcome.IN_DOUBT
    assert world.post("filter", {"Pod": one, "NodeNames": [B]})["NodeNames"] == [B]
    assert world.bind(one, B).error == ""
    assert gpu_of(world, one) == "node-b/GPU-0"
    world.see()
    assert world.state.cache.snapshot().differences() == []


def test_while_the_first_is_in_doubt_no_one_else_is_first(world: World) -> None:
    one, two = member(world), member(world)
    world.see()
    world.api.fail_next(lambda call: call.path.endswith("/binding"), "lost-request")
    world.bind(one, A)
    assert not is_first(world, two)
    assert world.bind(two, B).outcome is Outcome.REFUSED
    # Anyone who joined it there is a member, so it has to follow.
    assert world.bind(two, A).error == ""
    assert world.bind(one, B).outcome is Outcome.REFUSED
    assert world.bind(one, A).error == ""
    assert gpu_of(world, one) == gpu_of(world, two)


def test_many_at_once_have_one_first(world: World) -> None:
    pods = [member(world, 1) for _ in range(8)]
    world.see()
    nodes = [A if i % 2 else B for i in range(8)]
    threads = [threading.Thread(target=world.bind, args=pair) for pair in zip(pods, nodes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bound = {gpu_of(world, pod) for pod in pods if world.held_by(pod) is not None}
    assert len(bound) == 1


def test_pods_that_come_late_join_their_group(world: World) -> None:
    one, two = (add_bypassed(world, 3, labels=WEB, annotations=GROUP) for _ in range(2))
    tick(world)
    assert gpu_of(world, one) == gpu_of(world, two) == "node-a/GPU-0"
    elsewhere = add_bypassed(world, 3, node="node-b", labels=WEB, annotations=GROUP)
    tick(world)
    assert world.held_by(elsewhere) is None


def test_a_pod_of_a_group_is_nudged_when_its_group_has_room(world: World) -> None:
    """Waiting pods are judged by where their group is."""
    one = member(world, 8)
    world.bind(one, B)
    two = world.add_waiting(5, labels=WEB, annotations=GROUP)
    for nudged in (False, True):
        for _ in range(5):
            tick(world, 1)
        assert (names.LABEL_RETRY in world.api.read(path_of(two))["metadata"]["labels"]) is nudged
        world.edit_pod(one, lambda found: found["metadata"].update(labels={}))
