"""What nodes cost follows from pods and nodes alone, and is found once for each change of a node."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller import cluster_table
from controller.cluster_table import PodKind
from gpushare import names
from gpushare.cluster import node_ledger
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.capacity import FreeHost
from gpushare.model.ledger import NodeLedger, Placed
from gpushare.model.request import Choice, Policy, RequestShape
from gpushare.placement import table
from gpushare.placement.columns import Ints
from gpushare.placement.costs import Costs
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare.placement.table import Fits, Table
from testing import plain_policies as plain
from testing.builders import make_shape
from testing.controller.world import NODES, World, request_of
from tests.unit.controller.conftest import node, pod

PODS = "/api/v1/namespaces/team/pods"
A, B = NodeName("node-a"), NodeName("node-b")
LITTLE = FreeHost(500, 512)


def of_nodes(*nodes: JsonObject) -> World:
    world = World()
    world.start_controller(policy=Policy.DENSE)
    for each in nodes:
        world.api.seed(NODES, each)
    world.list_all()
    return world


def many(number: int) -> World:
    """Nodes of which no two are alike."""
    return of_nodes(*(node(f"node-{i:03}", 16, cpu=8 + i) for i in range(number)))


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


def kind_of(made: JsonObject) -> PodKind:
    request = request_of(made)
    return PodKind(request.shape, FreeHost(request.cpu_milli, request.host_mib))


def every(world: World) -> list[NodeName]:
    return list(world.snapshot().ledgers)


def reference(world: World, kind: PodKind, asked: Sequence[NodeName]) -> list[int]:
    """By what `place` chooses on each node that fits, and what the policy's definition says that this costs."""
    policies, shape, capacities = world.state.policies, kind.shape, world.capacities()
    policy = Policy.DENSE if shape is None else shape.policy or policies.default
    costs: list[plain.Cost | None] = []
    for name in asked:
        ledger, cost = world.snapshot().ledgers.get(name), None
        if isinstance(ledger, NodeLedger):
            verdict = Placed(()) if shape is None else place(shape, ledger, policies)
            if isinstance(verdict, Placed):
                before, after = plain.change(verdict.grants, ledger, capacities[name].host, kind.takes)
                cost = plain.cost(policy, policies.outlook, before, after)
        costs.append(cost)
    return plain.grades(asked, costs)


def told(answer: Sequence[JsonObject], asked: Sequence[NodeName]) -> list[int]:
    """As kube-scheduler reads an answer."""
    scores = {each["Host"]: each["Score"] for each in answer}
    return [scores.get(name, 0) for name in asked]


def grades(world: World, kind: PodKind, asked: Sequence[NodeName]) -> list[int]:
    scores: list[int] = world.table.grades(kind, asked).tolist()
    return scores


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the costs were found of, each time."""
    found: list[int] = []
    original = Costs._find

    def counting(self: Costs, of: Table, rows: Ints, fits: Fits | None) -> Ints:
        found.append(len(rows))
        return original(self, of, rows, fits)

    monkeypatch.setattr(Costs, "_find", counting)
    return found


@pytest.mark.parametrize("policy", Policy)
def test_scores_follow_from_the_choice_the_policy_and_what_the_pod_takes(policy: Policy) -> None:
    world, made = grown(1, policy), pod("wide", gib=2, gpus="2", cpu="4")
    asked = every(world)
    scores = reference(world, kind_of(made), asked)
    answer = world.post("prioritize", {"Pod": made, "NodeNames": asked})
    assert told(answer, asked) == [score - min(scores) for score in scores]


def test_only_changed_nodes_are_looked_at_again(counted: list[int]) -> None:
    world = grown(2)
    asked, kind = every(world), PodKind(make_shape(3), LITTLE)
    for step in range(8):
        scores = grades(world, kind, asked)
        assert scores == reference(world, kind, asked)
        counted.clear()
        best = asked[scores.index(10)]
        if step % 2:
            world.api.seed(PODS, pod(f"other-{step}", on=best))
        else:
            world.bind(world.api.seed(PODS, pod(f"step-{step}", gib=2)), best)
        world.see()
        grades(world, kind, asked)
        grades(world, kind, asked)
        assert sum(counted) <= 1


def test_a_new_outlook_is_used_when_the_costs_used_last_are_known(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_table, "WARM", 2)
    world = grown(5)
    asked, kinds = every(world), [PodKind(make_shape(gib), LITTLE) for gib in (1, 2, 3)]
    for kind in kinds:
        grades(world, kind, asked)
    policies, fitting = world.state.policies, world.table._kept.values[make_shape(3)]
    for i in range(5):
        world.api.seed(PODS, pod(f"other-{i}", gib=5))
    world.see()
    world.clock.at += 60
    assert world.outlooks.tick()
    assert world.state.policies is not policies
    counted.clear()
    assert [grades(world, kind, asked) for kind in kinds[1:]] == [reference(world, kind, asked) for kind in kinds[1:]]
    assert counted == []
    assert grades(world, kinds[0], asked) == reference(world, kinds[0], asked)
    assert len(counted) == 1
    kept = world.table._kept
    assert kept.values[make_shape(3)] is fitting, "where a pod fits does not depend on it"
    assert kept.nbytes == sum(map(sum, kept._weights.values())) >= sum(each.nbytes for each in kept.values.values())


def test_a_search_that_takes_long_does_not_hold_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    world = many(10)
    asked, kind = every(world), PodKind(make_shape(3, 2), LITTLE)

    def slow(shape: RequestShape, ledger: NodeLedger, policies: Any) -> Any:
        world.clock.at += 0.2
        return place(shape, ledger, policies)

    monkeypatch.setattr(node_ledger, "verdict", slow)
    at = world.clock.at
    assert 0 not in (scores := grades(world, kind, asked)), "who is not known yet counts as worse than all others"
    assert len(set(scores)) == 3
    assert world.clock.at - at < 1
    for _ in range(4):
        scores = grades(world, kind, asked)
    at = world.clock.at
    assert (grades(world, kind, asked), world.clock.at) == (scores, at)
    assert scores == reference(world, kind, asked)


def test_what_was_placed_under_a_former_outlook_is_placed_again_and_its_cost_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = many(3)
    asked, kind, placed = every(world), PodKind(make_shape(3, 2), LITTLE), list[int]()

    def publish() -> None:
        known = world.state.policies.outlook
        world.table.publish(replace(known, epoch=known.epoch + 1), iter)

    def placing(shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Any:
        placed.append(policies.outlook.epoch)
        if len(placed) == 4:
            publish()
        return place(shape, ledger, policies)

    monkeypatch.setattr(node_ledger, "verdict", placing)
    first = world.state.policies.outlook.epoch
    for _ in range(2):
        grades(world, kind, asked)
    publish()
    grades(world, kind, asked)
    kept = world.table._kept.values[kind]
    assert isinstance(kept, Costs)
    assert not kept.known.any(), "there is another outlook by now"
    grades(world, kind, asked)
    assert kept.known.sum() == 3
    assert placed == [first] * 3 + [first + 1] * 3 + [first + 2] * 3


@pytest.mark.parametrize("characters", [0, 2000])
def test_kinds_of_pods_are_forgotten_where_memory_ends(
    counted: list[int], characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tenants write selectors as long as they like."""
    monkeypatch.setattr(cluster_table, "MAX_BYTES", 100_000)
    world = many(50)
    world.start_controller(policy=Policy.DENSE)
    world.list_all()
    asked = every(world)

    def kind(gib: int) -> PodKind:
        models = Choice(unwanted=(f"{gib}" * characters,)) if characters else Choice()
        shape = make_shape(gib)
        return PodKind(replace(shape, gpus=replace(shape.gpus, models=models)), LITTLE)

    for gib in range(1, 40):
        grades(world, kind(gib), asked)
    counted.clear()
    grades(world, kind(39), asked)
    assert counted == []
    grades(world, kind(1), asked)
    assert counted == [50]
    kept = world.table._kept
    assert kept.nbytes <= 100_000
    assert kept.nbytes == sum(map(sum, kept._weights.values())) >= sum(each.nbytes for each in kept.values.values())


def test_what_is_placed_one_by_one_counts_as_memory() -> None:
    world = many(20)
    grades(world, PodKind(make_shape(3, 2), LITTLE), every(world))
    grades(world, PodKind(make_shape(3, 2), LITTLE), every(world))
    assert world.table._kept.nbytes > 20 * 512


def test_a_node_whose_host_seems_full_still_has_a_cost_and_one_that_is_not_known_has_none(world: World) -> None:
    """Whether CPU and memory are enough is for kube-scheduler to say, which may know of a change earlier."""
    world.api.seed(NODES, node("node-c", 16, cpu=1))
    world.see()
    for shape in (make_shape(3), make_shape(3, 2)):
        asked = [NodeName("node-c"), NodeName("node-x")]
        assert grades(world, PodKind(shape, FreeHost(8000, 512)), asked) == [10, 0]
        assert grades(world, PodKind(replace(shape, only_cdi=True), LITTLE), [A, B]) == [0, 0]


def test_a_node_with_more_gpus_than_columns_is_placed_by_itself() -> None:
    world = of_nodes(node("node-a", *[2] * (table.MOST_PLACES + 1)), node("node-b", *[16] * 10))
    [request] = make_shape(1).containers
    whole = replace(make_shape(1), containers=(replace(request, memory_mib=0, whole=True, gpu_count=2),))
    for shape in (make_shape(1), make_shape(9), whole, None):
        kind = PodKind(shape, LITTLE)
        assert grades(world, kind, [A, B]) == reference(world, kind, [A, B])
    assert world.table._table.cells.shape[2] == 16


# Pods without GPUs.


def others(world: World, made: JsonObject, *known: str) -> dict[str, int]:
    answer = world.post(names.OTHERS_VERB, {"Pod": made, "NodeNames": known})
    return dict(zip(known, told(answer, list(map(NodeName, known))), strict=True))


def test_pods_without_gpus_go_to_nodes_without_or_that_take_no_pods_with_some() -> None:
    world = many(3)
    world.api.seed(NODES, node("cpu-a"))
    broken = node("cpu-b", 16)
    broken["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = "?"
    world.api.seed(NODES, broken)
    world.see()
    found = others(world, pod("guest"), "cpu-a", "node-000", "cpu-b", "node-001", "node-002", "unknown")
    assert found["cpu-a"] == found["cpu-b"] == 10
    assert all(1 <= found[name] <= 8 for name in ("node-000", "node-001", "node-002"))
    assert found["unknown"] == 0


def test_among_nodes_with_gpus_one_alone_is_the_best() -> None:
    world = grown(11)
    asked = [name for name in every(world) if world.capacities()[name].gpus]
    kind = PodKind(None, FreeHost(4000, 1024))
    scores = reference(world, kind, asked)
    assert list(others(world, pod("guest", cpu="4"), *asked).values()) == [score - min(scores) for score in scores]


def test_pods_with_gpus_are_not_ranked_there(world: World) -> None:
    assert others(world, pod("gpus", gib=3), "node-a", "node-b") == {"node-a": 0, "node-b": 0}


def test_a_replica_that_does_not_know_the_cluster_has_no_opinion(world: World) -> None:
    world.unready = "still reading"
    assert world.post(names.OTHERS_VERB, {"Pod": pod("guest"), "NodeNames": ["node-a", "node-b"]}) == []
    assert world.post(names.OTHERS_VERB, {"Pod": None}) == []


# The table follows the index.


@pytest.mark.parametrize("step", ["set", "_write"])
def test_what_could_not_be_written_is_written_again(world: World, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = PodKind(make_shape(9), LITTLE)
    assert grades(world, kind, [A]) == [10]
    for _ in range(2):
        assert world.bind(world.add_pod(8)).error == ""
    with monkeypatch.context() as patch:
        patch.setattr(Table, step, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            grades(world, kind, [A])
    assert grades(world, kind, [A]) == [0]


def test_what_is_known_of_hardware_of_the_past_is_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_SPARE", 2)
    world.start_controller()
    world.list_all()
    kind, most = PodKind(make_shape(3), LITTLE), 0
    for i in range(60):
        world.api.vanish(f"{NODES}/node-b")
        world.api.seed(NODES, node("node-b", 16, model=f"Model {i}"))
        world.see()
        assert grades(world, kind, [A, B]) == reference(world, kind, [A, B])
        most = max(most, len(world.table._table.hardware))
    assert most < 20


def test_the_tables_lock_is_never_waited_for_under_that_of_the_index(world: World) -> None:
    """A request takes the table's, and then the index's; who holds the index's only marks nodes."""
    kind = PodKind(make_shape(3), LITTLE)
    with world.table._lock:
        assert world.bind(world.add_pod(3)).error == ""
        world.see()
        assert world.state.index.snapshot().pods
    assert 0 not in grades(world, kind, [A, B])


def test_costs_of_a_table_that_was_replaced_meanwhile_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would never change again: rows of the new table count their changes from the start."""
    world = many(3)
    kind, asked = kind_of(pod("share", gib=3)), every(world)
    before = grades(world, kind, asked)

    def in_turn(kinds: list[PodKind]) -> Iterator[PodKind]:
        yield from kinds
        monkeypatch.setattr(Table, "is_bloated", lambda _: True)
        world.bind(world.api.seed(PODS, pod("other", gib=1)), "node-002")
        grades(world, kind, asked)
        monkeypatch.undo()

    world.table.publish(world.state.policies.outlook, in_turn)
    assert grades(world, kind, asked) == reference(world, kind, asked)
    world.bind(world.api.seed(PODS, pod("share", gib=9)), "node-000")
    assert grades(world, kind, asked) == reference(world, kind, asked) != before


def test_what_is_kept_is_never_less_than_the_two_used_last() -> None:
    shapes, kept = [make_shape(number) for number in (1, 2, 3)], cluster_table._Kept(1)
    for shape in shapes:
        kept.kind(shape)
        kept.used(shape)
    assert list(kept.values) == shapes[1:]
