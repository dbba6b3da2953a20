"""Whom to evict: on the GPU that helps, the least important, and no one in vain."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from controller import preemption
from controller.preemption import Decision, Preemptor, Ruling, Victims
from gpushare.cluster.budgets import Budget
from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName, PodUid
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import Grant, LedgerOrRefused, NodeLedger, RefusalReason, Refused, Verdict
from gpushare.model.request import Affinity, LabelSelector, PodRequest, RequestShape
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from testing.builders import (
    make_allocation,
    make_container,
    make_gpu,
    make_grant,
    make_inventory,
    make_pod,
    make_ref,
    make_shape,
)
from testing.controller.world import World, uid_of
from tests.unit.controller.conftest import lines

EVERYBODY = LabelSelector((), "")


def pod(name: str, *grants: Grant, **fields: Any) -> Bound:
    """A pod on the node; without grants it holds nothing."""
    held = replace(make_allocation(name, *grants), labels=fields.get("labels", {})) if grants else None
    return replace(Bound(ref=make_ref(name), node=NodeName("node-a"), allocation=held), **fields)


def on(gpu: int, gib: int) -> Grant:
    return make_grant(gpu, gib=gib)


def held(name: str, gpu: int, gib: int, priority: int, **fields: Any) -> Bound:
    return pod(name, on(gpu, gib), priority=priority, **fields)


def make_node_ledger(*pods: Bound, sizes: Sequence[int] = (10, 10)) -> NodeLedger:
    return NodeLedger.of(make_inventory(*sizes), [each.allocation for each in pods if each.allocation is not None])


def budget(
    allowed: int,
    *,
    selector: LabelSelector | None = EVERYBODY,
    namespace: str = "default",
    disrupted: Sequence[str] = (),
) -> Budget:
    return Budget(namespace=namespace, name="pdb", selector=selector, allowed=allowed, disrupted=frozenset(disrupted))


def decide(
    shape: RequestShape,
    pods: Sequence[Bound],
    *given: str,
    violations: int = 0,
    known: Sequence[Budget] = (),
    ledger: LedgerOrRefused | None = None,
    sizes: Sequence[int] = (10, 10),
) -> Decision:
    preemptor = Preemptor(request=PodRequest(pod=make_ref("preemptor"), shape=shape), priority=100)
    victims = Victims(pods=tuple(PodUid(f"uid-{name}") for name in given), violations=violations)
    return preemption.decide(preemptor, victims, ledger or make_node_ledger(*pods, sizes=sizes), pods, known)


def chosen(*args: Any, **fields: Any) -> list[str]:
    """Names of the victims; a star stands for a dropped node, a plus for the scheduler's own list."""
    found = decide(*args, **fields)
    names = [uid.removeprefix("uid-") for uid in found.victims.pods]
    match found.ruling:
        case Ruling.CHOSEN:
            assert names
            return names
        case Ruling.AS_GIVEN:
            return ["+", *names]
        case Ruling.DROPPED:
            assert not names
            return ["*"]


# Which pods help.

SMALL, BIG = held("small", 0, 4, 1), held("big", 1, 8, 1)


@pytest.mark.parametrize(
    ("asked", "pods", "given", "expected"),
    [
        # the right victim stays
        ([8], [SMALL, BIG], ["big"], ["big"]),
        # the scheduler's own choice is kept where it helps, although 10 - 1 GiB would do as well
        ([8], [held("wrong", 0, 9, 50), held("right", 1, 4, 1), held("vip", 0, 1, 100)], ["wrong"], ["wrong"]),
        # a victim beside somebody who stays is dropped
        ([8], [held("wrong", 0, 4, 1), held("vip", 0, 4, 100), held("right", 1, 4, 50)], ["wrong"], ["right"]),
        # two victims on one GPU
        ([9], [held("a", 0, 4, 2), held("b", 0, 4, 1), held("c", 1, 4, 100)], ["b", "c"], ["a", "b"]),
        # the scheduler's victims all stay if they are enough, because it has spared whom it could
        ([6], [held("a", 0, 5, 2), held("b", 1, 5, 1)], ["a", "cpu", "b"], ["cpu", "a", "b"]),
        # victims that hold GPUs do not stay where others are chosen
        ([9], [held("a", 0, 5, 2), held("b", 1, 5, 1), held("vip", 0, 2, 100)], ["a", "cpu"], ["cpu", "b"]),
        # of two others on two GPUs only one is needed
        ([6], [held("a", 0, 5, 2), held("b", 1, 5, 1)], ["cpu"], ["b", "cpu"]),
        # what has no GPU stays, because it makes room for something else
        ([6], [SMALL, held("big", 1, 8, 1), held("vip", 0, 4, 100)], ["cpu", "small"], ["cpu", "small"]),
        # what has no GPU stays also where other GPU pods are chosen
        ([9], [SMALL, held("vip", 0, 4, 100), held("big", 1, 8, 1)], ["cpu", "small"], ["big", "cpu"]),
        # a pod that fits already needs the victims for something else
        ([2], [SMALL, BIG], ["cpu", "big"], ["+", "cpu", "big"]),
    ],
)
def test_only_pods_that_help_are_evicted(asked: Any, pods: Sequence[Bound], given: Any, expected: Any) -> None:
    assert chosen(make_shape(*asked), pods, *given) == expected


# Who goes first.


def test_a_protected_pod_is_kept_if_another_helps() -> None:
    pods = [held("a", 0, 9, 1), held("b", 1, 9, 50, labels={"app": "free"})]
    protect = budget(0, selector=LabelSelector.parse("app!=free"))
    assert chosen(make_shape(9), pods, known=[protect]) == ["b"]
    assert chosen(make_shape(9), pods, "a", known=[protect]) == ["a"]  # the scheduler has its reasons


def test_a_budget_is_used_up_by_the_least_important_and_not_by_who_is_going_anyway() -> None:
    pods = [held(name, i, 9, 9 - i) for i, name in enumerate("abc")]
    found = decide(make_shape(9), pods, known=[budget(1)], sizes=(10, 10, 10))
    assert (found.victims.pods, found.victims.violations) == (("uid-c",), 0)
    pods = [held("a", 0, 9, 50, deleting=True), held("b", 1, 9, 1)]
    found = decide(make_shape(9), pods, "b", known=[budget(0)])
    assert (found.victims.pods, found.victims.violations) == (("uid-a",), 0)


@pytest.mark.parametrize(
    ("known", "violations"),
    [
        ([], 0),
        ([budget(2)], 0),
        ([budget(1)], 1),
        ([budget(-1)], 2),
        ([budget(1), budget(0)], 2),
        ([budget(0, disrupted=["a"])], 1),
        ([budget(0, namespace="other")], 0),
        ([budget(0, selector=None)], 0),
        ([budget(0, selector=LabelSelector.parse("app=web"))], 1),
    ],
)
def test_broken_budgets_are_counted(known: Sequence[Budget], violations: int) -> None:
    pods = [held("a", 0, 9, 2), held("b", 1, 9, 1, labels={"app": "web"})]
    assert decide(make_shape((9, 2)), pods, known=known).victims.violations == violations


@pytest.mark.parametrize(
    ("given", "named", "violations"),
    [
        (["cpu", "wrong"], 2, 2),  # one of them is the pod without GPUs, another the wrong one: both counted there
        (["cpu", "wrong"], 1, 1),  # the wrong one alone; the right one breaks the budget as well
        (["cpu", "wrong"], 0, 1),
        (["cpu", "wrong"], 9, 2),
        (["wrong"], 1, 1),
    ],
)
def test_the_scheduler_counts_budgets_of_other_pods(given: Sequence[str], named: int, violations: int) -> None:
    pods = [held("wrong", 0, 4, 1), held("vip", 0, 4, 100), held("right", 1, 4, 50)]
    found = decide(make_shape(8), pods, *given, violations=named, known=[budget(0)])
    assert "uid-right" in found.victims.pods
    assert found.victims.violations == violations


AGES = [
    held("old", 0, 9, 1, created="2026-01-01T00:00:00Z"),
    held("young", 1, 9, 1, created="2026-01-02T00:00:00Z"),
    held("vip", 2, 9, 2, created="2026-01-03T00:00:00Z"),
]
RANKS = [held("low", 0, 9, 1), held("middle", 1, 9, 5), pod("late", priority=7), held("high", 2, 9, 9)]
"""The one that is late is on the node, but without GPUs."""


@pytest.mark.parametrize(
    ("asked", "pods", "given", "expected"),
    [
        # the lowest priority goes first, then the youngest
        (9, AGES, [], ["young"]),
        ((9, 2), AGES, [], ["old", "young"]),
        # the most important victim is named first
        ((9, 3), RANKS, ["low"], ["high", "middle", "low"]),
        ((9, 3), RANKS, ["late", "cpu", "low"], ["high", "late", "cpu", "middle", "low"]),
        ((9, 3), RANKS, ["cpu", "middle"], ["high", "cpu", "middle", "low"]),
        ((9, 3), RANKS, ["cpu", "disk"], ["high", "middle", "low", "cpu", "disk"]),
    ],
)
def test_the_least_important_go_first_and_are_named_last(asked: Any, pods: Any, given: Any, expected: Any) -> None:
    assert chosen(make_shape(asked), pods, *given, sizes=(10, 10, 10)) == expected


def test_of_those_whose_gpu_is_wanted_all_stay_or_as_many_as_can() -> None:
    web = {"app": "web"}

    def beside(gib: int) -> RequestShape:
        return replace(make_shape(gib), affinity=Affinity(namespace="default", same=LabelSelector.parse("app=web")))

    pods = [held("web", 0, 4, 1, labels=web), held("a", 0, 4, 2), held("other", 1, 9, 1)]
    assert chosen(beside(6), pods, "web") == chosen(beside(6), pods, "web", "a") == ["a"]
    assert chosen(beside(7), pods, "web") == ["*"]
    pods = [held("x", 0, 5, 1, labels=web), held("y", 0, 5, 2, labels=web)]
    assert chosen(beside(5), pods, "x", sizes=(10,)) == ["x"]


# Nodes where no one can tell.


def test_a_node_without_a_ledger_or_whose_gpus_take_no_new_pods_is_dropped() -> None:
    ledger = Refused(RefusalReason.NO_INVENTORY, "no GPUs", permanent=True)
    assert chosen(make_shape(3), [], "cpu", ledger=ledger) == ["*"]
    inventory, a = replace(make_inventory(), gpus=(make_gpu(0, 10, health=GpuHealth.UNHEALTHY),)), pod("a", on(0, 9))
    assert a.allocation is not None
    assert chosen(make_shape(3), [a], "a", ledger=NodeLedger.of(inventory, [a.allocation])) == ["*"]


def test_a_choice_that_is_not_yet_seen_on_its_pod_cannot_be_evicted() -> None:
    ledger = NodeLedger.of(make_inventory(10), [make_allocation("sent", on(0, 9))])
    assert chosen(make_shape(9), [], "sent", "cpu", ledger=ledger) == ["*"]
    ledger = ledger.with_allocation(make_allocation("a", on(0, 1)))
    assert chosen(make_shape(1), [held("a", 0, 1, 1)], "sent", "cpu", ledger=ledger) == ["a", "cpu"]


def test_no_one_is_evicted_on_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    def hard(shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Verdict:
        too_long = Refused(RefusalReason.SEARCH_TOO_LONG, "too long")
        return too_long if ledger.allocations else place(shape, ledger, policies)

    search = Mock(side_effect=hard)
    monkeypatch.setattr(preemption, "place", search)
    pods = [held(f"p{i}", i % 2, 2, 1) for i in range(8)]
    assert chosen(make_shape(4, 3), pods, "p0") == ["*"]
    assert search.call_count == preemption.MAX_LONG_SEARCHES + 1


def running(world: World, *gib: int, node: str = "node-a", priority: int = 0) -> JsonObject:
    """A pod that the extender has bound."""
    pod = world.add_bound(*gib, node=node)
    world.edit_pod(pod, lambda found: found["spec"].update(priority=priority))
    world.see()
    return pod


def wanting(world: World, *gib: int, priority: int = 100) -> JsonObject:
    pod = world.add_pod(*gib)
    pod["spec"]["priority"] = priority
    return pod


def meta(**nodes: Sequence[JsonObject | str]) -> dict[str, Any]:
    """The scheduler's choice by UIDs; underscores stand for hyphens."""
    return {
        name.replace("_", "-"): {"Pods": [{"UID": _uid(pod)} for pod in pods], "NumPDBViolations": 0}
        for name, pods in nodes.items()
    }


def _uid(pod: JsonObject | str) -> str:
    return pod if isinstance(pod, str) else uid_of(pod)


def ask(world: World, pod: JsonObject, nodes: dict[str, Any]) -> Any:
    return world.post("preempt", {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": nodes})[
        "NodeNameToMetaVictims"
    ]


def test_victims_on_the_wrong_gpu_are_replaced_and_hopeless_nodes_dropped(world: World) -> None:
    running(world, 5, priority=100)
    wrong = running(world, 4, priority=1)  # on the GPU where an equal has 5 GiB
    right = running(world, 7, priority=2)
    equal = running(world, 9, node="node-b", priority=100)
    small = running(world, 9, node="node-b", priority=100)
    answer = ask(world, wanting(world, 8), meta(node_a=[wrong], node_b=[equal, small], node_x=["u"]))
    assert answer == meta(node_a=[right])


@pytest.mark.parametrize("unready", ["", "this replica does not lead"])
def test_a_pod_without_a_request_preempts_as_the_scheduler_says(world: World, unready: str) -> None:
    world.unready = unready
    pod = make_pod(make_container())
    assert ask(world, pod, meta(x=["a", "b"], y=[])) == meta(x=["a", "b"])


def test_a_pod_that_may_be_bound_there_leaves_the_victims_as_they_are(world: World) -> None:
    pod = wanting(world, 10)
    world.bind(pod)
    assert ask(world, pod, meta(node_a=["cpu"])) == meta(node_a=["cpu"])


def test_a_protected_pod_is_spared_and_counted(world: World) -> None:
    spared, other = running(world, 9, priority=1), running(world, 9, priority=2)
    known = {"a": budget(0, namespace="team", disrupted=[other["metadata"]["name"]])}
    pod = wanting(world, 9)
    world.budgets.by_key = known
    assert ask(world, pod, meta(node_a=[])) == meta(node_a=[other])
    world.budgets.by_key = {**known, "b": budget(0, namespace="team")}
    assert ask(world, pod, meta(node_a=[spared]))["node-a"]["NumPDBViolations"] == 1


def test_a_group_that_no_one_has_begun_is_begun_where_there_is_room(world: World) -> None:
    victim = running(world, 9, priority=1)
    running(world, 9, priority=100)
    pod = wanting(world, 9)
    pod["metadata"] |= {"labels": {"app": "web"}, "annotations": {"gpushare.dev/same-gpu-as": "app=web"}}
    assert ask(world, pod, meta(node_a=[victim])) == meta(node_a=[victim])
    pod["metadata"]["labels"] = {}
    assert ask(world, pod, meta(node_a=[victim])) == {}


def test_garbage_and_a_bug_evict_no_one_and_are_logged(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = running(world, 9, priority=1)
    assert ask(world, {"metadata": {}, "spec": []}, meta(node_a=[victim])) == {}
    monkeypatch.setattr("controller.preemption.decide", lambda *_: 1 / 0)
    assert ask(world, wanting(world, 10), meta(node_a=[victim])) == {}
    assert [line["error"] for line in lines(caplog, "preempt failed")] == [
        "Pod.spec: expected an object, found a list",
        "gpushare controller: internal error: ZeroDivisionError",
    ]


def test_nodes_for_which_there_is_no_time_are_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    victims = {node: running(world, 9, node=node, priority=1) for node in ("node-a", "node-b")}
    for node in victims:
        running(world, 9, node=node, priority=100)
    decide = preemption.decide

    def slow(*args: Any) -> Any:
        world.clock.at += preemption.BUDGET_S
        return decide(*args)

    monkeypatch.setattr("controller.preemption.decide", slow)
    asked = wanting(world, 8)
    answer = ask(world, asked, meta(node_a=[victims["node-a"]], node_b=[victims["node-b"]]))
    assert answer == meta(node_a=[victims["node-a"]])
    assert world.counted()["gpushare_preempt_nodes_total", "late"] == 1


def test_what_was_decided_is_counted_and_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    running(world, 5, priority=100)
    wrong, right = running(world, 4, priority=1), running(world, 7, priority=2)
    pod = wanting(world, 8)
    with caplog.at_level(logging.INFO):
        ask(world, pod, meta(node_a=["cpu", wrong], node_b=["disk"], node_x=["u", "v"]))
        ask(world, wanting(world, 11), meta(node_b=["cpu"]))
        world.client().post("/gpushare-scheduler/preempt", b"x")
    found = world.counted()
    expected = {
        ("extender_requests_total", "nodes", "preempt"): 1,
        ("extender_requests_total", "no-nodes", "preempt"): 1,
        ("extender_requests_total", "invalid", "preempt"): 1,
        ("preempt_nodes_total", "chosen"): 1,
        ("preempt_nodes_total", "as-given"): 1,
        ("preempt_nodes_total", "dropped"): 2,
        ("preempt_victims_total", "kept"): 2,
        ("preempt_victims_total", "added"): 1,
        ("preempt_victims_total", "dropped"): 4,
    }
    assert {key: found[f"gpushare_{key[0]}", *key[1:]] for key in expected} == expected
    first, _ = lines(caplog, "preempt")
    assert first == {
        "pod": f"team/{pod['metadata']['name']}",
        "uid": uid_of(pod),
        "priority": 100,
        "nodes": {"chosen": 1, "as-given": 1, "dropped": 1},
        "victims": {"kept": 2, "dropped": 3, "added": 1},
        "chosen": f"node-a: {uid_of(right)}, cpu",
    }
