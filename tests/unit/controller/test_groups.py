"""Pods that want each other's GPU: the first of a group may go anywhere, and there is only one first."""

from typing import Final

import pytest
from hypothesis import given, strategies as st

from controller.extender.bind import Outcome
from controller.state import Reserved
from gpushare import names
from gpushare.cluster.groups import LabelIndex
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import RefusalReason, Refused
from gpushare.model.request import LabelSelector, Operator, Requirement
from testing.controller.bypassing import add_bypassed, tick
from testing.controller.world import World, is_binding, path_of, request_of
from testing.fakes.kube import Fault, LandsLater
from tests.unit.controller.conftest import Lets

A, B = NodeName("node-a"), NodeName("node-b")
GROUP = {names.ANNOTATION_SAME_GPU: "app=web"}
WEB = {"app": "web"}


def member(world: World, gib: int = 3, namespace: str = "team") -> JsonObject:
    return world.add_pod(gib, namespace=namespace, labels=WEB, annotations=GROUP)


def is_first(world: World, pod: JsonObject) -> bool:
    asked = request_of(pod)
    affinity = world.state.index.resolve(asked.shape, asked.labels, asked.pod).affinity
    assert affinity is not None
    return affinity.first


def gpu_of(world: World, pod: JsonObject) -> str:
    [gpu] = world.gpus_of(pod)
    return f"{world.api.read(path_of(pod))['spec']['nodeName']}/{gpu}"


def test_the_first_of_a_group_is_first_until_there_is_another(world: World) -> None:
    world.bind(member(world, namespace="other"), A)
    world.see()
    one, two = member(world), member(world)
    assert is_first(world, one)
    assert world.bind(one, B).error == ""
    assert not is_first(world, two)
    world.see()
    assert not is_first(world, two)
    assert world.bind(two, A).error.startswith("needs 3 GiB on one GPU; free per GPU on node-a: ")
    assert world.bind(two, B).error == ""
    assert gpu_of(world, two) == gpu_of(world, one)
    for pod in (one, two):
        world.finish(pod)
    world.see()
    assert is_first(world, member(world))


def test_a_resolved_request_is_resolved_again_and_one_without_a_group_stays_as_it_is(world: World) -> None:
    for pod in (world.add_pod(3), world.add_pod(3, annotations={names.ANNOTATION_OTHER_GPU: "app=web"})):
        asked = request_of(pod)
        assert world.state.index.resolve(asked.shape, asked.labels) is asked.shape
    one, two = member(world), member(world)
    asked = request_of(two)
    resolved = world.state.index.resolve(asked.shape, asked.labels)
    assert world.state.index.resolve(resolved, asked.labels) is resolved
    world.bind(one)
    assert world.state.index.resolve(resolved, asked.labels) == asked.shape


def test_a_pod_that_does_not_belong_to_the_group_is_never_its_first(world: World) -> None:
    guest = world.add_pod(3, labels={"app": "guest"}, annotations=GROUP)
    assert not is_first(world, guest)
    assert world.bind(guest).error != ""
    assert world.bind(member(world)).error == ""
    assert world.bind(guest).error == ""


def test_what_another_system_bound_may_be_of_the_group_and_who_waits_on_its_node_is_not(world: World) -> None:
    add_bypassed(world, 11, labels=WEB)
    tick(world)
    assert is_first(world, member(world))
    add_bypassed(world, 3, labels=WEB, annotations={names.ALIYUN_IDX: "1"})
    world.see()
    two = member(world)
    assert not is_first(world, two)
    assert world.bind(two).error == ""
    assert gpu_of(world, two) == "node-a/GPU-1"


def test_two_that_both_seem_to_be_first_end_on_one_gpu(world: World, during_a_search: Lets) -> None:
    """While GPUs are chosen for the second, the first one starts the group on another node."""
    one, two = member(world), member(world)
    during_a_search(lambda: world.bind(one, B))
    found = world.state.reserve(request_of(two), A, now=0)
    assert isinstance(found, Refused)
    assert found.reason is RefusalReason.NO_MATCHING_GPU
    assert isinstance(world.state.reserve(request_of(two), B, now=0), Reserved)


@pytest.mark.parametrize("fault", ["lost-request", LandsLater()])
def test_the_first_of_a_group_whose_binding_failed_may_start_it_on_another_node(world: World, fault: Fault) -> None:
    """Its own reservation, which stays for as long as the Binding is in doubt, is no member of the group."""
    one = member(world)
    world.see()
    world.api.fail_next(is_binding, fault)
    assert world.bind(one, A).outcome is Outcome.IN_DOUBT
    assert world.post("filter", {"Pod": one, "NodeNames": [B]})["NodeNames"] == [B]
    assert world.bind(one, B).error == ""
    assert gpu_of(world, one) == "node-b/GPU-0"
    world.see()
    assert world.audit() == []


def test_while_the_first_is_in_doubt_no_one_else_is_first(world: World) -> None:
    one, two = member(world), member(world)
    world.see()
    world.api.fail_next(is_binding, "lost-request")
    world.bind(one, A)
    assert not is_first(world, two)
    assert world.bind(two, B).outcome is Outcome.REFUSED
    # Anyone who joined it there is a member, so it has to follow.
    assert world.bind(two, A).error == ""
    assert world.bind(one, B).outcome is Outcome.REFUSED
    assert world.bind(one, A).error == ""
    assert gpu_of(world, one) == gpu_of(world, two)


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
        tick(world, 1, times=5)
        assert (names.LABEL_RETRY in world.api.read(path_of(two))["metadata"]["labels"]) is nudged
        world.edit_pod(one, lambda found: found["metadata"].update(labels={}))


Labels = dict[str, str]
KEYS: Final = st.sampled_from(["app", "tier"])
VALUES: Final = st.sampled_from(["a", "b", "c"])
found = st.lists(st.tuples(st.sampled_from(["one", "two"]), st.dictionaries(KEYS, VALUES)), max_size=12)
values = st.lists(VALUES, max_size=3, unique=True).map(tuple)
requirements = st.builds(Requirement, KEYS, st.sampled_from(list(Operator)), values)
selectors = st.builds(LabelSelector, st.lists(requirements, max_size=3).map(tuple), st.just(""))


def meant(known: LabelIndex, namespace: str, selector: LabelSelector) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(labels.items()) for labels in known.like(namespace, selector) if selector.matches(labels)}


@given(found, found, selectors)
def test_everybody_who_is_meant_is_found_and_no_one_who_has_gone(
    gone: list[tuple[str, Labels]], stays: list[tuple[str, Labels]], selector: LabelSelector
) -> None:
    known = LabelIndex([*gone, *stays])
    for namespace, labels in gone:
        known.remove(namespace, labels)
    assert known.counts() == LabelIndex(stays).counts()
    for name in ("one", "two", "three"):
        expected = {frozenset(labels.items()) for namespace, labels in stays if namespace == name}
        assert meant(known, name, selector) == {labels for labels in expected if selector.matches(dict(labels))}
    # What is not to be counted hides only as many pods.
    known = LabelIndex([*gone, *stays])
    mine = [labels for namespace, labels in gone if namespace == "one"]
    shown = {frozenset(labels.items()) for labels in known.like("one", selector, mine) if selector.matches(labels)}
    assert shown == meant(LabelIndex(stays), "one", selector)


@pytest.mark.parametrize(
    ("text", "most"), [("app=web", 1), ("app in (web,api)", 2), ("app=web,own=p7", 1), ("app!=job,none", 0)]
)
def test_a_question_looks_at_few_of_many_pods(text: str, most: int) -> None:
    """Pods of a StatefulSet or of a Job have a label each that no one else has."""
    same: list[Labels] = [{"app": name} for name in ("web", "api")] * 500
    known = LabelIndex(("team", labels) for labels in [*same, *({"app": "job", "own": f"p{i}"} for i in range(1000))])
    assert len(list(known.like("team", LabelSelector.parse(text)))) <= most


def counted(world: World) -> dict[str, list[tuple[list[tuple[str, str]], int]]]:
    state = world.state
    assert world.audit() == []
    return {
        namespace: sorted((sorted(labels), pods) for labels, pods in of.items())
        for namespace, of in state.index.label_index.counts().items()
    }


def test_labels_are_counted_from_the_choice_until_the_pod_ends(world: World) -> None:
    pod = world.add_pod(3, labels={"app": "web"})
    web = {"team": [([("app", "web")], 1)]}
    assert counted(world) == {}
    assert world.bind(pod).error == ""
    assert counted(world) == web
    world.see()
    assert counted(world) == web
    world.edit_pod(pod, lambda found: found["metadata"].update(labels={}))
    world.see()
    assert counted(world) == {"team": [([], 1)]}
    world.finish(pod)
    world.see()
    assert counted(world) == {}
    world.state.index.label_index.add("team", {"app": "web"})
    assert world.audit() == ["namespace team: disagree about the labels of pods that hold GPUs"]


def test_a_choice_that_the_api_server_knows_otherwise_counts_as_it_has_it(world: World) -> None:
    pod = world.add_pod(3, labels={"app": "web"})
    world.see()
    world.edit_pod(pod, lambda found: found["metadata"].update(labels={"app": "api"}))
    world.api.fail_next(is_binding, "lost-reply")
    assert world.bind(pod).error == ""
    assert counted(world) in ({"team": [([("app", name)], 1)]} for name in ("web", "api"))
    world.see()
    assert counted(world) == {"team": [([("app", "api")], 1)]}
