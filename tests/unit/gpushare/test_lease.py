import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from gpushare.kube import api as kube
from gpushare.kube.lease import Elector
from testing.fakes.kube import FakeKube

LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/lead"


@dataclass
class ManualClock:
    """Time that passes only in `wait`, where a test can act."""

    at: float = 0.0
    each_wait: Callable[[float], None] = field(default=lambda _at: None)

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.at += seconds
        self.each_wait(self.at)
        return stop.is_set()


def make_elector(api: FakeKube, identity: str, clock: ManualClock) -> Elector:
    return Elector(api=api, clock=clock, namespace="ns", name="lead", identity=identity)


def lead(elector: Elector, clock: ManualClock, *, until: float) -> list[float]:
    """Run an elector until a moment; the times at which it won the lead."""
    stop, won = threading.Event(), []

    def each_wait(at: float) -> None:
        if at >= until:
            stop.set()

    clock.each_wait = each_wait
    elector.run(stop, lambda: won.append(clock.at))
    return won


def test_the_first_candidate_leads_at_once_and_releases_at_the_end() -> None:
    api, clock = FakeKube(), ManualClock()
    assert lead(make_elector(api, "a", clock), clock, until=30) == [0]
    assert api.read(LEASE)["spec"]["holderIdentity"] == ""


def test_a_released_lease_is_taken_at_once() -> None:
    api, clock = FakeKube(), ManualClock()
    lead(make_elector(api, "a", clock), clock, until=4)
    assert lead(make_elector(api, "b", clock), clock, until=10) == [4]
    assert api.read(LEASE)["spec"]["leaseTransitions"] == 1


def test_a_dead_leader_is_followed_after_the_leases_length() -> None:
    api, clock = FakeKube(), ManualClock()
    make_elector(api, "a", clock)._try()
    won = lead(make_elector(api, "b", clock), clock, until=40)
    assert won == [16]  # the first try at or after 15 s by its own clock


def test_a_renewed_lease_is_never_taken() -> None:
    api, clock = FakeKube(), ManualClock()
    leader, other = make_elector(api, "a", clock), make_elector(api, "b", clock)
    for _ in range(30):
        assert leader._try()
        assert not other._try()
        clock.at += 2


def test_clocks_that_differ_by_an_hour_change_nothing() -> None:
    """The other's stamps are compared with each other only, never with the own clock."""
    api, behind, ahead = FakeKube(), ManualClock(), ManualClock(at=3600)
    leader, other = make_elector(api, "a", behind), make_elector(api, "b", ahead)
    assert leader._try()
    assert not other._try()
    ahead.at += 14
    assert not other._try()
    ahead.at += 1
    assert other._try()


def test_a_leader_that_cannot_renew_knows_it_before_anybody_else_leads() -> None:
    api, clock = FakeKube(), ManualClock()
    leader, other = make_elector(api, "a", clock), make_elector(api, "b", clock)
    leader._try()
    assert not other._try()
    api.fail_next(lambda call: call.verb == "update", kube.UnreachableError("cut"), times=99)
    clock.at = 9.9
    assert leader._try()
    clock.at = 10
    assert not leader._try()
    assert not leader.leading()
    api.calm()
    clock.at = 14.9
    assert not other._try()
    clock.at = 15
    assert other._try()


def test_losing_the_lead_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    api, clock = FakeKube(), ManualClock()
    elector = make_elector(api, "a", clock)
    api.fail_next(lambda call: call.verb == "update", kube.ServerFaultError("etcd"), times=99)
    elector.run(threading.Event(), lambda: None)
    assert clock.at == 10
    assert "lead lost" in caplog.messages
    assert api.read(LEASE)["spec"]["holderIdentity"] == "a"


def test_a_lease_taken_by_another_ends_the_lead_at_once() -> None:
    api, clock = FakeKube(), ManualClock()
    leader = make_elector(api, "a", clock)
    leader._try()
    api.edit(LEASE, lambda lease: lease["spec"].update(holderIdentity="b"))
    assert not leader._try()
    assert not leader.leading()


def test_of_two_candidates_at_once_one_wins() -> None:
    api, clock = FakeKube(), ManualClock()
    one, two = make_elector(api, "a", clock), make_elector(api, "b", clock)
    api.fail_next(lambda call: call.verb == "get", kube.NotFoundError("not yet"), times=2)
    assert one._try()
    assert not two._try()  # its create conflicts


def test_a_reply_that_was_lost_is_not_taken_for_a_lead() -> None:
    api, clock = FakeKube(), ManualClock()
    elector = make_elector(api, "a", clock)
    api.fail_next(lambda call: call.verb == "create", "lost-reply")
    assert not elector._try()
    clock.at = 2
    assert not elector._try()  # the lease that it made itself is waited out, like anybody's
    clock.at = 17
    assert elector._try()


def test_a_candidate_stops_without_having_led() -> None:
    api, clock = FakeKube(), ManualClock()
    make_elector(api, "a", clock)._try()
    assert lead(make_elector(api, "b", clock), clock, until=6) == []


def test_a_release_that_fails_is_logged_only(caplog: pytest.LogCaptureFixture) -> None:
    api, clock = FakeKube(), ManualClock()
    elector = make_elector(api, "a", clock)
    elector._try()
    api.fail_next(lambda call: call.verb == "get", kube.UnreachableError("gone"))
    elector._release()
    assert "lease not released" in caplog.messages
    elector = make_elector(api, "b", clock)
    elector._release()
    assert api.read(LEASE)["spec"]["holderIdentity"] == "a"


def test_times_must_leave_room_between_giving_up_and_taking_over() -> None:
    with pytest.raises(ValueError, match=r"retry 2\.0 s < renew 15\.0 s < lease 15\.0 s must hold"):
        Elector(api=FakeKube(), clock=ManualClock(), namespace="n", name="l", identity="i", renew_s=15.0)
