"""Which reservations are looked at, when, and in which order; and which end when their pod is seen."""

from dataclasses import replace
from typing import Final

import pytest

from controller.reservations import GONE_GRACE_S, Reservation, Reservations
from gpushare.cluster.groups import LabelIndex
from gpushare.identity import NodeName, PodUid
from testing.builders import make_allocation, make_grant

OLD_S: Final = 120.0
ALL: Final = ("a", "b", "c")


def made(*pods: str, since: float = 0.0, bypassed: bool = False, node: str = "node-a") -> Reservations:
    found = Reservations(LabelIndex([]))
    for pod in pods:
        allocation = replace(make_allocation(pod, make_grant(0), node=node), labels={"app": pod})
        found.add(Reservation(allocation=allocation, since=since, bypassed=bypassed))
    return found


def uid(pod: str) -> PodUid:
    return PodUid(f"uid-{pod}")


def due(found: Reservations, now: float, *, known: tuple[str, ...] = ALL, most: int = 9) -> list[str]:
    in_doubt = found.in_doubt(now, after_s=OLD_S, known=[uid(pod) for pod in known], most=most)
    return [known.allocation.pod.name for known, _ in in_doubt]


def test_those_are_looked_at_first_that_waited_longest() -> None:
    """One look for each, then again from the one whose look is the longest ago: more than a tick can look at."""
    found = made(*ALL)
    assert due(found, 200, most=2) == ["a", "b"]
    assert due(found, 205, most=2) == ["c"]
    assert due(found, 220, most=2) == ["a", "b"]
    assert due(found, 231, most=2) == ["c", "a"]


def test_the_same_pod_is_looked_at_every_ten_seconds_and_not_while_its_choice_is_being_sent() -> None:
    found = made("a")
    assert [now for now in range(200, 232) if due(found, now)] == [200, 210, 220, 230]
    (known,) = found.all()
    known.senders = 1
    assert due(found, 1000) == []
    known.senders = 0
    assert due(found, 1000) == ["a"]


def test_a_choice_is_looked_at_when_it_is_old_and_soon_if_its_pod_is_unknown() -> None:
    found = made("a", "b", since=1000)
    assert due(found, 1009.9, known=("a",)) == []
    assert due(found, 1010, known=("a",)) == ["b"]
    assert due(found, 1019.9 + 100, known=("a",)) == ["b"]
    assert due(found, 1120, known=("a",)) == ["a"]


def test_a_pod_that_is_seen_on_its_node_without_gpus_ends_its_binding_and_not_its_patch() -> None:
    for bypassed, ended in ((True, []), (False, ["node-a"])):
        assert made("a", bypassed=bypassed).drop_pod(uid("a"), but_bypassed_on=NodeName("node-a")) == ended
        assert made("a", bypassed=bypassed).drop_pod(uid("a"), but_bypassed_on=NodeName("node-b")) == ["node-a"]
        assert made("a", bypassed=bypassed).drop_pod(uid("a")) == ["node-a"]


@pytest.mark.parametrize(
    ("senders", "returned", "in_doubt", "bypassed", "counted"),
    [
        (0, 0, False, False, (0, 0, 0)),
        (1, 0, False, False, (1, 1, 1)),
        (1, 1, False, False, (1, 0, 0)),
        (2, 1, False, False, (1, 1, 1)),
        (2, 2, False, False, (1, 0, 0)),
        (0, 0, True, False, (1, 1, 0)),
        (1, 0, True, False, (1, 1, 1)),
        (1, 1, True, False, (1, 1, 0)),
        (1, 1, True, True, (0, 0, 0)),
    ],
)
def test_of_a_pod_that_is_seen_a_binding_is_counted_until_it_has_returned_and_one_in_doubt_for_a_while(
    senders: int, returned: int, in_doubt: bool, bypassed: bool, counted: tuple[int, int, int]
) -> None:
    """Counted once the pod is seen, once so many requests have returned, and after the grace period."""
    reservations = made("a", since=50, bypassed=bypassed)
    (known,) = reservations.all()
    known.senders, known.in_doubt = senders, in_doubt
    assert reservations.drop_pod(uid("a")) == ["node-a"]
    assert not list(reservations.all())
    first = [allocation.labels for allocation in reservations.counted()]
    ended = [reservations.returned(known) for _ in range(returned)]
    assert [*filter(None, ended)] == [[known]] * (counted[0] - counted[1])
    second = len(reservations.counted())
    assert reservations.expire(50 + GONE_GRACE_S - 0.1) == []
    assert reservations.expire(50 + GONE_GRACE_S) == [known] * (counted[1] - counted[2])
    assert first == [{}] * counted[0]
    assert (second, len(reservations.counted())) == counted[1:]
    assert reservations.expire(1e6) == []


def test_the_end_of_a_former_choice_leaves_the_present_one() -> None:
    reservations = made("a")
    (known,) = reservations.all()
    known.in_doubt = True
    reservations.drop_pod(uid("a"))
    reservations.add(Reservation(allocation=make_allocation("a", make_grant(0)), since=1, bypassed=False))
    reservations.expire(1e6)
    assert len(reservations.counted()) == 1


def test_a_reservation_that_ended_takes_no_memory() -> None:
    reservations = made("a", "b")
    reservations.drop(uid("a"), NodeName("node-a"))
    reservations.drop(uid("a"), NodeName("node-a"))
    assert (list(reservations._by_pod), list(reservations._by_node)) == ([uid("b")], ["node-a"])
    reservations.drop(uid("b"), NodeName("node-a"))
    assert not reservations._by_pod
    assert not reservations._by_node
