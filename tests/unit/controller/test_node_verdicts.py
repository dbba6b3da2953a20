"""Answers are kept for nodes that have not changed, and only for those; only nodes that were asked for are judged."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.extender import filter as filtering
from controller.extender.messages import FilterResult
from controller.extender.name_lists import NameList
from controller.rooms import Rooms
from gpushare import names
from gpushare.cluster import verdicts
from gpushare.cluster.records import Bound
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.model.selector import ANY_GPU
from gpushare.model.verdict import Refused, Verdict
from gpushare.placement.judge import Judge
from gpushare.placement.place import place
from gpushare.placement.policies import Rankings
from gpushare.placement.room import Room
from gpushare.units import MemoryUnit
from gpushare.wire import inventory
from testing.builders import make_container, make_inventory, make_shape
from testing.controller.world import NODES, PODS, World

TEAM = "/api/v1/namespaces/team/pods"
A, B, C, D = (NodeName(f"node-{letter}") for letter in "abcd")


def other(number: int) -> RequestShape:
    """A pod that has to be placed to know whether it fits, of as many kinds as are needed."""
    shape = make_shape(3)
    return replace(shape, gpus=replace(shape.gpus, uuids=replace(shape.gpus.uuids, unwanted=(f"GPU-{number}",))))


def asking(**more: Any) -> RequestShape:
    """A pod with one container that asks for something else or more than memory of one GPU."""
    [request] = make_shape(3).containers
    return replace(make_shape(3), containers=(replace(request, **more),))


def compute(percent: int) -> RequestShape:
    """Memory and compute."""
    return asking(compute_percent=percent)


def large(least_mib: int) -> RequestShape:
    """Only large GPUs."""
    return replace(make_shape(3), gpus=replace(make_shape(3).gpus, min_memory_mib=least_mib))


KINDS = [compute(10), large(10), other(10)]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the nodes that were judged again."""
    names: list[str] = []

    def counting(shape: RequestShape, ledger: NodeLedger, rankings: Rankings) -> Verdict:
        names.append(ledger.inventory.node)
        return place(shape, ledger, rankings)

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", counting)
    return names


def test_only_nodes_that_were_asked_for_are_judged(world: World, judged: list[str]) -> None:
    world.add_node("node-c", 10)
    world.see()
    assert world.node_verdicts.filter(other(10), [B]).fits == [B]
    assert judged == ["node-b"]
    assert world.node_verdicts.filter(other(10), [C, B, A]).fits == [C, B, A]
    assert sorted(judged) == ["node-a", "node-b", "node-c"]


def test_only_changed_nodes_are_judged_again(world: World, judged: list[str]) -> None:
    shape = other(10)
    world.node_verdicts.answers(shape, [A, B])
    assert sorted(judged) == ["node-a", "node-b"]
    world.node_verdicts.answers(shape, [A, B])
    assert len(judged) == 2
    world.bind(world.add_pod(3))
    judged.clear()
    world.node_verdicts.answers(shape, [A, B])
    assert judged == ["node-a"]


@pytest.mark.parametrize(
    "shape", [make_shape(3), compute(10), large(10), other(10)], ids=["simple", "compute", "large", "other"]
)
def test_nodes_come_and_go(world: World, shape: RequestShape) -> None:
    world.node_verdicts.answers(shape, [A, B])
    world.add_node("node-c", 10)
    world.api.vanish(f"{NODES}/node-a")
    world.see()
    result = world.node_verdicts.filter(shape, [A, B, C])
    assert result.fits == [B, C]
    assert result.failed == {
        A: "node node-a is unknown to the gpushare controller; it may have been added a moment ago"
    }
    assert set(world.node_verdicts.snapshot(shape)) == {"node-b", "node-c"}


def test_a_pod_that_is_seen_on_its_node_as_it_was_bound_changes_nothing(world: World, judged: list[str]) -> None:
    assert world.bind(world.add_pod(3)).error == ""
    world.node_verdicts.answers(other(10), [A])
    ledger, sequence = world.state.cache.ledgers()[A], world.state.cache.sequence
    judged.clear()
    world.see()
    assert [type(record) for record in world.state.cache.snapshot().pods] == [Bound]
    assert world.state.cache.ledgers()[A] is ledger
    assert world.state.cache.sequence == sequence
    world.node_verdicts.answers(other(10), [A])
    assert judged == []


def test_simple_pods_are_judged_by_what_is_kept_beside_the_ledger(world: World, judged: list[str]) -> None:
    for _ in range(2):
        assert world.bind(world.add_pod(8)).error == ""
    world.see()
    judged.clear()
    for gib in range(1, 12):
        result = world.node_verdicts.filter(make_shape(gib), [A, B])
        assert result.fits == ([A, B] if gib <= 2 else [B] if gib <= 10 else [])
    assert judged == []


def test_oversubscribed_gpus_cost_simple_pods_no_closer_look(world: World, judged: list[str]) -> None:
    def oversubscribe(node: JsonObject) -> None:
        known = make_inventory(10)
        more = replace(known, gpus=(replace(known.gpus[0], extra_mib=5 * 1024),))
        node["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = inventory.encode(more)

    world.api.edit(f"{NODES}/node-a", oversubscribe)
    world.see()
    found = {gib: world.node_verdicts.filter(make_shape(gib), [A]).fits for gib in (10, 11)}
    assert found == {10: [A], 11: []}
    pod = world.add_pod(8)
    assert world.bind(pod, A).error == ""
    world.see()
    judged.clear()
    assert [bool(world.node_verdicts.filter(make_shape(gib), [A]).fits) for gib in (7, 8)] == [True, False]
    refused = world.node_verdicts.filter(replace(make_shape(1), gpus=replace(ANY_GPU, physical=True)), [A])
    assert "0: oversubscribed" in refused.unresolvable[A]
    assert judged == []


@pytest.mark.parametrize(
    "shape", [make_shape(8), compute(10), large(10), other(10)], ids=["simple", "compute", "large", "other"]
)
def test_the_answer_follows_the_ledger(world: World, shape: RequestShape) -> None:
    assert world.node_verdicts.filter(shape, [A]).fits == [A]
    for _ in range(2):
        assert world.bind(world.add_pod(8)).error == ""
    [(node, message)] = world.node_verdicts.filter(shape, [A]).failed.items()
    assert node == A
    assert message == world.node_verdicts.snapshot(shape)[A].message  # type: ignore[union-attr] # it was refused
    assert message.startswith("needs ")


@pytest.mark.parametrize(
    ("shape", "refusal"),
    [
        (compute(10), "needs 3 GiB and 10 % of compute on one GPU; free per GPU on node-a: 2 GiB and 100 %, 2 GiB"),
        (asking(gpu_count=2), "needs 3 GiB on each of 2 GPUs; free per GPU on node-a: 2, 2 GiB"),
        (asking(memory_mib=0, memory_percent=50), "needs 50 % of one GPU; free per GPU on node-a: 2, 2 GiB"),
        (
            asking(memory_mib=0, whole=True, compute_percent=100),
            "needs 1 whole GPU; free per GPU on node-a: 2 of 10 GiB and 100 %, 2 of 10 GiB and 100 %",
        ),
        (large(9 * 1024), "needs 3 GiB on one GPU; free per GPU on node-a: 2, 2 GiB"),
    ],
)
def test_one_container_is_judged_by_what_is_kept_of_nodes(
    world: World, judged: list[str], shape: RequestShape, refusal: str
) -> None:
    assert world.node_verdicts.filter(shape, [A, B]).fits == [A, B]
    for _ in range(2):
        assert world.bind(world.add_pod(8)).error == ""
    judged.clear()
    found = world.node_verdicts.filter(shape, [A, B])
    assert found.fits == [B]
    assert found.failed[A].startswith(refusal)
    assert judged == []


def with_most_of_the_compute(pod: JsonObject) -> None:
    pod["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-core.percentage"] = "91"


@pytest.mark.parametrize(
    "shape",
    [compute(10), compute(5), compute(8), asking(memory_mib=0, memory_percent=50, compute_percent=8)],
    ids=["more", "less", "between", "part"],
)
def test_where_gpus_are_plain_no_pod_of_one_needs_a_closer_look(
    world: World, monkeypatch: pytest.MonkeyPatch, shape: RequestShape
) -> None:
    fits, looked = Judge.fits, list[str]()
    world.node_verdicts.filter(shape, [A, B])
    for _ in range(2):
        pod = world.add_pod(3)
        world.edit_pod(pod, with_most_of_the_compute)
        assert world.bind(pod).error == ""

    def counted(self: Judge, found: Room) -> bool | Refused | None:
        looked.append(found.inventory.node)
        return fits(self, found)

    monkeypatch.setattr(Judge, "fits", counted)
    result = world.node_verdicts.filter(shape, [A, B, C])
    assert looked == []
    assert result.fits == ([B] if shape.containers[0].compute_percent == 10 else [A, B])
    assert set(result.failed) == {A, B, C} - set(result.fits)


def test_what_has_compute_left_is_kept_in_few_steps(world: World) -> None:
    for percent in range(101):
        world.node_verdicts.filter(compute(percent) if percent else make_shape(3), [A, B])
    assert set(world.state.cache.rooms.with_compute) == set(range(5, 101, 5))
    world.api.vanish(f"{NODES}/node-a")
    world.see()
    assert [list(each) for each in world.state.cache.rooms.with_compute.values()] == [[B]] * 20


def test_gpus_of_another_kind_are_told_by_what_is_kept_of_nodes(world: World, judged: list[str]) -> None:
    found = world.node_verdicts.filter(large(11 * 1024), [A])
    assert found.unresolvable[A].startswith(
        "needs a GPU with at least 11264 MiB in all; GPUs of node-a: 0: too small ("
    )
    assert judged == []


def test_a_verdict_of_a_ledger_that_changed_meanwhile_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(shape: RequestShape, ledger: NodeLedger, rankings: Rankings) -> Verdict:
        verdict = place(shape, ledger, rankings)
        monkeypatch.setattr("gpushare.cluster.node_ledger.place", place)
        for _ in range(2):
            assert world.bind(world.add_pod(9)).error == ""
        world.node_verdicts.answers(shape, [B])  # another request, which has seen the change
        return verdict

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", meanwhile)
    assert world.node_verdicts.filter(other(10), [A]).fits == [A]
    assert world.node_verdicts.filter(other(10), [A]).fits == []


@pytest.mark.parametrize(
    "shape", [make_shape(3), compute(10), large(10), other(10)], ids=["simple", "compute", "large", "other"]
)
def test_a_question_is_answered_whole_while_others_notice_changes(world: World, shape: RequestShape) -> None:
    """A node that another request had just found changed was unknown to this one."""
    world.node_verdicts.answers(shape, [A, B])
    answers = world.node_verdicts.answers(shape, [A, B])
    before = answers.get(A)
    assert before is not None
    world.bind(world.add_pod(3))
    world.node_verdicts.answers(shape, [B])
    assert answers.get(A) is before


def test_many_kinds_are_kept(world: World, judged: list[str]) -> None:
    for percent in range(1, 101):
        world.node_verdicts.answers(other(percent), [A, B])
    judged.clear()
    for percent in range(1, 101):
        world.node_verdicts.answers(other(percent), [A, B])
    assert judged == []


def test_kinds_that_were_not_asked_for_long_are_forgotten_where_memory_ends(
    world: World, judged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "_CHARACTER", 0)
    monkeypatch.setattr(verdicts, "MAX_BYTES", 2 * 2 * verdicts._ENTRY)
    world.start_controller()
    world.list_all()
    for percent in (1, 2, 1, 3):
        world.node_verdicts.answers(other(percent), [A, B])
    judged.clear()
    for percent in (1, 3):
        world.node_verdicts.answers(other(percent), [A, B])
    assert judged == []
    world.node_verdicts.answers(other(2), [A, B])
    assert len(judged) == 2


def test_large_kinds_of_pods_count_with_what_they_are(
    world: World, judged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant writes selectors as long as he likes."""
    monkeypatch.setattr(verdicts, "MAX_BYTES", 200_000)
    world.start_controller()
    world.list_all()
    shape = other(1)
    kinds = [
        replace(shape, gpus=replace(shape.gpus, uuids=replace(shape.gpus.uuids, unwanted=(f"{i}" * 10_000,))))
        for i in range(3)
    ]
    for each in kinds:
        world.node_verdicts.answers(each, [A])
    judged.clear()
    world.node_verdicts.answers(kinds[2], [A])
    assert judged == []
    world.node_verdicts.answers(kinds[0], [A])
    assert len(judged) == 1


@pytest.fixture
def slow(world: World, monkeypatch: pytest.MonkeyPatch) -> list[NodeName]:
    """Four nodes, and a second for each verdict."""

    def judge(shape: RequestShape, ledger: NodeLedger, rankings: Rankings) -> Verdict:
        world.clock.at += 1
        return place(shape, ledger, rankings)

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", judge)
    for name in (C, D):
        world.add_node(name, 10)
    world.see()
    return [A, B, C, D]


def test_one_container_is_never_refused_for_want_of_time(world: World, slow: list[NodeName]) -> None:
    assert world.node_verdicts.filter(other(10), slow).fits == slow


def test_a_search_that_takes_long_is_continued_at_the_next_try(world: World, slow: list[NodeName]) -> None:
    shape = make_shape(3, 2)
    first = world.node_verdicts.filter(shape, slow)
    assert first.fits == [A, B]
    assert set(first.failed) == {C, D}
    assert first.failed[D].endswith("takes long and has not ended yet; it goes on at the next try")
    assert world.node_verdicts.filter(shape, slow).fits == slow


def test_a_snapshot_tells_of_all_nodes(world: World) -> None:
    for shape in (make_shape(30), other(10)):
        answers = world.node_verdicts.snapshot(shape)
        assert set(answers) == {A, B}
        assert isinstance(answers[A], Refused) == (shape == make_shape(30))


def test_a_pod_that_is_labelled_otherwise_changes_its_node(world: World) -> None:
    """Ledgers are equal whatever labels pods have, and who may be beside a pod depends on them."""
    made = world.add_pod(3, labels={"app": "a"})
    world.see()
    assert world.bind(made).error == ""
    world.see()
    world.edit_pod(made, lambda pod: pod["metadata"].update(labels={"app": "b"}))
    world.see()
    (held,) = world.ledger().allocations.values()
    assert held.labels == {"app": "b"}


@pytest.mark.parametrize("seed", range(5))
def test_what_a_list_had_free_is_right_whatever_changes(seed: int) -> None:
    chance, world = random.Random(seed), World()
    for i in range(6):
        world.add_node(f"node-{i}", *[24] * chance.choice([1, 2]))
    world.list_all()
    every = [NodeName(f"node-{i}") for i in range(6)]
    lists = [NameList(b"", every), NameList(b"", every[2:])]
    remembered = 0
    for step in range(300):
        match chance.randrange(6):
            case 0:
                container = make_container(gpu_mem=chance.choice([1, 2, 9]))
                container["resources"]["limits"][names.GPU_CORE] = str(chance.choice([0, 5, 40]))
                pod = {"metadata": {"name": f"pod-{step}"}, "spec": {"containers": [container]}}
                world.bind(world.api.seed(TEAM, pod), chance.choice(every))
            case 1 if gone := [pod["metadata"]["name"] for pod in world.api.objects(PODS)]:
                world.api.vanish(f"{TEAM}/{chance.choice(gone)}")
            case 2 if step % 5 == 0 and len(world.api.objects(NODES)) == 6:
                world.api.vanish(f"{NODES}/node-{chance.randrange(6)}")
            case 3 if len(world.api.objects(NODES)) == 5:
                [gone_node] = set(every) - {node["metadata"]["name"] for node in world.api.objects(NODES)}
                world.add_node(gone_node, 24)
        world.see()
        known, percent = chance.choice(lists), chance.choice([0, 10, 30])
        [asked] = make_shape(chance.choice([1, 3, 8])).containers
        shape = RequestShape(containers=(replace(asked, compute_percent=percent),))
        remembered += known.least.get(percent or None, (0, 0))[1] >= asked.memory_mib
        found = world.node_verdicts.filter(shape, known.names, known=known)
        assert found == world.node_verdicts.filter(shape, known.names)
    assert remembered > 20


def test_where_all_nodes_of_a_list_had_enough_only_changed_ones_are_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, decide = list[Sequence[NodeName]](), filtering.decide_simple

    def counted(names: Sequence[NodeName], mib: int, rooms: Rooms, unit: MemoryUnit) -> FilterResult:
        looked.append(names)
        return decide(names, mib, rooms, unit)

    monkeypatch.setattr(filtering, "decide_simple", counted)
    known = NameList(b"", [A, B])
    for gib, times in ((8, 1), (8, 1), (2, 1), (9, 2), (8, 2)):
        assert world.node_verdicts.filter(make_shape(gib), known.names, known=known).fits == [A, B]
        assert len(looked) == times
    for _ in range(2):
        assert world.bind(world.add_pod(8)).error == ""
    assert world.node_verdicts.filter(make_shape(2), known.names, known=known).fits == [A, B]
    assert len(looked) == 2
    assert world.node_verdicts.filter(make_shape(3), known.names, known=known).fits == [B]
    assert len(looked) == 3
