"""For which waiting pods a node is asked for: the decision alone."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from controller.reconcile import node_requests
from controller.reconcile.node_requests import Inputs, Limits, Placeholder, Refusal, Refusals, Steps, Why
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.placement.explain import by_sum
from testing.clock import ManualClock

NOW = 1000.0
TODAY = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Limits(most=2, life_s=900)
A, B = NodeName("a"), NodeName("b")
P, Q = PodUid("p"), PodUid("q")


def refusal(*nodes: NodeName, since: float = NOW - node_requests.ASK_AFTER_S, namespace: str = "") -> Refusal:
    return Refusal(since=since, asked=NOW, nodes=nodes or (A,), namespace=namespace)


def asked(
    *nodes: NodeName, age_s: float = node_requests.REPLACE_AFTER_S, attempt: int = 1, namespace: str = ""
) -> Placeholder:
    created = TODAY - timedelta(seconds=age_s)
    return Placeholder(
        uid=PodUid("own"), pod=P, nodes=frozenset(nodes or (A,)), attempt=attempt, created=created, namespace=namespace
    )


def decide(
    *,
    refused: Mapping[str, Refusal] | None = None,
    there: Mapping[str, Placeholder] | None = None,
    waiting: str = "",
    resting: Mapping[str, float] | None = None,
    in_vain: Mapping[str, int] | None = None,
    limits: Limits = LIMITS,
) -> Steps:
    known = Inputs(
        waiting={PodUid(each) for each in waiting},
        refused={PodUid(uid): each for uid, each in (refused or {}).items()},
        asked={PodUid(uid): each for uid, each in (there or {}).items()},
        attempts={},
        resting={PodUid(uid): until for uid, until in (resting or {}).items()},
        in_vain=in_vain or {},
        today=TODAY,
    )
    return node_requests.decide(known, limits, NOW)


def test_those_that_wait_longest_come_first_and_no_more_than_the_limit() -> None:
    refused = {name: refusal(since=since) for name, since in (("p", 30.0), ("q", 10.0), ("r", 20.0))}
    assert list(decide(refused=refused, waiting="pqr").ask) == ["q", "r"]
    assert list(decide(refused=refused, there={"x": asked()}, waiting="pqrx").ask) == ["q"]


def test_namespaces_take_turns() -> None:
    refused = {name: refusal(since=since, namespace="many") for name, since in (("p", 10.0), ("q", 20.0), ("r", 30.0))}
    refused["s"] = refusal(since=40.0, namespace="few")
    assert list(decide(refused=refused, waiting="pqrs").ask) == ["p", "s"]
    there = {"p": asked(namespace="many")}
    assert list(decide(refused=refused, there=there, waiting="pqrs").ask) == ["s"]
    del refused["p"]  # after a change of leader it is not known
    assert list(decide(refused=refused, there=there, waiting="pqrs").ask) == ["s"]


def test_nodes_that_come_in_vain_for_pods_that_are_created_again_and_again_are_bounded() -> None:
    refused = {"p": refusal(namespace="many"), "q": refusal(namespace="many"), "s": refusal(namespace="few")}
    limits = Limits(most=10, life_s=900)
    assert decide(
        refused=refused, waiting="pqs", in_vain={"many": node_requests.MOST_IN_VAIN}, limits=limits
    ).ask.keys() == {"s"}
    one_less = {"many": node_requests.MOST_IN_VAIN - 1}
    assert decide(refused=refused, waiting="pqs", in_vain=one_less, limits=limits).ask.keys() == {"p", "s"}
    there = {"x": asked(namespace="many")}
    assert decide(refused=refused, there=there, waiting="pqsx", in_vain=one_less, limits=limits).ask.keys() == {"s"}


def test_a_pod_has_one_placeholder_until_it_is_bound_or_it_was_there_too_long() -> None:
    assert decide(refused={"p": refusal()}, there={"p": asked()}, waiting="p") == Steps(remove={}, ask={})
    assert decide(there={"p": asked()}, waiting="p").remove == {}  # a new leader has no refusal of the pod yet
    assert decide(there={"p": asked(age_s=0)}).remove == {"p": Why.DONE}
    assert decide(there={"p": asked(age_s=LIMITS.life_s)}, waiting="p").remove == {"p": Why.EXPIRED}


def test_a_placeholder_that_does_not_name_a_node_that_refuses_is_replaced() -> None:
    """On that node an autoscaler sees room for it."""
    refused = {"p": refusal(A, B)}
    assert decide(refused=refused, there={"p": asked(A)}, waiting="p").remove == {"p": Why.OUTDATED}
    assert (
        decide(refused=refused, there={"p": asked(A, age_s=node_requests.REPLACE_AFTER_S - 1)}, waiting="p").remove
        == {}
    )
    assert decide(refused=refused, there={"p": asked(A, B)}, waiting="p").remove == {}


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
NODES = st.lists(st.sampled_from([A, B]), min_size=1, max_size=2)


@given(
    waiting=st.sets(UIDS),
    refused=st.dictionaries(UIDS, st.builds(Refusal, since=st.floats(0, NOW), asked=st.just(NOW), nodes=NODES)),
    there=st.dictionaries(
        UIDS,
        st.builds(
            lambda nodes, age_s: asked(*nodes, age_s=age_s), st.frozensets(st.sampled_from([A, B])), st.floats(0, 2000)
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


ONE = [NodeName("a")]
TWO = [*ONE, NodeName("b")]


def test_the_first_time_and_the_last_nodes_are_kept_until_the_pod_fits() -> None:
    clock = ManualClock(at=1)
    refusals = Refusals(clock)
    refusals.note(ref(P), ONE, fits=False)
    clock.at = 2
    refusals.note(ref(P), TWO, fits=False)
    refusals.note(ref(Q), [], fits=False)  # about which no node was named
    assert refusals.of({P, Q}) == {P: Refusal(since=1, asked=2, nodes=TWO, namespace="team")}
    refusals.note(ref(P), ONE, fits=True)
    assert refusals.of({P, Q}) == {}
    refusals.note(ref(P), ONE, fits=False)
    assert refusals.of(set()) == {}, "the watch has not brought it yet"
    assert refusals.of({P})
    clock.at += node_requests.FORGET_S
    assert refusals.of(set()) == refusals.of({P}) == {}


def test_the_number_of_pods_is_bounded_and_a_namespace_with_many_leaves_places_to_others() -> None:
    clock = ManualClock()
    refusals = Refusals(clock)
    for number in range(node_requests.MOST):
        clock.at = number
        refusals.note(ref(str(number)), ONE, fits=False)
    refusals.note(ref("one more"), ONE, fits=False)
    refusals.note(ref("p", "other"), ONE, fits=False)
    refusals.note(ref("more"), ONE, fits=False)
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
