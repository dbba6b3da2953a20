"""Costs of nodes follow from pods and nodes alone, are found once, and only for nodes that a request names."""

import gc
import math
import operator
import random
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from controller import answers, board, boards
from controller.board import FREE, Board, Cost, Kind
from controller.boards import Boards
from controller.extender import messages
from controller.extender.name_lists import NameList
from controller.outlooks import Outlooks
from controller.ranks import Ranks
from controller.searches import Searches
from controller.sheets import Sheet
from gpushare import names
from gpushare.cluster import node_ledger
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.allocation import Placed
from gpushare.model.capacity import FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy, RequestShape
from gpushare.model.selector import Choice
from gpushare.placement import grade, ranking
from gpushare.placement.outlook import Outlook
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare.placement.tally import Tally
from testing.builders import make_container, make_inventory, make_node, make_pod, make_shape
from testing.controller.world import NODES, World, request_of

PODS = "/api/v1/namespaces/team/pods"
A, B = NodeName("node-a"), NodeName("node-b")
LITTLE = FreeHost(500, 512)


def node(name: str, *gib: int, cpu: int = 32, model: str = "") -> JsonObject:
    inventory = make_inventory(*gib, node=name)
    if model:
        inventory = replace(inventory, gpus=tuple(replace(gpu, model=model) for gpu in inventory.gpus))
    made = make_node(inventory) if gib else make_node(name=name)
    made["status"]["allocatable"] |= {"cpu": str(cpu), "memory": f"{4 * cpu}Gi"}
    return made


def pod(name: str, *, gib: int = 0, cpu: str = "1", on: str | None = None, **annotations: str) -> JsonObject:
    amounts: dict[str, Any] = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    if gib:
        amounts["limits"] = {names.GPU_MEM: gib}
    notes = {f"gpushare.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return make_pod(make_container(resources=amounts), name=name, namespace="team", node=on, annotations=notes)


def of_nodes(*nodes: JsonObject) -> World:
    world = World()
    world.start_controller(policy=Policy.DENSE)
    for each in nodes:
        world.api.seed(NODES, each)
    world.list_all()
    return world


def grown(seed: int, policy: Policy = Policy.DENSE, nodes: int = 12) -> World:
    """A cluster in use, of which no more is known than what the watches say."""
    chance, world = random.Random(seed), World()
    world.start_controller(policy=policy)
    for i in range(nodes):
        sizes = [chance.choice([16, 24])] * chance.choice([0, 1, 2, 4, 8])
        model = chance.choice(["Tesla T4", "NVIDIA A10"])
        world.api.seed(NODES, node(f"node-{i:02}", *sizes, cpu=chance.choice([8, 32, 96]), model=model))
    world.list_all()
    for i in range(5 * nodes):
        on = f"node-{chance.randrange(nodes):02}"
        if chance.random() < 0.4:
            world.api.seed(PODS, pod(f"guest-{i}", cpu=chance.choice(["1", "3"]), on=on))
            continue
        made = world.api.seed(PODS, pod(f"pod-{i}", gib=chance.choice([2, 3, 8, 16]), cpu=chance.choice(["1", "4"])))
        world.see()
        world.bind(made, on)
    world.see()
    assert world.outlooks.tick()
    return world


def kind_of(made: JsonObject) -> Kind:
    request = request_of(made)
    return Kind(request.shape, FreeHost(request.cpu_milli, request.host_mib))


def reference(world: World, kind: Kind) -> dict[NodeName, int]:
    """What `place` chooses on each node that fits, and what that costs."""
    index, policies, shape = world.state.index, world.state.policies, kind.shape
    assert shape is not None
    index.settle()
    costs = {}
    for name, ledger in index.ledgers().items():
        verdict = node_ledger.verdict(shape, ledger, policies)
        if isinstance(verdict, Placed) and isinstance(ledger, NodeLedger):
            room = index.node_rooms.room(name)
            assert room is not None
            costs[name] = ranking.cost_of(
                verdict.grants, ledger, policies.of(shape.policy), host=_enough(room, kind), takes=kind.takes
            )
    return costs


def _enough(room: NodeCapacity, kind: Kind) -> FreeHost | None:
    if room.host is None or (room.host.cpu_milli >= kind.takes.cpu_milli and room.host.memory_mib >= kind.takes[1]):
        return room.host
    return kind.takes


ASKING = [
    pod("share", gib=3),
    pod("large", gib=16, cpu="4"),
    pod("wide", gib=2, gpus="2"),
    pod("model", gib=3, gpu_model="A10"),
    pod("small", gib=3, min_gpu_memory="20Gi"),
    pod("spread", gib=3, gpu_policy="spread"),
]


@pytest.mark.parametrize("few", [0, 1000], ids=["kept ranks", "sorted"])
@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("seed", range(3))
def test_the_best_node_costs_least(seed: int, policy: Policy, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "FEW", few)
    world = grown(seed, policy)
    known = list(world.state.index.ledgers())
    for made in ASKING:
        expected = reference(world, kind_of(made))
        scores = {each["Host"]: each["Score"] for each in world.post("prioritize", {"Pod": made, "NodeNames": known})}
        assert {name for name, score in scores.items() if score} == set(expected), made["metadata"]["name"]
        if expected:
            least = min(expected, key=lambda name: (expected[name], name))
            assert [name for name, score in scores.items() if score == 10] == [least]
        ranked = sorted(expected, key=lambda name: expected[name])
        assert [scores[name] for name in ranked] == sorted((scores[name] for name in ranked), reverse=True)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[NodeCapacity]:
    """Rooms whose costs were found."""
    found: list[NodeCapacity] = []

    def cost(self: Board, number: int, room: NodeCapacity) -> Cost:
        found.append(room)
        return original(self, number, room)

    original = Board.cost
    monkeypatch.setattr(Board, "cost", cost)
    return found


def test_only_rooms_of_named_nodes_are_looked_at_and_those_once(world: World, counted: list[NodeCapacity]) -> None:
    kind = Kind(make_shape(3), LITTLE)
    before = world.boards.costs(kind, [A, B])  # which are alike
    assert len(counted) == 1
    world.bind(world.add_pod(3))
    assert world.boards.costs(kind, [B]) == before[1:]
    assert len(counted) == 1
    for _ in range(2):
        after = world.boards.costs(kind, [A, B])
        assert (after[1], after[0] != before[0], len(counted)) == (before[1], True, 2)


def many(number: int) -> World:
    """Nodes of which no two are alike."""
    return of_nodes(*(node(f"node-{i:03}", 16, cpu=8 + i) for i in range(number)))


def test_the_background_looks_at_the_rest(counted: list[NodeCapacity], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOST", 10)
    world, kind = many(25), Kind(make_shape(3), LITTLE)
    known = list(world.state.index.ledgers())
    first = world.boards.costs(kind, known)
    assert len(counted) == 10
    assert None not in first
    assert first.count(max(cost for cost in first if cost is not None)) == 15
    while world.boards.background.tick():
        pass
    assert len(counted) == 25
    whole = world.boards.costs(kind, known)
    assert len(counted) == 25
    assert dict(zip(known, whole, strict=True)) == reference(world, kind)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("made", ASKING[:3], ids=["share", "large", "wide"])
def test_nodes_with_the_best_gpus_and_then_the_best_hosts_are_looked_at(
    made: JsonObject, most: int, monkeypatch: pytest.MonkeyPatch, counted: list[NodeCapacity]
) -> None:
    monkeypatch.setattr(boards, "MOST", most)
    world, kind = grown(most), kind_of(made)
    world.bind(world.api.seed(PODS, pod("last", gib=2)), "node-03")
    world.see()
    index, alone = world.state.index, Board(kind, world.state.policies, {})
    index.settle()
    rooms = set(index.node_rooms.rooms().values())
    assert {gpu for room in rooms for gpu in room.gpus} == set(index.node_rooms.by_gpu)
    fitting = [(alone.promise(room), room.host or (), room.model, room.gpus) for room in rooms]
    fitting = sorted(each for each in fitting if each[0] < math.inf)
    world.boards.costs(kind, list(index.ledgers()))
    assert len(counted) == min(most, len(fitting))
    assert {(room.host, room.model, room.gpus) for room in counted} == {each[1:] for each in fitting[:most]}


@pytest.mark.parametrize("few", [0, 1000], ids=["kept ranks", "sorted"])
def test_after_the_background_the_answers_are_exact(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "FEW", few)
    monkeypatch.setattr(boards, "MOST", 2)
    world = grown(9)
    known = list(world.state.index.ledgers())
    for made in ASKING:
        kind = kind_of(made)
        first = world.boards.grades(kind, known)
        while world.boards.background.tick():
            pass
        expected = reference(world, kind)
        assert {name for name, score in zip(known, first, strict=True) if score} >= set(expected)
        for _ in range(2):
            scores = world.boards.grades(kind, known)
            assert {name for name, score in zip(known, scores, strict=True) if score} == set(expected)
            assert scores.count(10) == bool(expected)
            assert not expected or known[scores.index(10)] == min(expected, key=lambda name: (expected[name], name))


def test_for_other_pods_nodes_with_full_gpus_come_first(
    monkeypatch: pytest.MonkeyPatch, counted: list[NodeCapacity]
) -> None:
    monkeypatch.setattr(boards, "MOST", 1)
    world = of_nodes(node("node-a", 16), node("node-b", 4), node("node-c", 8))
    world.boards.grades(Kind(None, LITTLE), [A, B, NodeName("node-c")])
    assert [room.gpus[0].free_mib for room in counted] == [4096]


def test_what_changes_between_two_requests_counts(monkeypatch: pytest.MonkeyPatch, counted: list[NodeCapacity]) -> None:
    monkeypatch.setattr(boards, "FEW", 0)
    world, kind = grown(2), Kind(make_shape(3), LITTLE)
    known = list(world.state.index.ledgers())
    for step in range(20):
        scores = world.boards.grades(kind, known)
        expected = reference(world, kind)
        assert known[scores.index(10)] == min(expected, key=lambda name: (expected[name], name))
        counted.clear()
        world.bind(world.api.seed(PODS, pod(f"step-{step}", gib=2)), known[scores.index(10)])
        world.see()
        world.boards.grades(kind, known)
        assert len(counted) <= 1


def test_only_so_much_is_found_before_a_new_outlook_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    world = grown(5)
    known = list(world.state.index.ledgers())
    for gib in (1, 2, 3):
        world.boards.costs(Kind(make_shape(gib), LITTLE), known)
    entries = {kind.shape: len(each.by_number) for kind, each in world.boards._now.boards.items()}
    monkeypatch.setattr(boards, "WARM", entries[make_shape(3)] + entries[make_shape(2)])
    for i in range(5):
        world.api.seed(PODS, pod(f"other-{i}", gib=5))
    world.see()
    world.clock.at += 60
    assert world.outlooks.tick()
    assert [kind.shape for kind in world.boards._now.boards] == [make_shape(2), make_shape(3)]


def test_the_background_ends_for_a_kind_of_pod_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOST", 1)
    world = many(5)
    world.boards.costs(Kind(make_shape(3), LITTLE), list(world.state.index.ledgers()))
    world.boards._now.boards.clear()
    assert world.boards.background.tick()
    assert not world.boards.background.tick()
    assert not world.boards._now.boards


def test_a_search_that_takes_long_does_not_hold_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    world = many(10)
    known = list(world.state.index.ledgers())

    def slow(shape: RequestShape, ledger: NodeLedger, policies: Any) -> Any:
        world.clock.at += 0.2
        return place(shape, ledger, policies)

    monkeypatch.setattr(node_ledger, "verdict", slow)
    at, kind = world.clock.at, Kind(make_shape(3, 2), LITTLE)
    assert None not in (costs := world.boards.costs(kind, known))
    assert world.clock.at - at < 1
    for _ in range(4):
        costs = world.boards.costs(kind, known)
    at = world.clock.at
    assert (world.boards.costs(kind, known), world.clock.at) == (costs, at)


def test_boards_are_forgotten_where_memory_ends(counted: list[NodeCapacity], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "MAX_BYTES", 100_000)
    world = many(50)
    known = list(world.state.index.ledgers())
    for gib in range(1, 17):
        world.boards.costs(Kind(make_shape(gib), LITTLE), known)
    counted.clear()
    world.boards.costs(Kind(make_shape(16), LITTLE), known)
    assert counted == []
    world.boards.costs(Kind(make_shape(1), LITTLE), known)
    assert len(counted) == 50
    assert world.boards._now._total <= 100_000
    assert len(world.boards._now.boards) < 10


def test_what_is_kept_of_gpus_that_all_differ_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    world = of_nodes(*(node(f"node-{i:03}", *range(8 * i + 4, 8 * i + 12)) for i in range(100)))
    monkeypatch.setattr(boards, "MOST", 100)
    known, kind = list(world.state.index.ledgers()), Kind(make_shape(3), LITTLE)
    world.boards.costs(kind, known)
    generation = world.boards._now
    (kept,) = generation.boards.values()
    assert len(kept._prices) == 800
    assert generation._total >= sum(map(sys.getsizeof, (kept.by_number, kept._prices, *kept._prices.values())))
    monkeypatch.setattr(board, "_MOST_GPUS", 799)
    world.boards.costs(kind, known)
    assert kept._prices == {}


def test_what_was_found_for_rooms_of_the_past_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "_SPARE", 0)
    world = of_nodes(node("node-a", 16))
    kind = Kind(make_shape(3), LITTLE)
    for i in range(12):
        world.api.seed(PODS, pod(f"guest-{i}", on="node-a"))
        world.see()
        world.boards.costs(kind, [A])
    (kept,) = world.boards._now.boards.values()
    assert len(kept.by_number) <= 3
    assert len(kept._worths) <= 3


def test_a_new_outlook_is_used_when_the_boards_are_ready(counted: list[NodeCapacity]) -> None:
    world, kind = grown(5), Kind(make_shape(3), LITTLE)
    known = list(world.state.index.ledgers())
    world.boards.costs(kind, known)
    policies = world.state.policies
    for i in range(5):
        world.api.seed(PODS, pod(f"other-{i}", gib=5))
    world.see()
    world.clock.at += 60
    assert world.outlooks.tick()
    assert world.state.policies is not policies
    counted.clear()
    found = world.boards.costs(kind, known)
    assert counted == []
    assert {name: cost for name, cost in zip(known, found, strict=True) if cost is not None} == reference(world, kind)


def test_a_pod_that_takes_only_cdi_costs_nothing_to_nodes_without(world: World) -> None:
    shape = replace(make_shape(3), only_cdi=True)
    assert world.boards.costs(Kind(shape, LITTLE), [A, B]) == [None, None]


def test_on_a_node_with_several_models_the_gpus_that_the_pod_accepts_count() -> None:
    mixed = make_inventory(16, 16)
    gpus = (mixed.gpus[0], replace(mixed.gpus[1], model="NVIDIA A10"))
    world = of_nodes(make_node(replace(mixed, gpus=gpus)))
    shape = make_shape(3)
    wants = replace(shape, gpus=replace(shape.gpus, models=Choice(wanted=("A10",))))
    kind = Kind(wants, LITTLE)
    assert dict(zip([A], world.boards.costs(kind, [A]), strict=True)) == reference(world, kind)
    other = Kind(replace(shape, gpus=replace(shape.gpus, models=Choice(wanted=("H100",)))), LITTLE)
    assert world.boards.costs(other, [A]) == [None]


def test_a_node_whose_host_seems_full_still_has_a_cost(world: World) -> None:
    """Whether CPU and memory are enough is for kube-scheduler to say, which may know of a change earlier."""
    world.api.seed(NODES, node("node-c", 16, cpu=1))
    world.see()
    assert world.boards.costs(Kind(make_shape(3), FreeHost(8000, 512)), [NodeName("node-c")]) != [None]


def test_a_node_that_is_not_known_has_no_cost(world: World) -> None:
    for shape in (make_shape(3), None, make_shape(3, 2)):
        assert world.boards.costs(Kind(shape, LITTLE), [NodeName("node-x")]) == [None]


# Pods without GPUs.


def others(world: World, made: JsonObject, *known: str) -> dict[str, int]:
    answer = world.post(names.OTHERS_VERB, {"Pod": made, "NodeNames": known})
    return {each["Host"]: each["Score"] for each in answer}


def test_pods_without_gpus_go_to_nodes_without() -> None:
    world = many(3)
    for name in ("cpu-a", "cpu-b"):
        world.api.seed(NODES, node(name))
    world.see()
    found = others(world, pod("guest"), "cpu-a", "node-000", "cpu-b", "node-001", "node-002", "unknown")
    assert found["cpu-a"] == found["cpu-b"] == 10
    assert all(1 <= found[name] <= 8 for name in ("node-000", "node-001", "node-002"))
    assert found["unknown"] == 0


def test_among_nodes_with_gpus_one_alone_is_the_best() -> None:
    world = grown(11)
    known = [name for name, ledger in world.state.index.ledgers().items() if isinstance(ledger, NodeLedger)]
    kind = Kind(None, FreeHost(4000, 1024))
    costs = dict(zip(known, world.boards.costs(kind, known), strict=True))
    found = others(world, pod("guest", cpu="4"), *known)
    assert [name for name in known if found[name] == 10] == [min(known, key=lambda name: (costs[name], name))]
    assert all(cost is not None and cost > FREE for cost in costs.values())


def test_pods_with_gpus_are_not_ranked_there(world: World) -> None:
    assert others(world, pod("gpus", gib=3), "node-a", "node-b") == {"node-a": 0, "node-b": 0}


def test_a_replica_that_does_not_know_the_cluster_has_no_opinion(world: World) -> None:
    world.unready = "still reading"
    assert others(world, pod("guest"), "node-a", "node-b") == {}
    assert world.post(names.OTHERS_VERB, {"Pod": None}) == []


def twin_of(world: World) -> Boards:
    """Other boards of the same cluster, which keep no answers ready."""
    twin = Boards(world.state, world.clock)

    def publish(outlook: Outlook, tally: Tally) -> None:
        for each in (twin, world.boards):
            each.publish(outlook, tally, lambda some: some)

    world.outlooks = Outlooks(world.state.index, publish, world.clock)
    return twin


def change(world: World, chance: random.Random, step: int) -> None:
    """What happens between two requests."""
    known = sorted(world.state.index.ledgers())
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
def test_ready_answers_are_exact(seed: int, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "FEW", 0)
    monkeypatch.setattr(boards, "MOST", 8)
    chance, world = random.Random(seed), grown(seed, policy, nodes=14)
    twin = twin_of(world)
    first = [NodeName(name) for name in world.state.index.ledgers()]
    lists = [Sheet(first), Sheet([NodeName("unknown"), *first[3:]])]
    compared = 0
    for step in range(60):
        change(world, chance, step)
        if step % 20 == 10:
            lists[1] = Sheet(list(world.state.index.ledgers()))
        for made in (ASKING[0], ASKING[2], ASKING[3]):
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
    known = world.post("filter", {"Pod": made, "NodeNames": list(world.state.index.ledgers())})["NodeNames"]
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
    known = world.post("filter", {"Pod": made, "NodeNames": list(world.state.index.ledgers())})["NodeNames"]
    before = [scores(world, made, known) for _ in range(3)].pop()
    other = next(name for name in known if before[name] < 10)
    monkeypatch.setattr(world.state.index, "reserved_on", lambda _: frozenset({other}))
    assert [name for name, score in scores(world, made, known).items() if score == 10] == [other]


def test_answers_that_were_not_used_for_long_are_forgotten_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "FEW", 0)
    world = grown(1)
    sheet = Sheet([NodeName(name) for name in world.state.index.ledgers()])
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


def test_a_pod_that_is_ranked_by_place_gets_no_ready_answer(world: World) -> None:
    sheet = NameList(b"", [NodeName("node-a")])
    sheet.sheet()
    found = sheet.sheet()
    assert found is not None
    assert world.boards.answer(Kind(make_shape(3, 2), LITTLE), found) is None
    assert world.boards.answer(Kind(make_shape(3), LITTLE), found) is None


def test_rankings_of_the_past_are_not_kept() -> None:
    """Each remembers tens of MiB of what it has counted, and pods make a new one every few seconds."""
    searches, policies = Searches(), Policies(Policy.DENSE)
    searches.verdict(make_shape(3), NodeLedger.of(make_inventory(16)), policies)
    made = weakref.ref(policies.of(None))
    del policies
    gc.collect()
    assert made() is None


def test_a_verdict_holds_for_one_ledger_and_one_outlook(monkeypatch: pytest.MonkeyPatch) -> None:
    searches, ledger, search = Searches(), NodeLedger.of(make_inventory(16)), Mock(wraps=node_ledger.verdict)
    monkeypatch.setattr(node_ledger, "verdict", search)
    for epoch, of in [(1, ledger), (1, ledger), (2, ledger), (2, NodeLedger.of(make_inventory(16)))]:
        searches.verdict(make_shape(3), of, Policies(Policy.DENSE, Outlook(epoch=epoch)))
    assert search.call_count == 3


COSTS = [None, *range(-3, 30), 2**90, 2**90 + 1]


@pytest.mark.parametrize("seed", range(30))
def test_ranks_agree_with_sorted_costs_whatever_came_later(seed: int) -> None:
    chance = random.Random(seed)
    costs: dict[int | None, int | None] = {number: chance.choice(COSTS) for number in range(chance.randrange(20))}
    ranks = Ranks(costs)
    costs.update({number: chance.choice(COSTS) for number in range(20, 20 + chance.randrange(1, 10))})
    names = [NodeName(f"node-{i}") for i in range(40)]
    numbers = [chance.choice([None, *costs]) for _ in names]
    ranks.add(numbers)
    found = ranks.grades(names, numbers, ())
    here = [None if number is None else costs[number] for number in numbers]
    expected = grade.grades(names, here)
    assert [value == 10 for value in found] == [value == 10 for value in expected]
    assert [value == 0 for value in found] == [value == 0 for value in expected]
    assert all(value in range(9) or value == 10 for value in found)
    in_order = sorted(zip(names, numbers, strict=True), key=operator.itemgetter(0))
    ordered = [number for _, number in in_order]
    first = ranks.first(ordered, ranks.of(ordered))
    assert ranks.first([], []) is None
    assert [in_order[place][0] for place in [first] if place is not None] == [
        name for name, value in zip(names, found, strict=True) if value == 10
    ]
    by_cost = sorted((cost, -value) for cost, value in zip(here, found, strict=True) if cost is not None and value < 10)
    assert [value for _, value in by_cost] == sorted(value for _, value in by_cost)


def test_a_room_that_came_since_is_not_passed_over() -> None:
    ranks = Ranks({1: 5})
    with pytest.raises(KeyError):
        ranks.grades([NodeName("a")], [2], ())


def test_reserved_nodes_are_the_best() -> None:
    a, b = NodeName("a"), NodeName("b")
    ranks = Ranks({1: 5, 2: None})
    assert ranks.grades([a, b], [1, 2], {b})[1] == 10
    assert ranks.grades([a, b], [1, 2], ()) == ranks.grades([a, b], [1, None], ()) == [10, 0]
    assert ranks.grades([], [], ()) == []


def test_many_rooms_that_came_since_are_worth_another_sort() -> None:
    costs: dict[int | None, int | None] = {number: number for number in range(80)}
    ranks = Ranks(costs)
    for number in range(80, 91):
        costs[number] = number
        ranks.add([number])
        assert not ranks.worn()
    costs[91] = 91
    ranks.add([91])
    assert ranks.worn()


def test_an_answer_keeps_neither_its_sheet_nor_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have limits of their own."""
    monkeypatch.setattr(boards, "FEW", 0)
    world, kind = grown(1), Kind(make_shape(3), LITTLE)
    sheet = Sheet([NodeName(name) for name in world.state.index.ledgers()])
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
