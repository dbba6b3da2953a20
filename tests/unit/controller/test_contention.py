"""A long search stops no one, and what changes meanwhile is not overlooked; names of nodes do not pile up."""

from dataclasses import replace

import pytest

from controller import changelog, state
from controller.state import AlreadyBound, Reserved
from gpushare.identity import NodeName
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest, RequestShape
from gpushare.model.verdict import RefusalReason, Refused, Verdict
from gpushare.placement.place import place
from gpushare.placement.policies import Rankings
from gpushare.wire import pods as pods_wire
from testing.builders import make_ref, make_shape
from testing.controller.world import World

A = NodeName("node-a")


def request(name: str, *gib: int) -> PodRequest:
    return PodRequest(pod=make_ref(name), shape=make_shape(*gib))


class Meanwhile:
    """During a search another pod is bound. If the ledger was locked, this would wait for ever."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, pods: list[PodRequest]) -> None:
        self.world, self.pods, self.searches = world, pods, 0
        monkeypatch.setattr("gpushare.cluster.node_ledger.place", self.place)

    def place(self, shape: RequestShape, ledger: NodeLedger, rankings: Rankings) -> Verdict:
        self.searches += 1
        verdict = place(shape, ledger, rankings)
        if len(shape.containers) > 1 and self.pods:
            self.world.state.reserve(self.pods.pop(0), A, now=0)
        return verdict


def test_a_choice_from_an_outdated_ledger_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile = Meanwhile(world, monkeypatch, [request("other", 8)])
    found = world.state.reserve(request("pod", 8, 2), A, now=0)
    assert isinstance(found, Reserved)
    assert meanwhile.searches == 3
    assert sorted(world.used().values()) == [8, 10]
    assert world.ledger().over_committed() == {}


def test_a_pod_that_was_bound_elsewhere_is_not_given_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = world.add_pod(3)

    def elsewhere(shape: RequestShape, ledger: NodeLedger, rankings: Rankings) -> Verdict:
        monkeypatch.setattr("gpushare.cluster.node_ledger.place", place)
        assert world.bind(pod, "node-b").error == ""
        return place(shape, ledger, rankings)

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", elsewhere)
    wanted = PodRequest(pod=pods_wire.ref(pod), shape=make_shape(3))
    assert world.state.reserve(wanted, A, now=0) == AlreadyBound(node=NodeName("node-b"), granted=True)
    assert world.used() == {}


def test_many_containers_are_tried_again_on_a_restless_node(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Meanwhile(world, monkeypatch, [request(f"other-{i}", 1) for i in range(12)])
    assert world.state.reserve(request("pod", 1, 1), A, now=0) == Refused(
        RefusalReason.SEARCH_TOO_LONG,
        "node-a changed 5 times while GPUs were chosen for default/pod; it is tried again",
    )


@pytest.mark.parametrize("last", [1, 20])
def test_one_container_is_placed_although_the_ledger_never_rests(
    world: World, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    real, left = world.state.verdict, state.TRIES

    def restless(shape: RequestShape, ledger: NodeLedger) -> Verdict:
        nonlocal left
        verdict = real(shape, ledger)
        if shape == make_shape(2) and left:
            left -= 1
            world.state.reserve(request(f"other-{left}", 1 if left else min(last, 10)), A, now=0)
        return verdict

    monkeypatch.setattr(world.state, "verdict", restless)
    assert isinstance(world.state.reserve(request("pod", 2), A, now=0), Reserved)
    assert sum(world.used().values()) == state.TRIES - 1 + min(last, 10) + 2


def test_names_of_nodes_that_are_gone_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "MAX_GONE", 3)
    shape = replace(make_shape(3), only_cdi=True)  # not a simple pod: its verdicts are kept
    snapshot = world.node_verdicts.snapshot
    assert set(snapshot(shape)) == {"node-a", "node-b"}
    for i in range(10):
        world.add_node(f"new-{i}", 10)
        world.see()
        if i == 2:
            assert "new-2" in snapshot(shape)
        world.api.vanish(f"/api/v1/nodes/new-{i}")
        world.see()
    assert len(world.state._index.log) == 2 + 3
    assert set(snapshot(shape)) == {"node-a", "node-b"}
    world.add_node("node-c", 10)
    world.see()
    assert set(snapshot(shape)) == {"node-a", "node-b", "node-c"}
