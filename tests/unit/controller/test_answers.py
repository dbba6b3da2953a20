"""Answers that are kept ready are those that are put together for each request, byte for byte, whatever changes."""

import random
from collections.abc import Sequence

import pytest

from controller import answers, boards
from controller.board import Kind
from controller.boards import Boards
from controller.extender import messages
from controller.extender.name_lists import NameList
from controller.outlooks import Outlooks
from controller.sheets import Sheet
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.request import Policy
from gpushare.placement.outlook import Outlook
from gpushare.placement.tally import Tally
from testing.builders import make_shape
from testing.controller.world import NODES, World
from tests.unit.controller.test_boards import LITTLE, PODS, grown, kind_of, node, pod

ASKING = [pod("share", gib=3), pod("wide", gib=2, gpus="2", cpu="4"), pod("model", gib=3, gpu_model="A10")]


def twin_of(world: World) -> Boards:
    """Other boards of the same cluster, which keep no answers ready."""
    twin = Boards(world.state, world.clock)

    def publish(outlook: Outlook, tally: Tally) -> None:
        for each in (twin, world.boards):
            each.publish(outlook, tally, lambda some: some)

    world.outlooks = Outlooks(world.state.cache, publish, world.clock)
    return twin


def change(world: World, chance: random.Random, step: int) -> None:
    """What happens between two requests."""
    known = sorted(world.state.cache.cluster_index.nodes)
    for i in range(chance.choice([0, 0, 1, 1, 2, 9])):
        name, on = f"{step}-{i}", chance.choice(known)
        match chance.randrange(7):
            case 0:
                world.api.seed(f"{NODES}/new-{name}", node(f"new-{name}", 16, 16, cpu=8))
            case 1 if len(known) > 6:
                world.api.vanish(f"{NODES}/{known.pop()}")
            case 2:
                world.api.seed(f"{PODS}/guest-{name}", pod(f"guest-{name}", on=on))
            case 3:
                gone = chance.choice([each["metadata"]["name"] for each in world.api.objects(PODS)])
                world.api.vanish(f"{PODS}/{gone}")
            case 4:
                world.clock.at += 60
                world.outlooks.tick()
            case _:
                made = world.api.seed(f"{PODS}/pod-{name}", pod(f"pod-{name}", gib=chance.choice([2, 3, 8])))
                world.see()
                world.bind(made, on)
    world.see()


@pytest.mark.parametrize("policy", [Policy.DENSE, Policy.BINPACK])
@pytest.mark.parametrize("seed", range(4))
def test_ready_answers_are_as_they_would_be_put_together(
    seed: int, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "FEW", 0)
    monkeypatch.setattr(boards, "MOST", 8)
    chance, world = random.Random(seed), grown(seed, policy, nodes=14)
    twin = twin_of(world)
    first = [NodeName(name) for name in world.state.cache.cluster_index.nodes]
    lists = [Sheet(first), Sheet([NodeName("unknown"), *first[3:]])]
    compared = 0
    for step in range(60):
        change(world, chance, step)
        if step % 20 == 10:
            lists[1] = Sheet(list(world.state.cache.cluster_index.nodes))
        for made in ASKING:
            kind, sheet = kind_of(made), chance.choice(lists)
            names = asked(sheet)
            expected = messages.priorities(names, twin.grades(kind, names))
            ready = world.boards.answer(kind, sheet)
            if ready is None:  # too many rooms are new
                assert messages.priorities(names, world.boards.grades(kind, names)) == expected
            else:
                assert ready == expected
                compared += 1
    assert compared > 60


def asked(sheet: Sheet) -> Sequence[NodeName]:
    """The names in the order in which they were asked."""
    return sorted(sheet.names, key=lambda name: sheet.offsets[sheet.places[name]])


def scores(world: World, made: JsonObject, known: Sequence[NodeName]) -> dict[str, int]:
    return {each["Host"]: each["Score"] for each in world.post("prioritize", {"Pod": made, "NodeNames": known})}


def test_the_third_answer_about_a_list_is_ready_and_sees_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "FEW", 0)
    world, made, ready = grown(3), pod("share", gib=3), list[object]()
    answer = Boards.answer

    def seen(self: Boards, kind: Kind, sheet: Sheet) -> bytes | None:
        ready.append(answer(self, kind, sheet))
        return answer(self, kind, sheet)

    monkeypatch.setattr(Boards, "answer", seen)
    known = world.post("filter", {"Pod": made, "NodeNames": list(world.state.cache.cluster_index.nodes)})["NodeNames"]
    first = scores(world, made, known)
    assert not ready
    assert scores(world, made, known) == first
    assert ready
    assert None not in ready
    best = max(first, key=lambda name: first[name])
    error = ""
    for i in range(100):
        filler = world.api.seed(PODS, pod(f"filler-{i}", gib=3))
        world.see()
        if error := world.bind(filler, best).error:
            break
    assert error
    again = scores(world, made, known)
    assert again[best] == 0
    assert list(again.values()).count(10) == 1
    assert None not in ready


def test_a_node_where_memory_is_set_aside_for_the_pod_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "FEW", 0)
    world = grown(3)
    made = world.api.seed(f"{PODS}/mine", pod("mine", gib=2))
    world.see()
    known = world.post("filter", {"Pod": made, "NodeNames": list(world.state.cache.cluster_index.nodes)})["NodeNames"]
    before = [scores(world, made, known) for _ in range(3)].pop()
    other = next(name for name in known if before[name] < 10)
    monkeypatch.setattr(world.state.cache, "reserved_on", lambda _: frozenset({other}))
    assert [name for name, score in scores(world, made, known).items() if score == 10] == [other]


def test_answers_that_were_not_used_for_long_are_forgotten_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "FEW", 0)
    world = grown(1)
    sheet = Sheet([NodeName(name) for name in world.state.cache.cluster_index.nodes])
    size = 2 * len(sheet.blank) + 16 * len(sheet.names)
    monkeypatch.setattr(answers, "MAX_BYTES", 3 * size)
    kinds = [Kind(make_shape(gib), LITTLE) for gib in (1, 2, 3, 4)]
    kept = world.boards._answers
    for kind in [*kinds, *reversed(kinds), kinds[0]]:
        assert world.boards.answer(kind, sheet)
        assert len(kept._kept) <= 3
        assert kept._size == sum(answer.size for answer in kept._kept.values()) <= 3 * size
    assert kept.get(id(world.boards._now.boards[kinds[0]])) is not None
    assert kept.get(id(world.boards._now.boards[kinds[3]])) is None


def test_an_answer_keeps_neither_its_sheet_nor_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have limits of their own."""
    monkeypatch.setattr(boards, "FEW", 0)
    world, kind = grown(1), Kind(make_shape(3), LITTLE)
    sheet = Sheet([NodeName(name) for name in world.state.cache.cluster_index.nodes])
    assert world.boards.answer(kind, sheet)
    board = world.boards._now.boards[kind]
    answer = world.boards._answers.get(id(board))
    assert answer is not None
    assert answer.is_of(sheet, board.ranks)
    assert not answer.is_of(Sheet(sheet.names), board.ranks)
    ranks, board.ranks = board.ranks, None
    del ranks
    assert answer._ranks() is None
    assert not answer.is_of(sheet, board.ranks)


def test_a_pod_that_is_ranked_by_place_gets_no_ready_answer(world: World) -> None:
    sheet = NameList(b"", [NodeName("node-a")])
    sheet.sheet()
    found = sheet.sheet()
    assert found is not None
    assert world.boards.answer(Kind(make_shape(3, 2), LITTLE), found) is None
    assert world.boards.answer(Kind(make_shape(3), LITTLE), found) is None
