"""What is kept of kube-scheduler's questions that ended without a node."""

from controller.refusals import FORGET_S, MOST, MOST_NODES, Refusal, Refusals
from gpushare.cluster.reasons import by_sum
from gpushare.identity import NodeName, PodRef, PodUid
from testing.controller.world import ManualClock


def ref(uid: str, namespace: str = "team") -> PodRef:
    return PodRef(namespace=namespace, name=uid, uid=PodUid(uid))


P, Q = PodUid("p"), PodUid("q")
NODES = [NodeName("a")]
MORE = [*NODES, NodeName("b")]


def test_the_first_time_and_the_last_nodes_are_kept() -> None:
    clock = ManualClock(at=1)
    refusals = Refusals(clock)
    refusals.note(ref(P), NODES, fits=False)
    clock.at = 2
    refusals.note(ref(P), MORE, fits=False)
    assert refusals.of({P}) == {P: Refusal(since=1, asked=2, nodes=MORE, namespace="team")}


def test_a_pod_that_fits_or_about_which_no_node_was_named_is_none() -> None:
    refusals = Refusals(ManualClock())
    refusals.note(ref(P), NODES, fits=False)
    refusals.note(ref(P), NODES, fits=True)
    refusals.note(ref(Q), [], fits=False)
    assert refusals.of({P, Q}) == {}


def test_a_pod_that_the_watch_has_not_brought_yet_is_remembered_for_a_while() -> None:
    clock = ManualClock()
    refusals = Refusals(clock)
    refusals.note(ref(P), NODES, fits=False)
    assert refusals.of(set()) == {}
    assert refusals.of({P})
    clock.at += FORGET_S
    assert refusals.of(set()) == {}
    assert refusals.of({P}) == {}


def test_the_number_of_pods_is_bounded() -> None:
    refusals = Refusals(ManualClock())
    pods = {PodUid(str(number)) for number in range(MOST + 1)}
    for pod in pods:
        refusals.note(ref(pod), NODES, fits=False)
    assert len(refusals.of(pods)) == MOST


def test_a_namespace_with_many_waiting_pods_leaves_places_to_others() -> None:
    clock = ManualClock()
    refusals = Refusals(clock)
    for number in range(MOST):
        clock.at = number
        refusals.note(ref(str(number)), NODES, fits=False)
    refusals.note(ref("p", "other"), NODES, fits=False)
    refusals.note(ref("more"), NODES, fits=False)
    known = refusals.of({P, PodUid("more"), *(PodUid(str(number)) for number in range(MOST))})
    assert P in known
    assert len(known) == MOST
    assert PodUid(str(MOST - 1)) not in known  # the newest of the namespace with most


def test_the_number_of_names_that_are_kept_is_bounded() -> None:
    refusals = Refusals(ManualClock())
    refusals.note(ref("p"), [NodeName(str(number)) for number in range(MOST_NODES + 5)], fits=False)
    known = refusals.of({P})[P]
    assert (len(known.nodes), known.left_out) == (MOST_NODES, 5)
    assert by_sum(known.nodes, known.left_out).startswith(
        f"what is free on 0, 1, 10 and {MOST_NODES + 2} more suffices"
    )
