"""The leader's chores cost little, however many pods wait."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from controller.reconcile import in_doubt_bindings
from controller.reconcile import waiting as chores
from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.request import RequestShape
from gpushare.model.verdict import RefusalReason, Refused
from testing.builders import make_shape
from testing.controller.world import World

EVENTS = "/api/v1/namespaces/team/events"
GIVEN_UP = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
Answers = dict[NodeName, int | Refused]
A = NodeName("node-a")


def waiting(world: World, gib: int) -> None:
    pod = world.add_pod(gib)
    world.edit_pod(pod, lambda found: found["status"].update(conditions=GIVEN_UP))
    world.see()


def test_many_kinds_of_waiting_pods_take_turns_and_leave_the_schedulers_cache_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    snapshot = world.reconciler.node_verdicts.snapshot

    def counting(shape: RequestShape) -> Answers:
        asked.append(shape.containers[0].memory_mib // 1024)
        return snapshot(shape)

    monkeypatch.setattr(world.reconciler.node_verdicts, "snapshot", counting)
    kinds = range(20, 20 + 3 * chores.MAX_KINDS)
    for gib in kinds:
        waiting(world, gib)
    whole = replace(make_shape(1), only_cdi=True)  # not a simple pod: its verdicts are kept
    kept = world.node_verdicts.answers(whole, [A])
    kept = world.node_verdicts.answers(whole, [A])
    for tick in (1, 2, 3):
        world.reconciler.tick()
        assert len(asked) == tick * chores.MAX_KINDS
    assert sorted(asked) == list(kinds)
    assert world.node_verdicts.answers(whole, [A]) is kept
    world.reconciler.tick()
    assert len(asked) == 4 * chores.MAX_KINDS


def test_judging_stops_when_its_time_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for gib in range(20, 25):
        waiting(world, gib)
    snapshot = world.reconciler.node_verdicts.snapshot

    def slow(shape: RequestShape) -> Answers:
        world.clock.at += chores.JUDGE_S / 2
        return snapshot(shape)

    monkeypatch.setattr(world.reconciler.node_verdicts, "snapshot", slow)
    for told in (2, 4, 5):
        world.reconciler.tick()
        assert len(world.api.objects(EVENTS)) == told


def add_pods(world: World, count: int, **labels: str) -> None:
    """Pods that wait for the GPU of a group."""
    for _ in range(count):
        pod = world.add_pod(3, labels=labels, annotations={names.ANNOTATION_SAME_GPU: "app=web"})
        world.edit_pod(pod, lambda found: found["status"].update(conditions=GIVEN_UP))
    world.see()


def test_whom_pods_want_beside_them_is_looked_up_once_for_each_kind_that_has_its_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    resolve = world.state.resolve

    def counting(shape: RequestShape, labels: Mapping[str, str]) -> RequestShape:
        nonlocal asked
        asked += 1
        return resolve(shape, labels)

    monkeypatch.setattr(world.state, "resolve", counting)
    add_pods(world, 30, app="web")
    add_pods(world, 30, app="guest")
    world.reconciler.tick()
    assert asked == 2
    for gib in range(20, 20 + 2 * chores.MAX_KINDS):
        waiting(world, gib)
    asked = 0
    world.reconciler.tick()
    assert asked == chores.MAX_KINDS


def test_who_may_begin_a_group_is_told_nothing_while_others_do_not(world: World) -> None:
    add_pods(world, 1, app="guest")
    add_pods(world, 1, app="web")
    world.reconciler.tick()
    [told] = world.api.objects(EVENTS)
    assert told["message"].startswith("needs 3 GiB on one GPU")


def add_in_doubt(world: World, count: int) -> None:
    """Bindings of which no one knows what became."""
    for i in range(count):
        pod = world.add_pod(1)
        world.see()
        world.api.fail_next(lambda call: call.path.endswith("/binding"), "lost-request")
        world.bind(pod, "node-a" if i % 2 else "node-b")
    world.clock.at += 130
    world.api.calls.clear()


def test_only_so_many_in_doubt_reservations_are_looked_at_in_one_tick(world: World) -> None:
    add_in_doubt(world, in_doubt_bindings.MAX_READS + 5)
    world.reconciler.tick()
    assert world.api.count("get") == in_doubt_bindings.MAX_READS
    assert world.state.cache.snapshot().unconfirmed == 5
    world.reconciler.tick()
    assert world.state.cache.snapshot().unconfirmed == 0


def test_in_doubt_reservations_are_left_for_later_when_the_api_server_cannot_be_reached(world: World) -> None:
    add_in_doubt(world, 3)
    world.api.fail_next(lambda call: call.verb == "get", "lost-request")
    world.reconciler.tick()
    assert world.api.count("get") == 1
    assert world.state.cache.snapshot().unconfirmed == 3
    world.clock.at += 10
    world.reconciler.tick()
    assert world.state.cache.snapshot().unconfirmed == 0


def test_waiting_pods_are_counted_by_reason(world: World) -> None:
    world.add_pod(2)
    invalid = world.add_pod(2)
    world.edit_pod(invalid, lambda found: found["metadata"].update(annotations={names.ANNOTATION_GPUS: "many"}))
    for gib in (2, 30, 31, 31):
        waiting(world, gib)
    world.reconciler.tick()
    counts = world.reconciler.waiting.counts
    assert counts.keys() == set(chores.REASONS)
    assert {reason: count for reason, count in counts.items() if count} == {
        chores.NOT_TRIED: 1,
        chores.INVALID: 1,
        chores.FITS: 1,
        RefusalReason.INSUFFICIENT_GPU_MEMORY.value: 3,
    }


def test_kinds_of_pods_that_were_not_judged_yet_are_counted_as_such(world: World) -> None:
    for gib in range(30, 30 + chores.MAX_KINDS + 1):
        waiting(world, gib)
    world.reconciler.tick()
    assert world.reconciler.waiting.counts[chores.NOT_JUDGED] == 1
    world.reconciler.tick()
    assert world.reconciler.waiting.counts[chores.NOT_JUDGED] == 0
