"""Placeholders of waiting pods: for which of them a node is asked, and what becomes of it."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from controller.reconcile import node_requests, placeholders as placeholding
from controller.reconcile.node_requests import (
    ASK_AFTER_S,
    ATTEMPTS,
    MOST_NODES,
    OFF,
    REST_S,
    Inputs,
    Limits,
    Placeholder,
    Refusal,
    Refusals,
    Steps,
    Why,
)
from controller.reconcile.placeholders import Placeholders, make, placeholder_path, read, spec_for, terms_of
from gpushare import names
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import Refused
from gpushare.model.request import RequestShape
from gpushare.placement.explain import by_sum
from gpushare.wire import pods as pods_wire
from testing.builders import make_container, make_pod
from testing.clock import ManualClock
from testing.controller.bypassing import said
from testing.controller.world import World, path_of, uid_of

NOW = 1000.0
TODAY = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Limits(most=2, life_s=900)
A, B = NodeName("a"), NodeName("b")
P, Q = PodUid("p"), PodUid("q")


def refusal(*nodes: NodeName, since: float = NOW - node_requests.ASK_AFTER_S, namespace: str = "") -> Refusal:
    return Refusal(since=since, asked=NOW, nodes=nodes or (A,), namespace=namespace)


def one(
    *nodes: NodeName, age_s: float = node_requests.REPLACE_AFTER_S, attempt: int = 1, namespace: str = ""
) -> Placeholder:
    created = TODAY - timedelta(seconds=age_s)
    return Placeholder(
        uid=PodUid("own"), pod=P, nodes=frozenset(nodes or (A,)), attempt=attempt, created=created, namespace=namespace
    )


def decide(waiting: str = "", limits: Limits = LIMITS, **known: Any) -> Steps:
    rest = {"refused": {}, "asked": {}, "attempts": {}, "resting": {}, **known}
    return node_requests.decide(Inputs(waiting=set(map(PodUid, waiting)), today=TODAY, **rest), limits, NOW)


def test_those_that_wait_longest_come_first_and_no_more_than_the_limit() -> None:
    refused = {name: refusal(since=since) for name, since in (("p", 30.0), ("q", 10.0), ("r", 20.0))}
    assert list(decide(refused=refused, waiting="pqr").ask) == ["q", "r"]
    assert list(decide(refused=refused, asked={"x": one()}, waiting="pqrx").ask) == ["q"]


def test_namespaces_take_turns() -> None:
    refused = {name: refusal(since=since, namespace="many") for name, since in (("p", 10.0), ("q", 20.0), ("r", 30.0))}
    refused["s"] = refusal(since=40.0, namespace="few")
    assert list(decide(refused=refused, waiting="pqrs").ask) == ["p", "s"]
    there = {"p": one(namespace="many")}
    assert list(decide(refused=refused, asked=there, waiting="pqrs").ask) == ["s"]
    del refused["p"]  # after a change of leader it is not known
    assert list(decide(refused=refused, asked=there, waiting="pqrs").ask) == ["s"]


def test_a_namespace_that_has_all_gives_up_its_newest_for_another_and_no_more() -> None:
    there = {"x": one(namespace="many"), "y": one(namespace="many", age_s=1)}
    refused = {"p": refusal(namespace="few"), "q": refusal(namespace="many")}
    steps = decide(refused=refused, asked=there, waiting="pqxy")
    assert (steps.remove, list(steps.ask)) == ({"y": Why.TURN}, [])
    assert list(decide(refused=refused, asked={"x": there["x"]}, waiting="pqx").ask) == ["p"]
    there["y"] = one(namespace="few")
    assert decide(refused=refused, asked=there, waiting="pqxy") == Steps(remove={}, ask={})


def test_a_node_that_is_awaited_counts_as_one_that_may_come_in_vain() -> None:
    refused = {"p": refusal(namespace="many"), "q": refusal(namespace="many"), "s": refusal(namespace="few")}
    limits = Limits(most=10, life_s=900)
    one_less = {"many": node_requests.MOST_IN_VAIN - 1}
    assert decide(refused=refused, waiting="pqs", in_vain=one_less, limits=limits).ask.keys() == {"p", "s"}
    there = {"x": one(namespace="many")}
    assert decide(refused=refused, asked=there, waiting="pqsx", in_vain=one_less, limits=limits).ask.keys() == {"s"}


def test_a_pod_has_one_placeholder_until_it_is_bound_or_it_was_there_too_long() -> None:
    assert decide(refused={"p": refusal()}, asked={"p": one()}, waiting="p") == Steps(remove={}, ask={})
    assert decide(asked={"p": one()}, waiting="p").remove == {}  # a new leader has no refusal of the pod yet
    assert decide(asked={"p": one(age_s=0)}).remove == {"p": Why.DONE}
    assert decide(asked={"p": one(age_s=LIMITS.life_s)}, waiting="p").remove == {"p": Why.EXPIRED}


def test_a_placeholder_that_does_not_name_a_node_that_refuses_is_replaced() -> None:
    """On that node an autoscaler sees room for it."""
    refused = {"p": refusal(A, B)}
    assert decide(refused=refused, asked={"p": one(A)}, waiting="p").remove == {"p": Why.OUTDATED}
    young = one(A, age_s=node_requests.REPLACE_AFTER_S - 1)
    assert decide(refused=refused, asked={"p": young}, waiting="p").remove == {}
    assert decide(refused=refused, asked={"p": one(A, B)}, waiting="p").remove == {}


def test_nodes_that_help_no_pod_are_asked_for_a_few_times_only() -> None:
    assert not node_requests.rests(Why.OUTDATED, node_requests.ATTEMPTS - 1)
    assert node_requests.rests(Why.OUTDATED, node_requests.ATTEMPTS)
    assert node_requests.rests(Why.EXPIRED, 1)
    assert not node_requests.rests(Why.DONE, node_requests.ATTEMPTS)
    assert decide(refused={"p": refusal()}, waiting="p", resting={"p": NOW + 1}).ask == {}
    assert decide(refused={"p": refusal()}, waiting="p", resting={"p": NOW}).ask == {"p": 1}
    assert decide(refused={"p": refusal(since=NOW - node_requests.ASK_AFTER_S + 1)}, waiting="p").ask == {}
    assert node_requests.costs(Why.OUTDATED, bound=False)
    assert [node_requests.costs(Why.DONE, bound=bound) for bound in (False, True)] == [True, False]
    assert not node_requests.costs(Why.EXPIRED, bound=False)


UIDS = st.sampled_from("pqrstu").map(PodUid)
SOME = st.lists(st.sampled_from([A, B]), min_size=1, max_size=2)


@given(
    waiting=st.sets(UIDS),
    refused=st.dictionaries(UIDS, st.builds(Refusal, since=st.floats(0, NOW), asked=st.just(NOW), nodes=SOME)),
    there=st.dictionaries(
        UIDS,
        st.builds(
            lambda nodes, age_s: one(*nodes, age_s=age_s), st.frozensets(st.sampled_from([A, B])), st.floats(0, 2000)
        ),
    ),
    most=st.integers(0, 4),
)
def test_never_beyond_the_limit_or_for_one_that_does_not_wait(
    waiting: set[PodUid], refused: dict[PodUid, Refusal], there: dict[PodUid, Placeholder], most: int
) -> None:
    known = Inputs(waiting=waiting, refused=refused, asked=there, attempts={}, resting={}, today=TODAY)
    steps = node_requests.decide(known, Limits(most=most, life_s=900), NOW)
    left = there.keys() - steps.remove.keys()
    assert not steps.ask or len(left) + len(steps.ask) <= most
    assert steps.ask.keys() <= waiting & refused.keys()
    assert not steps.ask.keys() & there.keys()
    assert left <= waiting
    assert all(TODAY - there[uid].created < timedelta(seconds=900) for uid in left)


def ref(uid: str, namespace: str = "team") -> PodRef:
    return PodRef(namespace=namespace, name=uid, uid=PodUid(uid))


def test_the_first_time_and_the_last_nodes_are_kept_until_the_pod_fits() -> None:
    clock = ManualClock(at=1)
    refusals = Refusals(clock)
    refusals.note(ref(P), [A], fits=False)
    clock.at = 2
    refusals.note(ref(P), [A, B], fits=False)
    refusals.note(ref(Q), [], fits=False)  # about which no node was named
    assert refusals.of({P, Q}) == {P: Refusal(since=1, asked=2, nodes=[A, B], namespace="team")}
    refusals.note(ref(P), [A], fits=True)
    assert refusals.of({P, Q}) == {}
    refusals.note(ref(P), [A], fits=False)
    assert refusals.of(set()) == {}, "the watch has not brought it yet"
    assert refusals.of({P})
    clock.at += node_requests.FORGET_S
    assert refusals.of(set()) == refusals.of({P}) == {}


def test_the_number_of_pods_is_bounded_and_a_namespace_with_many_leaves_places_to_others() -> None:
    clock = ManualClock()
    refusals = Refusals(clock)
    for number in range(node_requests.MOST):
        clock.at = number
        refusals.note(ref(str(number)), [A], fits=False)
    refusals.note(ref("one more"), [A], fits=False)
    refusals.note(ref("p", "other"), [A], fits=False)
    refusals.note(ref("more"), [A], fits=False)
    known = refusals.of(
        {P, PodUid("more"), PodUid("one more"), *(PodUid(str(number)) for number in range(node_requests.MOST))}
    )
    assert (P in known, PodUid("one more") in known, len(known)) == (True, False, node_requests.MOST)
    assert PodUid(str(node_requests.MOST - 1)) not in known  # the newest of the namespace with most


def test_the_number_of_names_that_are_kept_is_bounded() -> None:
    refusals = Refusals(ManualClock())
    refusals.note(ref("p"), [NodeName(str(number)) for number in range(node_requests.MOST_NODES + 5)], fits=False)
    known = refusals.of({P})[P]
    assert (len(known.nodes), known.left_out) == (node_requests.MOST_NODES, 5)
    assert by_sum(known.nodes, known.left_out).startswith(
        f"what is free on 0, 1, 10 and {node_requests.MOST_NODES + 2} more is enough"
    )


NODES = ["node-a", "node-b"]
THERE = placeholder_path()
LIFE_S = 10_000.0  # the fake server's objects are 1,000 s old at once
ON = Limits(most=2, life_s=LIFE_S)


def chore(world: World, limits: Limits = ON) -> Placeholders:
    writer, state, table, refusals = world.writer, world.state, world.table, world.refusals
    return Placeholders(writer=writer, state=state, table=table, refusals=refusals, limits=limits)


def tick(world: World, placeholders: Placeholders, after_s: float = 0) -> list[JsonObject]:
    """The placeholders that are there then."""
    world.clock.at += after_s
    placeholders.tick(world.snapshot())
    return world.api.objects(THERE)


def fill(world: World) -> list[JsonObject]:
    """One pod on every GPU, which leaves 4 GiB of each."""
    return [world.add_bound(6, node=node) for node in NODES * 2]


def ask(world: World, pod: JsonObject, nodes: list[str] = NODES) -> list[str]:
    """kube-scheduler's question; the nodes that fit."""
    found: list[str] = world.post("filter", {"Pod": pod, "NodeNames": nodes})["NodeNames"]
    return found


def stuck(world: World) -> JsonObject:
    """A pod for which the sums suffice, 8 GiB on each node, and no GPU does."""
    fill(world)
    pod = world.add_waiting(5)
    assert ask(world, pod) == []
    world.clock.at += ASK_AFTER_S
    return pod


def asked(world: World) -> tuple[JsonObject, Placeholders]:
    """Such a pod, for which a node was asked."""
    pod, placeholders = stuck(world), chore(world)
    tick(world, placeholders)
    return pod, placeholders


def required(terms: list[JsonObject]) -> JsonObject:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def term(zone: object) -> JsonObject:
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": [str(zone)]}]}


def away(pod: JsonObject) -> list[list[str]]:
    return [[field["values"][0] for field in term["matchFields"]] for term in terms_of(pod["spec"])]


def test_a_pod_that_fits_the_sums_and_no_gpu_gets_a_placeholder_that_keeps_away_from_these_nodes(world: World) -> None:
    pod, placeholders = asked(world)
    (there,) = tick(world, placeholders)
    assert away(there) == [NODES]
    assert there["spec"]["containers"][0]["resources"] == {"limits": {names.GPU_MEM: 5}}
    assert there["metadata"]["annotations"][placeholding.SAFE_TO_EVICT] == "true"
    assert there["metadata"]["annotations"][names.ANNOTATION_PLACEHOLDER_FOR] == "team/" + pod["metadata"]["name"]
    by = f"gpushare-placeholders/for-{uid_of(pod)}"
    message = f"no GPU of 2 nodes has room for it, so a new node is asked for by the pod {by}, which an autoscaler sees"
    assert ("GpuShareNodeRequested", message) in said(world)


def test_it_is_there_as_long_as_the_pod_waits_also_after_a_restart(world: World) -> None:
    pod, placeholders = asked(world)
    world.api.delete(placeholder_path(uid_of(pod)))
    assert len(tick(world, placeholders, placeholding.LIST_S)) == 1, "one that somebody deleted comes again"
    world.start_controller()
    world.list_all()
    placeholders = chore(world)
    assert len(tick(world, placeholders)) == 1
    world.api.delete(path_of(pod))
    world.see()
    assert tick(world, placeholders) == []


@pytest.mark.parametrize(
    ("part", "change", "needs"),
    [
        ("status", {"nominatedNodeName": "node-a"}, False),
        ("metadata", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
        ("spec", {"nodeName": "node-a"}, False),
        ("spec", {"priority": -11}, False),
        ("spec", {"priority": -10}, True),  # below the default, and not expendable yet
    ],
)
def test_no_node_is_asked_for_a_pod_that_needs_none_by_now(part: str, change: JsonObject, needs: bool) -> None:
    pod = make_pod()
    pod[part] |= change
    assert (spec_for(pod) is not None) is needs


def test_a_controller_without_the_option_removes_what_is_left(world: World) -> None:
    stuck(world)
    tick(world, chore(world))
    assert tick(world, chore(world, OFF)) == []


def test_nodes_that_come_in_vain_are_bounded(world: World, caplog: pytest.LogCaptureFixture) -> None:
    pod, placeholders = stuck(world), chore(world)
    nodes = list(NODES)
    for attempt in range(1, ATTEMPTS + 1):
        (there,) = tick(world, placeholders)
        assert there["metadata"]["annotations"][names.ANNOTATION_ATTEMPT] == str(attempt)
        nodes.append(f"small-{attempt}")
        world.add_node(nodes[-1], 4, 4)
        world.see()
        assert ask(world, pod, nodes) == []
        tick(world, placeholders, node_requests.REPLACE_AFTER_S)
    assert world.api.objects(THERE) == []
    assert tick(world, placeholders, REST_S - 1) == []
    expected = "a node came that has no room for its pod either; a node is asked for again in 60 minutes"
    assert expected in {message for _, message in said(world)}
    assert "nodes in vain" not in caplog.messages, "fewer than a namespace may have"
    assert away(tick(world, placeholders, 1)[0]) == [sorted(nodes)]


def test_a_node_whose_gpus_are_not_known_yet_counts_as_one_that_may_have_room(world: World) -> None:
    pod, placeholders = stuck(world), chore(world)
    assert ask(world, pod, [*NODES, "node-new"]) == []
    assert away(tick(world, placeholders)[0]) == [NODES]


def named(world: World) -> list[str]:
    return [each["metadata"]["name"] for each in world.api.objects(THERE)]


def given_up(world: World, namespace: str) -> JsonObject:
    pod = world.add_waiting(5, namespace=namespace)
    assert ask(world, pod) == []
    return pod


def test_a_namespace_whose_pods_the_server_refuses_holds_up_no_other(world: World) -> None:
    """Such as pods whose placeholder another admission webhook refuses."""
    fill(world)
    for _ in range(3):
        given_up(world, "team")
        world.clock.at += 1
    other = given_up(world, "other")
    world.clock.at += ASK_AFTER_S
    placeholders = chore(world)
    world.api.fail_next(lambda call: call.verb == "create" and call.path == THERE, kube.ForbiddenError("webhook"))
    for _ in range(2):
        tick(world, placeholders)
        assert world.api.count("create", THERE) == 1, "not repeated at once"
    tick(world, placeholders, placeholding.RETRY_S)
    assert named(world) == [f"for-{uid_of(other)}"]
    tick(world, placeholders, placeholding.YIELD_S)
    assert len(named(world)) == 2


def test_a_placeholder_that_gave_way_is_not_asked_for_at_once_and_has_lost_no_attempt(world: World) -> None:
    fill(world)
    placeholders, many = chore(world), [given_up(world, "many") for _ in range(2)]
    assert len(tick(world, placeholders, ASK_AFTER_S)) == 2
    few = given_up(world, "few")
    tick(world, placeholders, ASK_AFTER_S)
    [kept] = named(world)
    tick(world, placeholders)
    assert {*named(world)} == {kept, f"for-{uid_of(few)}"}
    [gone] = [uid for pod in many if f"for-{(uid := uid_of(pod))}" != kept]
    rests = world.clock.at + 2 * placeholding.YIELD_S
    assert (placeholders._attempts[gone], placeholders._resting[gone]) == (0, rests)


@pytest.mark.parametrize(
    "change",
    [
        {"affinity": required([term(zone) for zone in range(MOST_NODES)])},
        {"tolerations": [{"key": f"key-{each}" * 20} for each in range(2000)]},
    ],
    ids=["terms-times-nodes", "bytes"],
)
def test_no_pod_makes_its_placeholder_huge(world: World, change: JsonObject, caplog: pytest.LogCaptureFixture) -> None:
    pod, placeholders = stuck(world), chore(world)
    world.edit_pod(pod, lambda found: found["spec"].update(change))
    tick(world, placeholders)
    assert not [call for call in world.api.calls if call.verb == "create" and call.path == THERE]
    assert "no node asked for" in caplog.text
    reads = len(world.api.calls)
    tick(world, placeholders, placeholding.RETRY_S)
    assert [call.verb for call in world.api.calls[reads:]] == []  # not at every look


def test_a_term_without_conditions_still_matches_nothing() -> None:
    pod = make_pod(make_container("c", 3))
    pod["spec"]["affinity"] = required([{}, term("a"), {"matchExpressions": []}])
    made = make(pods_wire.ref(pod), spec_for(pod) or {}, [NodeName("x")], 1)
    assert [each["matchExpressions"] for each in terms_of(made["spec"])] == [term("a")["matchExpressions"]]


def test_one_that_is_there_already_is_taken_over(world: World) -> None:
    stuck(world)
    mine, other = chore(world), chore(world)
    mine.tick(world.snapshot())
    other._list_at = world.clock.at + placeholding.LIST_S
    other.tick(world.snapshot())
    other.tick(world.snapshot())
    assert len(other._there) == 1


@pytest.mark.parametrize("verb", ["list", "delete"])
def test_a_server_that_is_gone_is_asked_less_and_less_often(world: World, verb: str) -> None:
    """One request a second, each with a deadline of seconds, would hold up all other chores."""
    pod, placeholders = asked(world)
    world.api.delete(path_of(pod))
    world.see()
    world.api.fail_next(
        lambda call: call.verb == verb and call.path.startswith(THERE), kube.UnreachableError("no"), times=999
    )
    counts = [world.api.count(verb, THERE)]
    for _ in range(10):
        for _ in range(60):
            tick(world, placeholders, 1)
        counts.append(world.api.count(verb, THERE))
    per_minute = [after - before for before, after in itertools.pairwise(counts)]
    assert max(per_minute) <= 10
    assert sum(per_minute[5:]) <= (5 * 3 if verb == "list" else 5 * 10)
    world.api.calm()
    assert tick(world, placeholders, placeholding.LIST_S) == []


def test_pods_that_are_recreated_do_not_bring_node_after_node(world: World) -> None:
    """A pod that no machine of the group can hold; created again, it has three attempts each time."""
    fill(world)
    placeholders, nodes = chore(world), list(NODES)
    for number in range(node_requests.MOST_IN_VAIN):
        pod = world.add_waiting(5)
        ask(world, pod, nodes)
        assert len(tick(world, placeholders, ASK_AFTER_S)) == 1, number
        world.api.delete(path_of(pod))
        world.see()
        tick(world, placeholders)
    again, other = given_up(world, "team"), given_up(world, "other")
    tick(world, placeholders, ASK_AFTER_S)
    assert named(world) == [f"for-{uid_of(other)}"]
    tick(world, placeholders, REST_S)
    assert f"for-{uid_of(again)}" in named(world)


def test_judging_leaves_the_processor_to_the_scheduler(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world)
    for _ in range(3):
        given_up(world, "team")
    world.clock.at += ASK_AFTER_S
    placeholders = chore(world, Limits(most=10, life_s=LIFE_S))
    judge = placeholders.table.verdicts

    def slow(shape: RequestShape) -> dict[NodeName, Refused | None]:
        world.clock.at += placeholding.ASK_S
        return judge(shape)

    monkeypatch.setattr(placeholders.table, "verdicts", slow)
    for count in (1, 2, 3):
        assert len(tick(world, placeholders)) == count


def test_the_scheduler_never_gets_a_node_for_a_placeholder(world: World) -> None:
    """Also an empty one, on which every GPU has room."""
    pod = world.add_pod(5, namespace=names.PLACEHOLDERS)
    answer = world.post("filter", {"Pod": pod, "NodeNames": NODES})
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == dict.fromkeys(NODES, node_requests.REFUSED)
    assert world.bind(pod, NODES[0]).error == node_requests.REFUSED  # who reaches the port needs not ask first
    assert pods_wire.node_of(world.api.read(path_of(pod))) is None


def test_placeholders_do_not_count_as_pods_that_wait(world: World) -> None:
    world.add_pod(5, namespace=names.PLACEHOLDERS)
    world.see()
    assert not world.snapshot().pods
    world.reconciler.tick()
    assert sum(world.reconciler.waiting.counts.values()) == 0


def test_the_author_is_told_that_an_autoscaler_sees_room(world: World) -> None:
    stuck(world)
    world.reconciler.tick()
    ((_, message),) = said(world)
    assert "; what is free on node-a, node-b is enough in total, but no single GPU has room; autoscalers" in message


def test_a_pod_in_a_cluster_with_too_many_nodes_to_name_gets_none(world: World) -> None:
    pod = world.add_waiting(11)
    many = [f"n{number}" for number in range(MOST_NODES + 1)]
    for name in many:
        world.add_node(name, 10, 10)
    world.see()
    ask(world, pod, many)
    world.clock.at += ASK_AFTER_S
    assert tick(world, chore(world)) == []


def test_the_placeholder_takes_over_what_decides_about_nodes_and_nothing_else() -> None:
    terms = [term(zone) for zone in "ab"]
    pod = make_pod(
        make_container("secret-name", 3, env=[{"name": "PASSWORD", "value": "x"}], command=["run"]),
        init=[make_container("side", 1, restartPolicy="Always"), make_container("once")],
    )
    pod["spec"] |= {
        "schedulerName": "gpushare-scheduler",
        "nodeSelector": {"pool": "gpus"},
        "tolerations": [{"key": "gpu"}],
        "serviceAccountName": "powerful",
        "priorityClassName": "high",
        "volumes": [{"name": "data"}],
        "affinity": {"podAntiAffinity": {}, **required(terms)},
    }
    wanted = spec_for(pod)
    assert wanted is not None
    made = make(pods_wire.ref(pod), wanted, [NodeName("x"), NodeName("y")], 2)
    spec = made["spec"]
    kept = {key: spec[key] for key in ("schedulerName", "nodeSelector", "tolerations")}
    assert kept == {key: pod["spec"][key] for key in kept}
    assert spec["priorityClassName"] == names.PRIORITY_PLACEHOLDER
    assert not {"volumes", "serviceAccountName"} & spec.keys()
    assert spec["securityContext"].keys() == {"runAsNonRoot", "runAsUser", "seccompProfile"}
    assert [each["name"] for each in (*spec["initContainers"], *spec["containers"])] == ["init0", "init1", "c0"]
    assert spec["initContainers"][0]["restartPolicy"] == "Always"
    assert "PASSWORD" not in str(spec)
    assert "run" not in spec["containers"][0].values()
    assert list(spec["affinity"]) == ["nodeAffinity"]
    assert [each["matchExpressions"] for each in terms_of(spec)] == [each["matchExpressions"] for each in terms]
    assert away(made) == [["x", "y"]] * 2
    made["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    found = read(made)
    assert found is not None
    assert (sorted(found.nodes), found.attempt, str(found.pod)) == (["x", "y"], 2, "uid-pod")


@pytest.mark.parametrize("change", [{"annotations": {}}, {"name": "mine"}], ids=["annotation", "name"])
def test_other_pods_of_the_namespace_are_left_alone(world: World, change: dict[str, Any]) -> None:
    metadata = {"name": "for-x", "annotations": {names.ANNOTATION_ATTEMPT: "1"}} | change
    world.add_pod(5, namespace=names.PLACEHOLDERS, **metadata)
    assert len(tick(world, chore(world, OFF))) == 1
    bad = world.add_pod(5, name="for-y", namespace=names.PLACEHOLDERS, annotations={names.ANNOTATION_ATTEMPT: "many"})
    tick(world, chore(world, OFF))
    assert world.api.read(path_of(bad))
