"""What pods are told that the scheduler has given up on."""

import pytest

from controller.reconcile import unschedulable
from controller.reconcile.advice import REASON_UNSCHEDULABLE, Tell
from controller.reconcile.unschedulable import Note, Nudge
from gpushare.cluster.records import Pending
from gpushare.identity import NodeName
from gpushare.model.request import PodRequest
from gpushare.model.verdict import RefusalReason, Refused
from testing.builders import make_ledger, make_ref, make_shape

REQUEST = PodRequest(pod=make_ref(), shape=make_shape(10))
POD = Pending(ref=make_ref(), request=REQUEST, unschedulable=True)


def step(note: Note, *, fits: bool, now: float, why: str = "full", freed: int = 0) -> tuple[object, Note]:
    return unschedulable.decide(POD, fits=fits, why=lambda: "" if fits else why, note=note, now=now, freed=freed)


def refused(message: str, *, permanent: bool = False) -> Refused:
    return Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, message, permanent=permanent)


def test_the_reason_is_told_at_once_and_once() -> None:
    action, note = step(Note(), fits=False, now=0)
    assert action == Tell(make_ref(), REASON_UNSCHEDULABLE, "full")
    for now in (1, 59, 60, 600):
        action, note = step(note, fits=False, now=now)
        assert action is None


def test_another_reason_is_told_after_a_while_and_then_ever_less_often() -> None:
    told = []
    note = Note()
    for now in range(4000):
        action, note = step(note, fits=False, now=now, why=f"full at {now}")
        if action:
            told.append(now)
    assert told == [0, 60, 180, 420, 900, 1860, 2820, 3780]


def test_the_same_reason_is_told_again_before_its_event_expires() -> None:
    _, note = step(Note(), fits=False, now=0)
    assert step(note, fits=False, now=2699)[0] is None
    assert step(note, fits=False, now=2700)[0] == Tell(make_ref(), REASON_UNSCHEDULABLE, "full")


def test_a_pod_that_fits_unnoticed_for_three_seconds_is_nudged() -> None:
    action, note = step(Note(), fits=True, now=0)
    assert action is None
    action, note = step(note, fits=True, now=2.9)
    assert action is None
    assert step(note, fits=True, now=3)[0] == Nudge(make_ref(), "1")


def test_a_pod_that_fits_is_told_what_there_is_to_tell_and_nudged() -> None:
    action, note = unschedulable.decide(POD, fits=True, why=lambda: "create it again", note=Note(), now=0, freed=0)
    assert action == Tell(make_ref(), REASON_UNSCHEDULABLE, "create it again")
    _, note = step(note, fits=True, now=1)
    assert step(note, fits=True, now=4)[0] == Nudge(make_ref(), "1")


def test_nudges_come_ever_less_often_and_only_when_memory_was_freed() -> None:
    told = []
    note = Note()
    for now in range(300):
        action, note = step(note, fits=True, now=now, freed=now // 100)
        if action:
            told.append(now)
    assert told == [3, 100, 200]
    told, note = [], Note()
    for now in range(300):
        action, note = step(note, fits=True, now=now, freed=now)
        if action:
            told.append(now)
    assert told == [3, 9, 21, 45, 93, 153, 213, 273]


def test_a_pod_that_stops_to_fit_starts_again() -> None:
    _, note = step(Note(), fits=True, now=0)
    _, note = step(note, fits=False, now=2)
    assert step(note, fits=True, now=4)[0] is None


@pytest.mark.parametrize(("before", "after"), [("", "1"), ("7", "8"), ("x", "1"), ("1000000", "1")])
def test_a_nudge_writes_another_value(before: str, after: str) -> None:
    pod = Pending(ref=make_ref(), request=REQUEST, unschedulable=True, retry=before)
    note = Note(fits_since=0)
    action, _ = unschedulable.decide(pod, fits=True, why=str, note=note, now=3, freed=1)
    assert action == Nudge(make_ref(), after)


def test_the_message_has_the_numbers_of_the_closest_nodes() -> None:
    sizes = {"a": 3, "b": 9, "c": 7, "d": 5, "e": 1}
    answers: dict[NodeName, int | Refused] = {
        NodeName(name): refused(f"needs 10 GiB on one GPU; free per GPU on {name}: {free} GiB")
        for name, free in sizes.items()
    }
    answers[NodeName("cpu")] = Refused(RefusalReason.NO_INVENTORY, "no GPUs", permanent=True)
    ledgers = {NodeName(name): make_ledger([free]) for name, free in sizes.items()}
    assert unschedulable.explain(answers, ledgers) == (
        "needs 10 GiB on one GPU; free per GPU on b: 9 GiB; free per GPU on c: 7 GiB; free per GPU on d: 5 GiB;"
        " and 2 more nodes with GPUs"
    )
    assert not unschedulable.fits_somewhere(answers)


def test_nodes_that_can_never_hold_the_pod_come_last() -> None:
    answers: dict[NodeName, int | Refused] = {
        NodeName("a"): refused("needs 2 GPUs; a has 1", permanent=True),
        NodeName("b"): refused("b is full"),
        NodeName("c"): refused("c is full"),
        NodeName("d"): refused("d is full"),
    }
    assert unschedulable.explain(answers, {}) == "b is full; c is full; d is full; and 1 more node with GPUs"


def test_one_message_is_said_as_it_is() -> None:
    assert unschedulable.explain({NodeName("a"): refused("a has no healthy GPU")}, {}) == "a has no healthy GPU"


def test_a_cluster_without_gpus_says_so() -> None:
    none = Refused(RefusalReason.NO_INVENTORY, "x", permanent=True)
    assert unschedulable.explain({}, {}) == "the cluster has no nodes"
    assert unschedulable.explain({NodeName("a"): none, NodeName("b"): none}, {}) == (
        "none of the 2 nodes has reported GPUs; is the gpushare device plugin running?"
    )


def test_one_fitting_node_is_enough() -> None:
    assert unschedulable.fits_somewhere({NodeName("a"): refused("x"), NodeName("b"): 0})


def reasons(*answers: tuple[RefusalReason, bool]) -> RefusalReason:
    return unschedulable.reason(
        {NodeName(f"n{number}"): Refused(reason, "", permanent=stays) for number, (reason, stays) in enumerate(answers)}
    )


def test_a_pod_waits_for_what_most_nodes_lack_that_may_have_it_one_day() -> None:
    memory, healthy = (RefusalReason.INSUFFICIENT_GPU_MEMORY, False), (RefusalReason.NO_HEALTHY_GPU, False)
    few, unknown = (RefusalReason.TOO_FEW_GPUS, True), (RefusalReason.NO_INVENTORY, False)
    assert reasons(memory, healthy, memory, few, few, few) is RefusalReason.INSUFFICIENT_GPU_MEMORY
    assert reasons(few, unknown, unknown) is RefusalReason.TOO_FEW_GPUS
    assert reasons(unknown) is RefusalReason.NO_INVENTORY
    assert reasons() is RefusalReason.NO_INVENTORY
