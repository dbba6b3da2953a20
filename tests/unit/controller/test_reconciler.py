"""The leader's chores, against the fake API server."""

import threading
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import Mock

import pytest

from controller.index import Snapshot
from controller.reconcile import loop, waiting
from controller.reconcile.advice import REASON_UNSCHEDULABLE, Tell
from controller.reconcile.waiting import MAX_ACTIONS, Note, Nudge
from gpushare import names
from gpushare.cluster.pod_records import Pending
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import EventType, JsonObject
from gpushare.model.ledger import RefusalReason, Refused
from gpushare.model.request import PodRequest, RequestShape
from gpushare.placement import explain
from gpushare.wire import pods as pods_wire
from testing.builders import make_ledger, make_ref, make_shape
from testing.controller.bypassing import EVENTS, add_bypassed, requests, said, tick
from testing.controller.world import World, is_binding, request_of
from testing.fakes.kube import FakeKube


def test_a_waiting_pod_is_told_why_with_numbers(world: World) -> None:
    pod = world.add_waiting(11)
    world.reconciler.tick()
    world.reconciler.tick()
    tail = "10, 10 GiB (its largest GPU has 10 GiB in all)"
    message = f"needs 11 GiB on one GPU; free per GPU on node-a: {tail}; free per GPU on node-b: {tail}"
    assert said(world) == [("GpuShareUnschedulable", message)]
    (event,) = world.api.objects(EVENTS)
    assert event["type"] == "Warning"
    assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
    assert event["source"] == {"component": "gpushare-controller"}


def test_only_so_many_pods_are_cared_for_in_one_tick(world: World) -> None:
    for _ in range(MAX_ACTIONS + 5):
        world.add_waiting(11)
    world.reconciler.tick()
    assert len(said(world)) == MAX_ACTIONS
    world.reconciler.tick()
    assert len(said(world)) == MAX_ACTIONS + 5


def test_an_event_that_cannot_be_posted_is_only_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.add_waiting(11)
    world.api.fail_next(lambda call: call.verb == "create", kube.ForbiddenError("events is forbidden"))
    world.reconciler.tick()
    assert "event failed" in caplog.messages


def test_a_pod_whose_allocation_cannot_be_read_is_told_once(world: World) -> None:
    add_bypassed(world, 3, annotations={names.ANNOTATION_ALLOCATION: "[]"})
    world.see()
    for _ in range(2):
        world.reconciler.tick()
    [(reason, message)] = said(world)
    assert reason == "GpuShareUnreadableAllocation"
    assert message.startswith("what this pod holds cannot be read, so its node takes no new pods: annotation ")
    assert message.endswith(" found None; delete it, or install the version of gpushare that bound it")
    counted = world.add_bound(3, node="node-b")
    unreadable = {names.ANNOTATION_ALLOCATION: "[]"}
    world.edit_pod(counted, lambda found: found["metadata"]["annotations"].update(unreadable))
    tick(world)
    (_, (reason, message)) = said(world)
    told = "its allocation cannot be read and is counted from its other annotations: annotation gpushare.dev/alloc"
    assert (reason, message.startswith(told)) == ("GpuShareUnreadableAllocation", True)


def test_the_ledger_is_audited(world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    world.reconciler.tick()
    assert world.reconciler.audit_differences == 0
    monkeypatch.setattr(loop, "audit", lambda *_: ["node x: missing"])
    world.reconciler.tick()
    assert world.reconciler.audit_differences == 0
    world.after(60)
    assert world.reconciler.audit_differences == 1
    assert "ledger differs" in caplog.messages


def test_a_failing_chore_ends_neither_the_loop_nor_the_others(world: World, caplog: pytest.LogCaptureFixture) -> None:
    stop, boom, other = threading.Event(), Mock(side_effect=RuntimeError("boom")), Mock()
    world.clock.on_wait = lambda _at: stop.set() if boom.call_count == 2 else None
    world.reconciler.others = (boom, other)
    world.reconciler.run(stop)
    assert (boom.call_count, other.call_count) == (2, 2)
    assert caplog.messages == ["reconcile failed"] * 2


def test_a_tick_looks_at_one_copy_of_the_cluster_unless_it_takes_long(world: World) -> None:
    seen: list[Snapshot] = []

    def slow(snapshot: Snapshot) -> None:
        seen.append(snapshot)
        world.clock.at += loop.TICK_S / 2

    world.reconciler.others = (slow,) * 4
    world.reconciler.tick()
    assert [snapshot is seen[0] for snapshot in seen] == [True, True, False, False]
    assert seen[2] is seen[3]


Answers = dict[NodeName, Refused | None]
A = NodeName("node-a")


def waiting_for(world: World) -> dict[str, int]:
    """Reason -> pods, all of one namespace."""
    counts = {key: count for key, count in world.reconciler.waiting.counts.items() if count}
    assert {namespace for namespace, _ in counts} <= {"team"}
    return {reason: count for (_, reason), count in counts.items()}


def test_many_kinds_of_waiting_pods_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leave the scheduler's cache alone."""
    snapshot = Mock(wraps=world.reconciler.table.verdicts)
    monkeypatch.setattr(world.reconciler.table, "verdicts", snapshot)
    kinds = range(20, 20 + 3 * waiting.MAX_KINDS)
    for gib in kinds:
        world.add_waiting(gib)
    world.table.filter(make_shape(1), [A])
    (kept,) = world.table._kept.values.values()
    for turns in (1, 2, 3):
        world.reconciler.tick()
        assert snapshot.call_count == turns * waiting.MAX_KINDS
        assert waiting_for(world).get(waiting.NOT_JUDGED, 0) == (3 - turns) * waiting.MAX_KINDS
    assert sorted(call.args[0].containers[0].memory_mib // 1024 for call in snapshot.call_args_list) == list(kinds)
    assert list(world.table._kept.values.values()) == [kept]
    world.reconciler.tick()
    assert snapshot.call_count == 4 * waiting.MAX_KINDS


def test_judging_stops_when_its_time_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for gib in range(20, 25):
        world.add_waiting(gib)
    snapshot = world.reconciler.table.verdicts

    def slow(shape: RequestShape) -> Answers:
        world.clock.at += waiting.JUDGE_S / 2
        return snapshot(shape)

    monkeypatch.setattr(world.reconciler.table, "verdicts", slow)
    for told in (2, 4, 5):
        world.reconciler.tick()
        assert len(world.api.objects(EVENTS)) == told


def test_who_may_begin_a_group_is_told_nothing_while_others_do_not(world: World) -> None:
    for app in ("guest", "web"):
        world.add_waiting(3, labels={"app": app}, annotations={names.ANNOTATION_SAME_GPU: "app=web"})
    world.reconciler.tick()
    [told] = world.api.objects(EVENTS)
    assert told["message"].startswith("needs 3 GiB on one GPU")


def add_in_doubt(world: World, count: int) -> None:
    """Bindings of which no one knows what became."""
    for i in range(count):
        pod = world.add_pod(1)
        world.see()
        world.api.fail_next(is_binding, "lost-request")
        world.bind(pod, "node-a" if i % 2 else "node-b")
    world.clock.at += 130
    world.api.calls.clear()


def test_only_so_many_in_doubt_reservations_are_looked_at_in_one_tick(world: World) -> None:
    add_in_doubt(world, loop.MAX_READS + 5)
    world.reconciler.tick()
    assert (world.api.count("get"), world.state.index.unconfirmed()) == (loop.MAX_READS, 5)
    world.reconciler.tick()
    assert world.state.index.unconfirmed() == 0


def test_in_doubt_reservations_are_left_for_later_when_the_api_server_cannot_be_reached(world: World) -> None:
    add_in_doubt(world, 3)
    world.api.fail_next(lambda call: call.verb == "get", "lost-request")
    world.reconciler.tick()
    assert (world.api.count("get"), world.state.index.unconfirmed()) == (1, 3)
    world.after(10)
    assert world.state.index.unconfirmed() == 0


def test_waiting_pods_are_counted_by_reason(world: World) -> None:
    world.add_pod(2)
    invalid = world.add_pod(2)
    world.edit_pod(invalid, lambda found: found["metadata"].update(annotations={names.ANNOTATION_GPUS: "many"}))
    for gib in (2, 30, 31, 31):
        world.add_waiting(gib)
    world.after(0)
    counts = world.reconciler.waiting.counts
    assert {reason for namespace, reason in counts if namespace == names.OTHERS} == {*waiting.REASONS}
    once, memory = (waiting.NOT_TRIED, waiting.INVALID, waiting.FITS), RefusalReason.INSUFFICIENT_GPU_MEMORY.value
    assert waiting_for(world) == {**dict.fromkeys(once, 1), memory: 3}


REQUEST = PodRequest(pod=make_ref(), shape=make_shape(10))
POD = Pending(ref=make_ref(), request=REQUEST, unschedulable=True)


def step(note: Note, *, fits: bool, now: float, why: str = "full", freed: int = 0) -> tuple[object, Note]:
    return waiting.decide(POD, fits=fits, why=lambda: "" if fits else why, note=note, now=now, freed=freed)


def refused(message: str, *, permanent: bool = False) -> Refused:
    return Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, message, permanent=permanent)


FREE = {"e": 3, "f": 9, "g": 7, "h": 5, "i": 1}


def acted(times: Iterable[int], decide: Callable[[Note, int], tuple[object, Note]]) -> list[int]:
    """When something was done."""
    found, note = [], Note()
    for now in times:
        action, note = decide(note, now)
        if action:
            found.append(now)
    return found


def test_another_reason_is_told_after_a_while_and_then_ever_less_often() -> None:
    every = acted(range(4000), lambda note, now: step(note, fits=False, now=now, why=f"full at {now}"))
    assert every == [0, 60, 180, 420, 900, 1860, 2820, 3780]


def test_the_same_reason_is_told_again_before_its_event_expires() -> None:
    assert acted(range(2701), lambda note, now: step(note, fits=False, now=now)) == [0, 2700]
    action, note = step(Note(), fits=False, now=0)
    assert action == step(note, fits=False, now=2700)[0] == Tell(make_ref(), REASON_UNSCHEDULABLE, "full")


def test_a_pod_that_fits_is_told_what_there_is_to_tell_and_nudged() -> None:
    action, note = waiting.decide(POD, fits=True, why=lambda: "create it again", note=Note(), now=0, freed=0)
    assert action == Tell(make_ref(), REASON_UNSCHEDULABLE, "create it again")
    _, note = step(note, fits=True, now=1)
    assert step(note, fits=True, now=4)[0] == Nudge(make_ref(), "1")


def test_nudges_come_ever_less_often_and_only_when_memory_was_freed() -> None:
    assert acted(range(300), lambda note, now: step(note, fits=True, now=now, freed=now // 100)) == [3, 100, 200]
    every = acted(range(300), lambda note, now: step(note, fits=True, now=now, freed=now))
    assert every == [3, 9, 21, 45, 93, 153, 213, 273]


def test_a_pod_that_stops_to_fit_starts_again() -> None:
    _, note = step(Note(), fits=True, now=0)
    _, note = step(note, fits=False, now=2)
    assert step(note, fits=True, now=4)[0] is None


@pytest.mark.parametrize(("before", "after"), [("", "1"), ("7", "8"), ("x", "1"), ("1000000", "1")])
def test_a_nudge_writes_another_value(before: str, after: str) -> None:
    pod = Pending(ref=make_ref(), request=REQUEST, unschedulable=True, retry=before)
    note = Note(fits_since=0)
    action, _ = waiting.decide(pod, fits=True, why=str, note=note, now=3, freed=1)
    assert action == Nudge(make_ref(), after)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, "the cluster has no nodes"),
        (
            dict.fromkeys("ab", Refused(RefusalReason.NO_INVENTORY, "x", permanent=True)),
            "none of the 2 nodes has reported GPUs; is the gpushare device plugin running?",
        ),
        (
            {
                "a": refused("needs 2 GPUs; a has 1", permanent=True),
                **{name: refused(f"{name} is full") for name in "bcd"},
            },
            "b is full; c is full; d is full; and 1 more node with GPUs",  # those that can never hold it come last
        ),
        (
            {name: refused(f"needs 10 GiB on one GPU; free per GPU on {name}: {FREE[name]} GiB") for name in FREE},
            "needs 10 GiB on one GPU; free per GPU on f: 9 GiB; free per GPU on g: 7 GiB; free per GPU on h: 5 GiB;"
            " and 2 more nodes with GPUs",
        ),
    ],
    ids=["no nodes", "no GPUs", "never", "closest"],
)
def test_the_message_is_about_the_closest_nodes(answers: dict[str, Refused | None], said: str) -> None:
    ledgers = {NodeName(name): make_ledger([free]) for name, free in FREE.items()}
    assert explain.closest({NodeName(name): answer for name, answer in answers.items()}, ledgers) == said


def most_common(*answers: tuple[RefusalReason, bool]) -> RefusalReason:
    return waiting.main_reason(
        {NodeName(f"n{number}"): Refused(reason, "", permanent=stays) for number, (reason, stays) in enumerate(answers)}
    )


def test_a_pod_waits_for_what_most_nodes_lack_that_may_have_it_one_day() -> None:
    memory, healthy = (RefusalReason.INSUFFICIENT_GPU_MEMORY, False), (RefusalReason.NO_HEALTHY_GPU, False)
    few, unknown = (RefusalReason.TOO_FEW_GPUS, True), (RefusalReason.NO_INVENTORY, False)
    assert most_common(memory, healthy, memory, few, few, few) is RefusalReason.INSUFFICIENT_GPU_MEMORY
    assert most_common(few, unknown, unknown) is RefusalReason.TOO_FEW_GPUS
    assert most_common(unknown) is RefusalReason.NO_INVENTORY
    assert most_common() is RefusalReason.NO_INVENTORY


MARK = {names.ANNOTATION_OVERRIDDEN: "c0"}
TAIL = (
    ": NVIDIA_VISIBLE_DEVICES was replaced when the pod was created; a container sees the GPUs that it is given and no"
    " others; remove the variable from the pod's template"
)


def test_each_pod_is_warned_once_of_all_such_containers(world: World) -> None:
    pod = world.add_pod(3, annotations=MARK)
    tick(world)
    assert said(world) == [("GpuShareDevicesOverridden", f"container c0{TAIL}")]
    world.bind(pod)
    world.add_pod(3, annotations={names.ANNOTATION_OVERRIDDEN: "c0,side"})
    tick(world, 60, times=3)
    assert said(world)[1:] == [("GpuShareDevicesOverridden", f"containers c0, side{TAIL}")]


def test_after_a_change_of_leader_only_new_pods_are_warned(world: World) -> None:
    clock = "2026-01-01T00:16:40Z"  # this world's clock begins 1000 seconds after midnight
    for created in ("2026-01-01T00:00:00Z", clock):
        world.bind(world.add_pod(1, annotations=MARK, creationTimestamp=created))
    world.start_controller()
    world.list_all()
    tick(world)
    assert len(said(world)) == 1


def test_only_so_many_are_warned_in_one_tick(world: World) -> None:
    for _ in range(loop.MAX_REPORTS + 2):
        world.add_pod(1, annotations=MARK)
    tick(world)
    assert len(said(world)) == loop.MAX_REPORTS
    tick(world)
    assert len(said(world)) == loop.MAX_REPORTS + 2


def test_a_follower_writes_nothing_at_all(world: World) -> None:
    pod = pods_wire.ref(world.add_pod(3))
    world.leads = False
    for kind in EventType:
        world.writer.post(pod, "Reason", "full", kind)
    world.writer.nudge(pod, "1")
    assert world.writer.delete(pod, "1") is False
    assert requests(world) == []


def test_a_leader_that_falls_while_it_prepares_changes_no_pod(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the token and connecting may take seconds."""
    pod, bypassed_pod = pods_wire.ref(world.add_pod(3)), add_bypassed(world, 3)
    world.see()
    request = request_of(bypassed_pod)
    for verb in ("patch", "delete"):
        monkeypatch.setattr(world.api, verb, lambda *a, verb=verb, **o: leaving(world, verb, *a, **o))
    world.writer.nudge(pod, "1")
    world.leads = True
    assert world.writer.delete(pod, "1") is False
    world.leads = True
    assert late(world, request) == "this replica no longer leads"
    assert (requests(world), world.used()) == ([], {})


def leaving(world: World, verb: str, *args: Any, **options: Any) -> JsonObject:
    world.leads = False
    found: JsonObject = getattr(FakeKube, verb)(world.api, *args, **options)
    return found


def test_who_is_gone_was_not_deleted_and_a_failed_nudge_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    pod = pods_wire.ref(world.add_pod(3))
    world.api.fail_next(lambda call: call.verb == "delete", kube.NotFoundError("gone"))
    assert world.writer.delete(pod, "1") is False
    assert caplog.messages == []
    world.api.fail_next(lambda call: call.verb == "patch", kube.TooManyRequestsError("slow down"))
    world.writer.nudge(pod, "1")
    assert caplog.messages == ["nudge failed"]
    assert world.api.calls[-1].body["metadata"]["uid"] == pod.uid, "not one that was recreated under its name"


def test_a_pod_that_has_its_gpus_or_ended_meanwhile_is_given_none(world: World) -> None:
    pod, ended = world.add_bound(3), add_bypassed(world, 3, node="node-b")
    world.finish(ended)
    world.see()
    assert late(world, request_of(pod)) == "it has its GPUs already, or is on node-a"
    assert isinstance(late(world, request_of(ended), "node-b"), str)
    assert world.api.count("patch") == 0
    assert (world.used(), world.used("node-b")) == ({"GPU-0": 3}, {})


def late(world: World, request: PodRequest, node: str = "node-a") -> object:
    return world.reconciler.bypassed.bind_late(request, NodeName(node))
