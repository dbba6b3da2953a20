"""Answers are kept for nodes that have not changed, and only for those; only nodes that were asked for are judged."""

import random
import threading
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import pytest

from controller import background
from controller.background import Background
from controller.extender import filter as filtering
from controller.extender.name_lists import NameList
from controller.rooms import Rooms
from gpushare import names
from gpushare.cluster import verdicts
from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.allocation import RefusalReason, Refused, Verdict
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.placement.judge import Judge
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare.placement.room import Room
from gpushare.units import GIB
from testing.builders import make_container, make_inventory, make_shape
from testing.clock import ManualClock, ending
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


EACH_KIND = pytest.mark.parametrize(
    "shape", [make_shape(3), compute(10), large(10), other(10)], ids=["simple", "compute", "large", "other"]
)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the nodes that were judged again."""
    names: list[str] = []

    def counting(shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Verdict:
        names.append(ledger.inventory.node)
        return place(shape, ledger, policies)

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", counting)
    return names


def test_only_changed_nodes_are_judged_again(world: World, judged: list[str]) -> None:
    shape = other(10)
    assert world.node_verdicts.filter(shape, [B]).fits == [B]
    assert judged == ["node-b"]
    for _ in range(2):
        assert world.node_verdicts.filter(shape, [B, A]).fits == [B, A]
        assert judged == ["node-b", "node-a"]
    world.bind(world.add_pod(3))
    judged.clear()
    world.node_verdicts.answers(shape, [A, B])
    assert judged == ["node-a"]


@EACH_KIND
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
    ledger, sequence = world.state.index.ledgers()[A], world.state.index.sequence
    judged.clear()
    world.see()
    assert [type(record) for record in world.snapshot().pods] == [Bound]
    assert world.state.index.ledgers()[A] is ledger
    assert world.state.index.sequence == sequence
    world.node_verdicts.answers(other(10), [A])
    assert judged == []


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
def test_one_container_needs_no_search(world: World, judged: list[str], shape: RequestShape, refusal: str) -> None:
    assert world.node_verdicts.filter(shape, [A, B]).fits == [A, B]
    for _ in range(2):
        world.add_bound(8)
    judged.clear()
    found = world.node_verdicts.filter(shape, [A, B])
    assert found.fits == [B]
    assert found.failed[A].startswith(refusal)
    assert world.node_verdicts.filter(shape, [A]).failed == found.failed
    assert judged == []


def with_most_of_the_compute(pod: JsonObject) -> None:
    pod["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-core.percentage"] = "91"


@pytest.mark.parametrize(
    "shape",
    [compute(10), compute(5), compute(8), asking(memory_mib=0, memory_percent=50, compute_percent=8)],
    ids=["more", "less", "between", "part"],
)
def test_no_plain_gpu_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch, shape: RequestShape) -> None:
    world.node_verdicts.filter(shape, [A, B])
    for _ in range(2):
        pod = world.add_pod(3)
        world.edit_pod(pod, with_most_of_the_compute)
        assert world.bind(pod).error == ""

    monkeypatch.setattr(Judge, "fits", lambda *_: pytest.fail("looked at"))
    result = world.node_verdicts.filter(shape, [A, B, C])
    assert result.fits == ([B] if shape.containers[0].compute_percent == 10 else [A, B])
    assert set(result.failed) == {A, B, C} - set(result.fits)


def test_what_has_compute_left_is_kept_in_few_steps(world: World) -> None:
    for percent in range(101):
        world.node_verdicts.filter(compute(percent) if percent else make_shape(3), [A, B])
    assert set(world.state.index.rooms.with_compute) == set(range(5, 101, 5))
    world.api.vanish(f"{NODES}/node-a")
    world.see()
    assert [list(each) for each in world.state.index.rooms.with_compute.values()] == [[B]] * 20


def test_gpus_of_another_kind_are_told_by_what_is_kept_of_nodes(world: World, judged: list[str]) -> None:
    found = world.node_verdicts.filter(large(11 * 1024), [A])
    assert found.unresolvable[A].startswith(
        "needs a GPU with at least 11264 MiB in all; GPUs of node-a: 0: too small ("
    )
    assert judged == []


def test_a_verdict_that_is_outdated_is_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Verdict:
        verdict = place(shape, ledger, policies)
        monkeypatch.setattr("gpushare.cluster.node_ledger.place", place)
        for _ in range(2):
            assert world.bind(world.add_pod(9)).error == ""
        world.node_verdicts.answers(shape, [B])  # another request, which has seen the change
        return verdict

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", meanwhile)
    assert world.node_verdicts.filter(other(10), [A]).fits == [A]
    assert world.node_verdicts.filter(other(10), [A]).fits == []


@EACH_KIND
def test_a_question_is_answered_whole_while_others_notice_changes(world: World, shape: RequestShape) -> None:
    """A node that another request had just found changed was unknown to this one."""
    world.node_verdicts.answers(shape, [A, B])
    answers = world.node_verdicts.answers(shape, [A, B])
    before = answers.get(A)
    assert before is not None
    world.bind(world.add_pod(3))
    world.node_verdicts.answers(shape, [B])
    assert answers.get(A) is before


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

    def judge(shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Verdict:
        world.clock.at += 1
        return place(shape, ledger, policies)

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", judge)
    for name in (C, D):
        world.add_node(name, 10)
    world.see()
    return [A, B, C, D]


def test_a_search_that_takes_long_is_continued_at_the_next_try(world: World, slow: list[NodeName]) -> None:
    assert world.node_verdicts.filter(other(10), slow).fits == slow  # never refused for want of time
    shape = make_shape(3, 2)
    first = world.node_verdicts.filter(shape, slow)
    assert first.fits == [A, B]
    assert set(first.failed) == {C, D}
    assert first.failed[D].endswith("takes long and has not ended yet; it goes on at the next try")
    assert world.node_verdicts.filter(shape, slow).fits == slow


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


def test_of_a_list_only_changed_nodes_are_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Mock(wraps=filtering.decide_simple)
    monkeypatch.setattr(filtering, "decide_simple", look)
    known = NameList(b"", [A, B])
    for gib, times in ((8, 1), (8, 1), (2, 1), (9, 2), (8, 2)):
        assert world.node_verdicts.filter(make_shape(gib), known.names, known=known).fits == [A, B]
        assert look.call_count == times
    for _ in range(2):
        world.add_bound(8)
    assert world.node_verdicts.filter(make_shape(2), known.names, known=known).fits == [A, B]
    assert look.call_count == 2
    assert world.node_verdicts.filter(make_shape(3), known.names, known=known).fits == [B]
    assert look.call_count == 3


FULL = Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, "full")
NEVER = Refused(RefusalReason.TOO_FEW_GPUS, "never", permanent=True)
ANSWERS: dict[NodeName, int | Refused] = {A: 0, B: FULL, C: NEVER}


def test_every_node_is_answered_for_in_one_place() -> None:
    result = filtering.decide([A, B, C, D], ANSWERS, frozenset())
    assert result.fits == [A]
    assert result.failed == {
        B: "full",
        D: "node node-d is unknown to the gpushare controller; it may have been added a moment ago",
    }
    assert result.unresolvable == {C: "never"}
    assert filtering.decide([A, B], ANSWERS, frozenset({B})).fits == [A, B]  # where memory is reserved for this pod


@pytest.mark.parametrize("name", ['a"b', "a\\b", "ä", "a\n", ""])
def test_refusals_of_simple_pods_are_json_whatever_nodes_are_called(name: str) -> None:
    rooms, asked = Rooms(), [NodeName(name), NodeName(f"{name}-full"), A, B]
    for each in asked[:3]:
        rooms.set(each, Room(2048, 4096, f"; left on {each}", f"; never on {each}", (), make_inventory(4)))
    rooms.set(B, Refused(RefusalReason.NO_INVENTORY, 'no "inventory"', permanent=True))
    for gib, expected in ((3, "left"), (5, "never")):
        result = filtering.decide_simple(asked, gib * 1024, rooms, GIB)
        texts = {each: f"needs {gib} GiB on one GPU; {expected} on {each}" for each in asked[:3]}
        failed, unresolvable = (texts, {}) if gib == 3 else ({}, texts)
        assert (result.fits, result.failed, result.unresolvable) == ([], failed, {**unresolvable, B: 'no "inventory"'})
        assert (len(result.failed), len(result.unresolvable)) == (len(failed), len(unresolvable) + 1)
    assert filtering.decide_simple(asked, 1024, rooms, GIB).fits == asked[:3]


MANY = [NodeName(f"node-{i}") for i in range(2 * background.SLICE + 1)]


@dataclass
class SlowJudge:
    """Takes 0.1 s for each node."""

    clock: ManualClock = field(default_factory=ManualClock)
    asked: list[tuple[RequestShape, list[NodeName]]] = field(default_factory=list)

    def __call__(self, shape: RequestShape, names: list[NodeName]) -> None:
        self.asked.append((shape, names))
        self.clock.at += 0.1 * len(names)


def several(least_mib: int) -> RequestShape:
    """A pod of two containers."""
    shape = make_shape(1, 2)
    return replace(shape, gpus=replace(shape.gpus, min_memory_mib=least_mib))


def test_all_nodes_are_judged_a_few_at_a_time() -> None:
    judge = SlowJudge()
    made = Background(judge, MANY.copy, judge.clock)
    assert not made.tick()
    made.add(several(1))
    made.add(several(1))
    while made.tick():
        pass
    assert sorted(name for _, names in judge.asked for name in names) == sorted(MANY)
    assert [len(names) for _, names in judge.asked] == [background.SLICE, background.SLICE, 1]


def test_of_many_kinds_the_newest_are_judged() -> None:
    judge = SlowJudge()
    made = Background(judge, MANY[:1].copy, judge.clock)
    kinds = [several(i) for i in range(1, background.MAX_KINDS + 3)]
    for kind in kinds:
        made.add(kind)
    while made.tick():
        pass
    assert [shape for shape, _ in judge.asked] == kinds[2:]


def test_a_pause_three_times_as_long_follows() -> None:
    stop = threading.Event()
    clock = ending(stop, 2)
    made = Background(SlowJudge(clock), MANY[:10].copy, clock)
    made.add(several(1))
    made.run(stop)
    assert clock.waits == pytest.approx([3.0, 1.0])


def test_a_bug_does_not_end_the_background(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    clock = ending(stop, 2)
    made: Background[RequestShape] = Background(lambda _, __: 1 / 0, MANY.copy, clock)
    made.add(several(1))
    made.run(stop)
    assert clock.waits == [1.0, 1.0]
    assert "background failed" in caplog.messages


def test_what_was_not_asked_for_is_kept_for_the_next_request(world: World) -> None:
    shape = several(1)
    world.node_verdicts.filter(shape, [NodeName("node-a")])
    assert world.node_verdicts.background.tick()
    assert not world.node_verdicts.background.tick()
    assert set(world.node_verdicts.answers(shape, [])) == {"node-a", "node-b"}


def test_nothing_is_left_of_simple_pods_and_of_questions_about_all_nodes(world: World) -> None:
    world.node_verdicts.filter(make_shape(3), [NodeName("node-a")])
    world.node_verdicts.answers(make_shape(3), [NodeName("node-a")])
    world.node_verdicts.filter(several(1), [NodeName("node-a"), NodeName("node-b")])
    assert not world.node_verdicts.background.tick()


def test_a_kind_of_pod_that_is_forgotten_is_left_alone(world: World) -> None:
    world.node_verdicts._judge(several(1), [NodeName("node-a")])
    assert several(1) not in world.node_verdicts._cache
