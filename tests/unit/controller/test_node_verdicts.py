"""Answers are kept for nodes that have not changed, and only for those."""

import pytest

from gpushare.cluster import verdicts
from gpushare.identity import NodeName
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy, RequestShape
from gpushare.model.verdict import Refused, Verdict
from gpushare.placement.place import place
from testing.builders import make_shape
from tests.unit.controller.world import NODES, World


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the nodes that were judged again."""
    names: list[str] = []

    def counting(shape: RequestShape, ledger: NodeLedger, policy: Policy) -> Verdict:
        names.append(ledger.inventory.node)
        return place(shape, ledger, policy)

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", counting)
    return names


def test_only_changed_nodes_are_judged_again(world: World, judged: list[str]) -> None:
    shape = make_shape(3)
    assert set(world.node_verdicts.answers(shape)) == {"node-a", "node-b"}
    assert sorted(judged) == ["node-a", "node-b"]
    world.node_verdicts.answers(shape)
    assert len(judged) == 2
    world.bind(world.add_pod(3))
    judged.clear()
    world.node_verdicts.answers(shape)
    assert judged == ["node-a"]


def test_nodes_come_and_go(world: World) -> None:
    shape = make_shape(3)
    world.node_verdicts.answers(shape)
    world.add_node("node-c", 10)
    world.api.vanish(f"{NODES}/node-a")
    world.see()
    assert set(world.node_verdicts.answers(shape)) == {"node-b", "node-c"}
    assert set(world.node_verdicts.snapshot(shape)) == {"node-b", "node-c"}


def test_the_answer_follows_the_ledger(world: World) -> None:
    shape = make_shape(8)
    a = NodeName("node-a")
    assert not isinstance(world.node_verdicts.answers(shape)[a], Refused)
    for _ in range(2):
        assert world.bind(world.add_pod(8)).error == ""
    answer = world.node_verdicts.answers(shape)[a]
    assert isinstance(answer, Refused)
    assert answer.message == "needs 8 GiB on one GPU; free per GPU on node-a: 2, 2 GiB"


def test_kinds_that_were_not_asked_for_long_are_forgotten(world: World, judged: list[str]) -> None:
    first = make_shape(1)
    world.node_verdicts.answers(first)
    for gib in range(2, verdicts.MAX_SHAPES + 2):
        world.node_verdicts.answers(make_shape(gib))
    judged.clear()
    world.node_verdicts.answers(first)
    assert len(judged) == 2


def test_many_nodes_leave_room_for_fewer_kinds(
    world: World, judged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "MAX_ENTRIES", 3)
    for gib in (1, 2, 3):
        world.node_verdicts.answers(make_shape(gib))
    judged.clear()
    world.node_verdicts.answers(make_shape(3))
    assert judged == []
    world.node_verdicts.answers(make_shape(1))
    assert len(judged) == 2


def test_a_search_that_takes_long_is_continued_at_the_next_try(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(shape: RequestShape, ledger: NodeLedger, policy: Policy) -> Verdict:
        world.clock.at += 1
        return place(shape, ledger, policy)

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", slow)
    for name in ("node-c", "node-d"):
        world.add_node(name, 10)
    world.see()
    shape = make_shape(3)

    def fitting() -> set[str]:
        answers = world.node_verdicts.answers(shape, [NodeName("node-d"), NodeName("node-x")])
        return {name for name, answer in answers.items() if not isinstance(answer, Refused)}

    first = fitting()
    assert len(first) == 2
    assert "node-d" in first
    late = next(
        answer for answer in world.node_verdicts.snapshot(make_shape(4)).values() if isinstance(answer, Refused)
    )
    assert late.message.endswith("takes long and has not ended yet; it goes on at the next try")
    assert len(fitting()) == 4
