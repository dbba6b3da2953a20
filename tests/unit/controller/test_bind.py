"""One Binding binds a pod with its GPUs; what cannot be resolved after a lost reply keeps its memory."""

import functools
from dataclasses import replace
from typing import Any

import orjson
import pytest

from controller.extender.bind import BindResult, Outcome
from controller.watches import PodSink
from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.wire import allocations
from testing.builders import make_allocation, make_container, make_grant, make_pod
from testing.controller.world import World, is_binding, path_of, uid_of
from testing.fakes.kube import Call, Fault, LandsLater, Meanwhile

BINDING = "/binding"


def test_a_bind_is_one_request_that_carries_the_choice(world: World) -> None:
    pod = world.add_pod(3, 0, 2)
    world.see()
    world.api.calls.clear()
    assert world.bind(pod).outcome is Outcome.BOUND
    (call,) = world.api.calls
    assert (call.verb, call.path) == ("create", path_of(pod) + BINDING)
    assert call.params == {"timeout": "2s"}
    annotations = call.body["metadata"].pop("annotations")
    assert call.body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod["metadata"]["name"], "namespace": "team", "uid": uid_of(pod)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-a"},
    }
    assert annotations["devices.gpushare.dev/c0"] == "GPU-0"
    assert annotations["memory.gpushare.dev/c2"] == "2048"
    assert "devices.gpushare.dev/c1" not in annotations
    assert annotations[names.ALIYUN_ASSUME_TIME] == "1767226600000000000"
    assert world.api.read(path_of(pod))["spec"]["nodeName"] == "node-a"


@pytest.mark.parametrize("seen", [True, False])
def test_other_systems_annotations_count_containers_as_the_pod_has_them(world: World, seen: bool) -> None:
    pod = world.add_pod(0, 6, 7)
    if seen:
        world.see()
    world.bind(pod)
    annotations = world.api.read(path_of(pod))["metadata"]["annotations"]
    on = {container: annotations[names.PREFIX_INDEX + container] for container in ("c1", "c2")}
    assert orjson.loads(annotations[names.ACK_ALLOCATION]) == {"1": {on["c1"]: 6}, "2": {on["c2"]: 7}}


def test_a_second_bind_succeeds_without_a_request_and_to_another_node_is_an_error(world: World) -> None:
    pod = world.add_pod(3)
    for see in (False, True):
        world.bind(pod)
        if see:
            world.see()
        world.api.calls.clear()
        assert world.bind(pod).outcome is Outcome.BOUND_BEFORE
        assert world.bind(pod, "node-b").error == f"pod team/{pod['metadata']['name']} is bound to node node-a already"
        assert (world.api.calls, world.used("node-b")) == ([], {})


def test_a_forged_question_of_filter_does_not_change_what_is_bound(world: World) -> None:
    pod = world.add_pod(3)
    forged = make_pod(make_container("c0", 1))
    forged["metadata"]["uid"] = uid_of(pod)
    world.post("filter", {"Pod": forged, "NodeNames": ["node-a"]})
    world.bind(pod)
    assert world.used() == {"GPU-0": 3}


def test_a_pod_that_no_one_has_shown_is_read_once_and_again_if_it_could_not_be(world: World) -> None:
    pod = world.add_pod(3, name="p")
    world.api.fail_next(lambda call: call.verb == "get", kube.ServerFaultError("boom"))
    assert world.bind(pod).error == "pod team/p could not be read: boom; it is tried again"
    world.api.calls.clear()
    assert world.bind(pod).error == ""
    assert world.api.count("get", "/pods/") == 1


def test_a_pod_recreated_under_the_same_name_is_not_bound_for_its_predecessor(world: World) -> None:
    old = world.add_pod(3, name="same")
    world.api.vanish(path_of(old))
    new = world.add_pod(3, name="same")
    assert world.bind(old).error == f"pod team/same with uid {uid_of(old)} no longer exists"
    assert world.held_by(new) is None
    assert world.used() == {}


def test_a_pod_without_a_request_or_of_which_nothing_is_left_to_give_is_not_ours_to_bind(world: World) -> None:
    plain, bare = world.add_pod(0, name="plain"), world.add_pod(3, name="bare")
    world.see()
    record = world.state.index.pending(uid_of(bare))
    assert record is not None
    PodSink(world.state.index).upsert(replace(record, request=None))
    for pod in (plain, bare):
        error = f"pod team/{pod['metadata']['name']} asks for no GPU; let kube-scheduler bind it"
        assert world.bind(pod) == BindResult(Outcome.INVALID, error)


SUFFIX = (
    "[0].resources.limits[aliyun.com/gpu-mem]: 10G has a suffix, but the resource is counted in units; write the number"
    " alone, such as 10"
)


@pytest.mark.parametrize(
    ("containers", "seen", "why"),
    [
        ([make_container("c", "10G")], True, SUFFIX),
        ([make_container("c", "10G")], False, SUFFIX),
        (7, False, ": expected a list, found a number"),
    ],
)
def test_nonsense_is_refused_with_the_field(world: World, containers: object, seen: bool, why: str) -> None:
    pod = world.add_pod(3)
    world.edit_pod(pod, lambda found: found["spec"].update(containers=containers))
    if seen:
        world.see()
    assert world.bind(pod) == BindResult(Outcome.INVALID, f"spec.containers{why}")


def test_a_replica_that_does_not_lead_binds_nothing(world: World) -> None:
    pod = world.add_pod(3)
    world.leads = False
    assert world.bind(pod).error == "this replica of the gpushare controller does not lead; try again"
    assert world.api.calls == []


@pytest.mark.parametrize(
    ("leads", "seconds", "outcome"), [(False, 0, Outcome.NOT_LEADING), (True, 4, Outcome.OUT_OF_TIME)]
)
def test_a_leader_that_falls_or_has_no_time_left_when_it_has_prepared_sends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, leads: bool, seconds: int, outcome: Outcome
) -> None:
    """Reading the token and connecting may take seconds."""
    pod, create = world.add_pod(3), world.api.create
    world.see()

    def slow(*args: Any, **options: Any) -> JsonObject:
        world.leads = leads
        world.clock.at += seconds
        return create(*args, **options)

    monkeypatch.setattr(world.api, "create", slow)
    assert world.bind(pod).outcome is outcome
    assert (world.api.count("create"), world.used()) == (0, {})


def test_a_refused_binding_gives_the_memory_back(world: World) -> None:
    pod = world.add_pod(3)
    world.api.fail_next(is_binding, kube.ForbiddenError("pods/binding is forbidden"))
    error = "the API server refused the Binding: pods/binding is forbidden"
    assert world.bind(pod) == BindResult(Outcome.API_ERROR, error)
    assert world.used() == {}
    assert world.bind(pod).error == ""


def test_a_pod_bound_by_somebody_else_without_gpus_is_an_error(world: World) -> None:
    pod = world.add_pod(3, name="p")
    world.edit_pod(pod, lambda found: found["spec"].update(nodeName="node-a"))
    expected = "pod team/p was bound to node node-a without GPUs, not by gpushare; delete it so that it is recreated"
    assert world.bind(pod).error == expected
    world.see()
    assert world.bind(pod).error == expected
    assert world.used() == {}


def test_an_unexpected_failure_while_sending_keeps_the_memory(world: World) -> None:
    pod = world.add_pod(3)
    world.see()
    object.__setattr__(world.binder, "deadline_s", "not a number")
    with pytest.raises(TypeError, match="not supported between"):
        world.bind(pod)
    assert (world.used(), world.state.index.unconfirmed()) == ({"GPU-0": 3}, 1)


def is_read(call: Call) -> bool:
    return call.verb == "get"


@pytest.fixture
def pod(world: World) -> JsonObject:
    pod = world.add_pod(6, name="p")
    world.see()
    world.api.calls.clear()
    return pod


def test_a_lost_reply_is_a_success_when_the_pod_says_so(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, "lost-reply")
    assert world.bind(pod).outcome is Outcome.BOUND
    assert [call.verb for call in world.api.calls] == ["create", "get"]
    assert world.state.index.unconfirmed() == 0
    world.see()
    assert world.used() == {"GPU-0": 6}


@pytest.mark.parametrize("fault", ["lost-request", kube.ServerFaultError("etcdserver: request timed out")])
def test_a_lost_request_keeps_its_choice_for_the_next_try(world: World, pod: JsonObject, fault: Fault) -> None:
    world.api.fail_next(is_binding, fault)
    answer = world.bind(pod)
    assert answer.outcome is Outcome.IN_DOUBT
    assert answer.error.startswith("no answer to the Binding: ")
    assert answer.error.endswith("; the memory stays reserved, try again")
    assert world.used() == {"GPU-0": 6}
    # The next pod would be packed onto the same GPU and takes the other one.
    other = world.add_pod(6)
    assert world.bind(other).error == ""
    world.see()
    assert world.bind(pod).outcome is Outcome.BOUND
    world.see()
    assert world.used() == {"GPU-0": 6, "GPU-1": 6}
    held = world.held_by(pod)
    assert held is not None
    assert held.grants[0].gpus == ("GPU-0",)


def test_a_binding_that_lands_late_finds_its_memory_reserved(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, LandsLater())
    assert world.bind(pod).outcome is Outcome.IN_DOUBT
    assert world.bind(world.add_pod(10), "node-a").error == ""
    assert world.bind(world.add_pod(5), "node-a").outcome is Outcome.REFUSED
    assert world.api.land() == 1
    world.see()
    assert world.used() == {"GPU-0": 6, "GPU-1": 10}
    assert world.bind(pod).outcome is Outcome.BOUND_BEFORE


def test_the_scheduler_may_try_the_same_node_while_in_doubt(world: World, pod: JsonObject) -> None:
    """The pod's own reservation does not stand in its way."""
    world.bind(world.add_pod(10))
    world.api.fail_next(is_binding, LandsLater())
    world.bind(pod)
    assert world.post("filter", {"Pod": pod, "NodeNames": ["node-a"]})["NodeNames"] == ["node-a"]
    assert world.post("prioritize", {"Pod": pod, "NodeNames": ["other", "node-a"]}) == [{"Host": "node-a", "Score": 10}]


def test_a_retry_on_another_node_counts_on_both_until_nothing_is_on_its_way(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, LandsLater())
    world.bind(pod, "node-a")
    assert world.bind(pod, "node-b").error == ""
    assert (world.used("node-a"), world.used("node-b")) == ({"GPU-0": 6}, {"GPU-0": 6})
    assert world.api.land() == 0
    world.see()
    assert world.state.index.reserved_on(uid_of(pod)) == frozenset()
    world.after(9)
    assert (world.used("node-a"), world.used("node-b")) == ({"GPU-0": 6}, {"GPU-0": 6})
    assert world.audit() == []
    world.after(1)
    assert (world.used("node-a"), world.used("node-b")) == ({}, {"GPU-0": 6})
    assert world.audit() == []


def test_a_retry_on_another_node_finds_the_late_binding(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, LandsLater())
    world.bind(pod, "node-a")
    world.api.land()
    assert world.bind(pod, "node-b") == BindResult(
        Outcome.BOUND_ELSEWHERE, "pod team/p is bound to node node-a already"
    )
    assert (world.used("node-b"), world.used("node-a")) == ({}, {"GPU-0": 6})


def test_what_cannot_be_read_keeps_its_memory_and_a_retry_reads_it(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, "lost-reply")
    world.api.fail_next(is_read, kube.ServerFaultError("boom"))
    path = "create /api/v1/namespaces/team/pods/p/binding"
    error = f"no answer to the Binding: {path}: connection reset; and the pod could not be read: boom"
    assert world.bind(pod) == BindResult(Outcome.IN_DOUBT, error)
    assert world.used() == {"GPU-0": 6}
    assert world.bind(pod).outcome is Outcome.BOUND
    assert world.state.index.unconfirmed() == 0


def test_a_conflict_on_an_unbound_pod_gives_the_memory_back(world: World, pod: JsonObject) -> None:
    world.edit_pod(pod, lambda found: found["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    why = 'Operation cannot be fulfilled on pods/binding "p": pod p is being deleted, cannot be assigned to a host'
    assert world.bind(pod) == BindResult(Outcome.API_ERROR, f"the API server refused the Binding: {why}")
    assert world.used() == {}


def test_a_conflict_while_the_pod_cannot_be_read_is_in_doubt(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, kube.ConflictError("conflict"))
    world.api.fail_next(is_read, "lost-request")
    answer = world.bind(pod)
    assert answer.outcome is Outcome.IN_DOUBT
    assert answer.error.endswith("connection refused; try again")
    assert world.used() == {"GPU-0": 6}


@pytest.mark.parametrize("seen", [True, False])
def test_a_conflict_with_another_writer_follows_the_pod(world: World, pod: JsonObject, seen: bool) -> None:
    """A former leader bound the pod to the same node, on the other GPU. Its labels have changed since, too."""
    text = allocations.encode(make_allocation("p", make_grant(1, gib=6, container="c0")))

    def change(found: JsonObject) -> None:
        found["spec"]["nodeName"] = "node-a"
        found["metadata"]["annotations"] = {names.ANNOTATION_ALLOCATION: text}
        found["metadata"]["labels"] = {"app": "web"}

    world.edit_pod(pod, change)
    if seen:
        world.api.fail_next(is_binding, Meanwhile(world.see))
    assert world.bind(pod).outcome is Outcome.BOUND
    assert (world.used(), world.audit()) == ({"GPU-1": 6}, [])
    world.see()
    assert (world.used(), world.audit()) == ({"GPU-1": 6}, [])


def test_an_old_server_may_bind_the_successor_and_the_ledger_follows_the_pod() -> None:
    """Kubernetes 1.20 does not compare uids."""
    world = World()
    world.api.binding_checks_uid = False
    world.add_node("node-a", 10, 10)
    old = world.add_pod(6, name="same")
    world.list_all()
    world.api.vanish(path_of(old))
    new = world.add_pod(6, name="same")
    assert world.bind(old).error == ""
    world.see()
    assert world.held_by(new) is not None
    assert uid_of(new) in world.ledger().allocations
    # What was reserved for the old one goes as soon as nothing of it can be on its way.
    world.after(11)
    assert world.used() == {"GPU-0": 6}


def test_an_old_server_may_bind_the_successor_of_a_pod_that_was_seen_on_another_node() -> None:
    """What may still arrive is counted until it cannot any more, though the pod that it was for is bound."""
    world = World()
    world.api.binding_checks_uid = False
    world.add_node("node-a", 6)
    world.add_node("node-b", 6)
    old = world.add_pod(4, name="same")
    world.list_all()
    world.api.fail_next(is_binding, LandsLater())
    world.bind(old, "node-a")
    assert world.bind(old, "node-b").error == ""
    world.see()
    other = world.add_pod(4)
    assert world.bind(other, "node-a").outcome is Outcome.REFUSED
    world.api.vanish(path_of(old))
    world.add_pod(1, name="same")
    world.see()
    assert world.bind(other, "node-a").outcome is Outcome.REFUSED
    assert world.api.land() == 1
    assert world.truth()[NodeName("node-a")].over_committed() == {}
    world.see()
    world.after(10)
    assert (world.used("node-a"), world.audit()) == ({"GPU-0": 4}, [])


@pytest.mark.parametrize("landed", [True, False])
def test_doubt_ends_when_the_pod_is_seen_bound_or_long_after(world: World, pod: JsonObject, landed: bool) -> None:
    world.api.fail_next(is_binding, LandsLater())
    world.bind(pod)
    world.after(119)
    assert world.used() == {"GPU-0": 6}
    if landed:
        world.api.land()
        world.after(1000)
        assert world.used() == {"GPU-0": 6}
        world.see()
    else:
        world.after(1)
    assert world.used() == ({"GPU-0": 6} if landed else {})
    assert world.state.index.unconfirmed() == 0


@pytest.mark.parametrize("landed", [True, False])
def test_doubt_about_a_pod_that_the_watch_has_not_shown_yet_stays(world: World, landed: bool) -> None:
    """Such a pod is read soon, as one that may be gone; that it is unbound tells nothing for as long."""
    pod = world.add_pod(6)
    world.api.fail_next(is_binding, LandsLater())
    world.bind(pod)
    world.after(11)
    assert world.used() == {"GPU-0": 6}
    if landed:
        world.api.land()
    world.after(119)
    assert world.used() == ({"GPU-0": 6} if landed else {})


@pytest.mark.parametrize("fault", [None, "lost-reply", "lost-request", LandsLater(), kube.ConflictError("x")], ids=repr)
@pytest.mark.parametrize("moment", ["on its way", "unseen", "seen"])
def test_pods_that_are_created_and_deleted_by_force_leave_nothing(
    world: World, fault: Fault | None, moment: str
) -> None:
    """As a tenant may do at any moment, to keep memory from others."""
    for _ in range(20):
        pod = world.add_pod(6)
        gone = functools.partial(world.api.vanish, path_of(pod))
        if moment == "on its way":
            world.api.fail_next(is_binding, Meanwhile(gone, fault))
        elif fault is not None:
            world.api.fail_next(is_binding, fault)
        assert world.bind(pod).outcome is not Outcome.REFUSED
        if moment == "seen":
            world.see()
        if moment != "on its way":
            gone()
        world.api.land()
        world.see()
        world.after(10)
    assert (world.used(), world.state.index.unconfirmed(), world.audit()) == ({}, 0, [])


@pytest.mark.parametrize("again", [True, False])
def test_doubt_about_a_pod_that_is_gone_ends_soon_but_not_at_once(world: World, pod: JsonObject, again: bool) -> None:
    world.api.fail_next(is_binding, "lost-request")
    world.bind(pod)
    world.api.vanish(path_of(pod))
    if again:
        world.add_pod(1, name="p")
    world.see()
    world.after(9)
    assert world.used() == {"GPU-0": 6}
    world.after(1)
    assert world.used() == {}


def test_a_retry_makes_an_old_in_doubt_reservation_new(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, "lost-request", times=2)
    world.bind(pod)
    world.clock.at += 120
    ((in_doubt, _),) = world.state.in_doubt(world.clock.at, most=9)
    world.clock.at += 1
    world.bind(pod)
    world.state.end(in_doubt)
    assert world.used() == {"GPU-0": 6}


def test_a_choice_in_doubt_is_not_sent_to_a_gpu_that_is_gone(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, "lost-request")
    world.bind(pod)
    world.api.vanish("/api/v1/nodes/node-a")
    world.add_node("node-a")
    world.see()
    assert world.bind(pod).error == (
        "team/p may be bound to GPU GPU-0 of node-a already, which is gone now; waiting for the API server's word"
    )


def test_a_refusal_of_a_retry_does_not_end_the_doubt_about_the_first(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, LandsLater())
    world.bind(pod)
    world.api.fail_next(is_binding, kube.TooManyRequestsError("slow down"))
    assert world.bind(pod).outcome is Outcome.API_ERROR
    assert world.used() == {"GPU-0": 6}


def test_a_pod_bound_elsewhere_in_the_meantime_needs_no_memory_here(world: World, pod: JsonObject) -> None:
    world.edit_pod(pod, lambda found: found["spec"].update(nodeName="node-b"))
    world.api.fail_next(is_binding, "lost-request")
    assert world.bind(pod).outcome is Outcome.BOUND_ELSEWHERE
    assert world.used() == {}


def test_a_lost_reply_about_a_pod_that_is_gone_keeps_the_memory_for_a_while(world: World, pod: JsonObject) -> None:
    world.api.fail_next(is_binding, "lost-request")
    world.api.vanish(path_of(pod))
    assert world.bind(pod).outcome is Outcome.POD_GONE
    assert world.used() == {"GPU-0": 6}
    other = world.add_pod(3)
    world.see()
    world.api.vanish(path_of(other))
    assert world.bind(other).outcome is Outcome.POD_GONE
    assert world.used() == {"GPU-0": 6}, "a reply that says so leaves nothing in doubt"


def test_the_watch_may_be_faster_than_the_answer(world: World, pod: JsonObject) -> None:
    """However the request ends, the pod itself is in the ledger already, and what is in doubt outlives it."""
    freed = world.state.index.freed
    world.api.fail_next(is_binding, Meanwhile(world.see))
    assert world.bind(pod).outcome is Outcome.BOUND
    assert world.state.index.freed == freed
    world.api.fail_next(is_binding, Meanwhile(world.see, "lost-reply"), times=2)
    world.api.fail_next(is_read, "lost-request")
    second, third = world.add_pod(2), world.add_pod(2)
    world.see()
    assert world.bind(second).outcome is Outcome.IN_DOUBT
    assert world.bind(third).outcome is Outcome.BOUND
    assert (world.state.index.unconfirmed(), world.audit()) == (0, [])
    assert world.used() == {"GPU-0": 10}
    for ended in (pod, second, third):
        world.finish(ended)
    world.see()
    assert world.used() == {"GPU-0": 2}
    world.after(10)
    assert world.used() == {}


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize(
    ("fault", "in_doubt"),
    [
        (None, False),
        (kube.ConflictError("somebody else was first"), False),
        (kube.TooManyRequestsError("slow down"), False),
        ("lost-request", True),
    ],
)
def test_a_binding_of_a_pod_that_has_ended_counts_until_its_reply_or_while_in_doubt(
    world: World, pod: JsonObject, fault: Fault | None, in_doubt: bool, gone: bool
) -> None:
    """A request that fails finds the pod bound by another scheduler."""
    under_way = []

    def seen_until_its_end() -> None:
        world.edit_pod(pod, lambda found: found["spec"].setdefault("nodeName", "node-b"))
        world.see()
        world.api.vanish(path_of(pod)) if gone else world.finish(pod)
        world.see()
        under_way.append(world.used())

    world.api.fail_next(is_binding, Meanwhile(seen_until_its_end, fault))
    world.bind(pod)
    assert under_way == [{"GPU-0": 6}]
    # A pod that is seen on a node settles what a lost reply leaves open.
    assert world.used() == ({"GPU-0": 6} if in_doubt and gone else {})
    assert world.audit() == []
    world.after(10)
    assert world.used() == {}
