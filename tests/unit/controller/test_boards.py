"""Costs of nodes follow from pods and nodes alone, are found once, and only for nodes that a request names."""

import math
import random
import sys
from dataclasses import replace
from typing import Any

import pytest

from controller import board, boards
from controller.board import FREE, Board, Cost, Kind
from gpushare import names
from gpushare.cluster import node_ledger
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy, RequestShape
from gpushare.model.room import HostRoom, NodeRoom
from gpushare.model.selector import Choice
from gpushare.model.verdict import Placed
from gpushare.placement import ranking
from gpushare.placement.place import place
from gpushare.wire import requests
from testing.builders import make_container, make_inventory, make_node, make_pod, make_shape
from testing.controller.world import NODES, RESOURCE_CONFIG, World

PODS = "/api/v1/namespaces/team/pods"
A, B = NodeName("node-a"), NodeName("node-b")
LITTLE = HostRoom(500, 512)


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
    return world


def kind_of(made: JsonObject) -> Kind:
    request = requests.of_pod(made, RESOURCE_CONFIG)
    assert request is not None
    return Kind(request.shape, HostRoom(request.cpu_milli, request.host_mib))


def reference(world: World, kind: Kind) -> dict[NodeName, int]:
    """What `place` chooses on each node that fits, and what that costs."""
    index, rankings, shape = world.state.cache.cluster_index, world.state.rankings, kind.shape
    assert shape is not None
    index.settle()
    costs = {}
    for name, ledger in index.ledgers.items():
        verdict = node_ledger.verdict(shape, ledger, rankings)
        if isinstance(verdict, Placed) and isinstance(ledger, NodeLedger):
            room = index.node_rooms.room(name)
            assert room is not None
            costs[name] = ranking.cost_of(
                verdict.grants, ledger, rankings.of(shape.policy), host=_enough(room, kind), takes=kind.takes
            )
    return costs


def _enough(room: NodeRoom, kind: Kind) -> HostRoom | None:
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
def test_the_best_node_is_the_one_that_costs_least(
    seed: int, policy: Policy, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "FEW", few)
    world = grown(seed, policy)
    assert world.outlooks.tick()
    known = list(world.state.cache.cluster_index.nodes)
    for made in ASKING:
        expected = reference(world, kind_of(made))
        scores = {each["Host"]: each["Score"] for each in world.post("prioritize", {"Pod": made, "NodeNames": known})}
        assert {name for name, score in scores.items() if score} == set(expected), made["metadata"]["name"]
        if expected:
            least = min(expected, key=lambda name: (expected[name], name))
            assert [name for name, score in scores.items() if score == 10] == [least]
        ranked = sorted(expected, key=lambda name: expected[name])
        assert [scores[name] for name in ranked] == sorted((scores[name] for name in ranked), reverse=True)


@pytest.mark.parametrize("policy", Policy)
def test_a_restart_gives_the_same_answers(policy: Policy) -> None:
    world = grown(7, policy)
    assert world.outlooks.tick()
    known = list(world.state.cache.cluster_index.nodes)
    before = [world.post("prioritize", {"Pod": made, "NodeNames": known}) for made in ASKING]
    outlook = world.outlooks.outlook
    world.start_controller(policy=policy)
    world.list_all()
    assert world.outlooks.tick()
    assert replace(world.outlooks.outlook, epoch=outlook.epoch) == outlook
    assert [world.post("prioritize", {"Pod": made, "NodeNames": known}) for made in ASKING] == before


def test_bind_chooses_the_gpu_by_which_the_node_was_ranked() -> None:
    """Dense fills the GPU whose remainder is worth the least; binpack would take the fullest."""
    world = World()
    world.start_controller(policy=Policy.DENSE)
    world.api.seed(NODES, node("node-a", 16, 16))
    world.list_all()
    for name, gib in (("one", 9), ("two", 12), ("three", 7), ("four", 7), ("five", 7)):
        world.api.seed(PODS, pod(name, gib=gib))
    world.see()
    assert world.bind(world.api.read(f"{PODS}/one")).error == ""
    assert world.bind(world.api.read(f"{PODS}/two")).error == ""
    world.see()
    world.clock.at += 10
    assert world.outlooks.tick()
    made = world.api.read(f"{PODS}/three")
    request = requests.of_pod(made, RESOURCE_CONFIG)
    assert request is not None
    verdict = world.state.verdict(request.shape, world.ledger())
    assert world.bind(made).error == ""
    held = world.held_by(made)
    assert held is not None
    assert isinstance(verdict, Placed)
    assert held.grants == verdict.grants


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[NodeRoom]:
    """Rooms whose costs were found."""
    found: list[NodeRoom] = []

    def cost(self: Board, number: int, room: NodeRoom) -> Cost:
        found.append(room)
        return original(self, number, room)

    original = Board.cost
    monkeypatch.setattr(Board, "cost", cost)
    return found


def test_only_named_nodes_are_looked_at_and_those_once(world: World, counted: list[NodeRoom]) -> None:
    kind = Kind(make_shape(3), LITTLE)
    world.bind(world.add_pod(3))
    world.boards.costs(kind, [A])
    assert len(counted) == 1
    world.boards.costs(kind, [A, B])
    world.boards.costs(kind, [B, A])
    assert len(counted) == 2


def test_a_pod_that_comes_changes_the_cost_of_its_node_alone(world: World, counted: list[NodeRoom]) -> None:
    kind = Kind(make_shape(3), LITTLE)
    before = world.boards.costs(kind, [A, B])
    counted.clear()
    world.bind(world.add_pod(3))
    after = world.boards.costs(kind, [A, B])
    assert after[1] == before[1]
    assert after[0] != before[0]
    assert len(counted) == 1


def test_nodes_with_equal_rooms_are_looked_at_once(world: World, counted: list[NodeRoom]) -> None:
    world.boards.costs(Kind(make_shape(3), LITTLE), [A, B])
    assert len(counted) == 1


def many(number: int) -> World:
    """Nodes of which no two are alike."""
    world = World()
    world.start_controller(policy=Policy.DENSE)
    for i in range(number):
        world.api.seed(NODES, node(f"node-{i:03}", 16, cpu=8 + i))
    world.list_all()
    return world


def test_a_request_looks_at_few_nodes_and_the_background_at_the_rest(
    counted: list[NodeRoom], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MOST", 10)
    world = many(25)
    known = list(world.state.cache.cluster_index.nodes)
    kind = Kind(make_shape(3), LITTLE)
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


def test_of_many_nodes_those_with_the_best_gpus_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOST", 2)
    world = grown(3)
    assert world.outlooks.tick()
    known = list(world.state.cache.cluster_index.nodes)
    kind = Kind(make_shape(3), LITTLE)
    costs = dict(zip(known, world.boards.costs(kind, known), strict=True))
    best = min((name for name in known if costs[name] is not None), key=lambda name: (costs[name] or 0, name))
    expected = reference(world, kind)
    wasted = {name: cost // ranking.ROOM for name, cost in expected.items()}
    assert wasted[best] == min(wasted.values())


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("made", [ASKING[0], ASKING[1], ASKING[2]], ids=["share", "large", "wide"])
def test_by_the_gpus_and_then_by_what_is_left_of_the_host_nodes_are_chosen(
    made: JsonObject, most: int, monkeypatch: pytest.MonkeyPatch, counted: list[NodeRoom]
) -> None:
    monkeypatch.setattr(boards, "MOST", most)
    world, kind = grown(most), kind_of(made)
    assert world.outlooks.tick()
    world.bind(world.api.seed(PODS, pod("last", gib=2)), "node-03")
    world.see()
    index, alone = world.state.cache.cluster_index, Board(kind, world.state.rankings, {})
    index.settle()
    rooms = set(index.node_rooms.rooms().values())
    assert {gpu for room in rooms for gpu in room.gpus} == set(index.node_rooms.by_gpu)
    fitting = [(alone.promise(room), room.host or (), room.model, room.gpus) for room in rooms]
    fitting = sorted(each for each in fitting if each[0] < math.inf)
    world.boards.costs(kind, list(index.nodes))
    assert len(counted) == min(most, len(fitting))
    assert {(room.host, room.model, room.gpus) for room in counted} == {each[1:] for each in fitting[:most]}


@pytest.mark.parametrize("few", [0, 1000], ids=["kept ranks", "sorted"])
def test_after_the_background_the_answers_are_exact(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "FEW", few)
    monkeypatch.setattr(boards, "MOST", 2)
    world = grown(9)
    assert world.outlooks.tick()
    known = list(world.state.cache.cluster_index.nodes)
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


def test_of_many_nodes_those_with_little_free_on_gpus_are_looked_at_for_other_pods(
    monkeypatch: pytest.MonkeyPatch, counted: list[NodeRoom]
) -> None:
    monkeypatch.setattr(boards, "MOST", 1)
    world = World()
    for name, free in (("node-a", 16), ("node-b", 4), ("node-c", 8)):
        world.api.seed(NODES, node(name, free))
    world.list_all()
    world.boards.grades(Kind(None, LITTLE), [A, B, NodeName("node-c")])
    assert [room.gpus[0].free_mib for room in counted] == [4096]


def test_what_changes_between_two_requests_is_found_in_the_second(
    monkeypatch: pytest.MonkeyPatch, counted: list[NodeRoom]
) -> None:
    monkeypatch.setattr(boards, "FEW", 0)
    world = grown(2)
    assert world.outlooks.tick()
    known = list(world.state.cache.cluster_index.nodes)
    kind = Kind(make_shape(3), LITTLE)
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
    known = list(world.state.cache.cluster_index.nodes)
    for gib in (1, 2, 3):
        world.boards.costs(Kind(make_shape(gib), LITTLE), known)
    entries = {kind.shape: len(each.by_number) for kind, each in world.boards._now.boards.items()}
    monkeypatch.setattr(boards, "WARM", entries[make_shape(3)] + entries[make_shape(2)])
    assert world.outlooks.tick()
    assert [kind.shape for kind in world.boards._now.boards] == [make_shape(2), make_shape(3)]


def test_the_background_ends_for_a_kind_of_pod_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOST", 1)
    world = many(5)
    world.boards.costs(Kind(make_shape(3), LITTLE), list(world.state.cache.cluster_index.nodes))
    world.boards._now.boards.clear()
    assert world.boards.background.tick()
    assert not world.boards.background.tick()
    assert not world.boards._now.boards


def test_a_search_that_takes_long_does_not_hold_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    world = many(10)
    known = list(world.state.cache.cluster_index.nodes)

    def slow(shape: RequestShape, ledger: NodeLedger, rankings: Any) -> Any:
        world.clock.at += 0.2
        return place(shape, ledger, rankings)

    monkeypatch.setattr(node_ledger, "verdict", slow)
    at = world.clock.at
    costs = world.boards.costs(Kind(make_shape(3, 2), LITTLE), known)
    assert world.clock.at - at < 1
    assert None not in costs
    for _ in range(4):
        costs = world.boards.costs(Kind(make_shape(3, 2), LITTLE), known)
    at = world.clock.at
    assert world.boards.costs(Kind(make_shape(3, 2), LITTLE), known) == costs
    assert world.clock.at == at


def test_boards_that_were_not_used_for_long_are_forgotten_where_memory_ends(
    counted: list[NodeRoom], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "MAX_BYTES", 100_000)
    world = many(50)
    known = list(world.state.cache.cluster_index.nodes)
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
    world = World()
    world.start_controller(policy=Policy.DENSE)
    for i in range(100):
        world.api.seed(NODES, node(f"node-{i:03}", *range(8 * i + 4, 8 * i + 12)))
    world.list_all()
    monkeypatch.setattr(boards, "MOST", 100)
    known, kind = list(world.state.cache.cluster_index.nodes), Kind(make_shape(3), LITTLE)
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
    world = World()
    world.api.seed(NODES, node("node-a", 16))
    world.list_all()
    kind = Kind(make_shape(3), LITTLE)
    for i in range(12):
        world.api.seed(PODS, pod(f"guest-{i}", on="node-a"))
        world.see()
        world.boards.costs(kind, [A])
    (kept,) = world.boards._now.boards.values()
    assert len(kept.by_number) <= 3
    assert len(kept._worths) <= 3


def test_a_new_outlook_is_used_when_the_boards_are_ready(counted: list[NodeRoom]) -> None:
    world = grown(5)
    assert world.outlooks.tick()
    known = list(world.state.cache.cluster_index.nodes)
    kind = Kind(make_shape(3), LITTLE)
    world.boards.costs(kind, known)
    rankings = world.state.rankings
    for i in range(5):
        world.api.seed(PODS, pod(f"other-{i}", gib=5))
    world.see()
    world.clock.at += 60
    assert world.outlooks.tick()
    assert world.state.rankings is not rankings
    counted.clear()
    found = world.boards.costs(kind, known)
    assert counted == []
    assert {name: cost for name, cost in zip(known, found, strict=True) if cost is not None} == reference(world, kind)


def test_a_pod_that_takes_only_cdi_costs_nothing_to_nodes_without(world: World) -> None:
    shape = replace(make_shape(3), only_cdi=True)
    assert world.boards.costs(Kind(shape, LITTLE), [A, B]) == [None, None]


def test_on_a_node_with_several_models_the_gpus_that_the_pod_accepts_count() -> None:
    world = World()
    mixed = make_inventory(16, 16)
    gpus = (mixed.gpus[0], replace(mixed.gpus[1], model="NVIDIA A10"))
    world.api.seed(NODES, make_node(replace(mixed, gpus=gpus)))
    world.list_all()
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
    assert world.boards.costs(Kind(make_shape(3), HostRoom(8000, 512)), [NodeName("node-c")]) != [None]


def test_a_node_that_is_not_known_has_no_cost(world: World) -> None:
    assert world.boards.costs(Kind(make_shape(3), LITTLE), [NodeName("node-x")]) == [None]
    assert world.boards.costs(Kind(None, LITTLE), [NodeName("node-x")]) == [None]
    assert world.boards.costs(Kind(make_shape(3, 2), LITTLE), [NodeName("node-x")]) == [None]


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
    assert world.outlooks.tick()
    known = [name for name, ledger in world.state.cache.cluster_index.ledgers.items() if isinstance(ledger, NodeLedger)]
    kind = Kind(None, HostRoom(4000, 1024))
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
