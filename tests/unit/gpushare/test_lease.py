import pytest

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Params
from gpushare.kube.lease import Elector
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube

LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/lead"


def make_elector(api: FakeKube, identity: str, clock: ManualClock, **times: float) -> Elector:
    return Elector(api=api, clock=clock, namespace="ns", name="lead", identity=identity, **times)


@pytest.fixture
def api() -> FakeKube:
    return FakeKube()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0)


def leader(api: FakeKube, clock: ManualClock) -> Elector:
    found = make_elector(api, "a", clock)
    assert found.attempt()
    return found


def lead(elector: Elector, clock: ManualClock, *, until: float, retry_s: float = 2.0) -> list[float]:
    """Compete every `retry_s` until a moment, then release; the times at which the lead was won."""
    won = []
    while clock.at < until:
        before = elector.leading()
        if elector.attempt() and not before:
            won.append(clock.at)
        clock.at += retry_s
    if elector.leading():
        elector.release()
    return won


def test_the_first_candidate_leads_at_once_and_what_it_releases_is_taken_at_once(
    api: FakeKube, clock: ManualClock
) -> None:
    assert lead(make_elector(api, "a", clock), clock, until=4) == [0]
    assert api.read(LEASE)["spec"]["holderIdentity"] == ""
    assert lead(make_elector(api, "b", clock), clock, until=10) == [4]
    assert api.read(LEASE)["spec"]["leaseTransitions"] == 1


def test_a_renewed_lease_is_never_taken_and_a_dead_leader_followed_after_the_leases_length(
    api: FakeKube, clock: ManualClock
) -> None:
    first, other = leader(api, clock), make_elector(api, "b", clock)
    for _ in range(30):
        assert first.attempt()
        assert not other.attempt()
        clock.at += 2
    assert lead(other, clock, until=100) == [74]  # the first try at or after 15 s by its own clock


def test_clocks_that_differ_change_nothing(api: FakeKube, clock: ManualClock) -> None:
    """The other's stamps are compared with each other only, never with the own clock."""
    leader(api, clock)
    ahead = ManualClock(at=3600)
    other = make_elector(api, "b", ahead)
    assert not other.attempt()
    ahead.at += 14
    assert not other.attempt()
    ahead.at += 1
    assert other.attempt()


def test_of_two_candidates_one_wins_at_once(api: FakeKube, clock: ManualClock) -> None:
    one, two = make_elector(api, "a", clock), make_elector(api, "b", clock)
    api.fail_next(lambda call: call.verb == "get", kube.NotFoundError("not yet"), times=2)
    assert one.attempt()
    assert not two.attempt()  # its create conflicts


def test_a_lease_that_is_deleted_makes_no_second_leader(api: FakeKube, clock: ManualClock) -> None:
    first, other = leader(api, clock), make_elector(api, "b", clock)
    assert not other.attempt()
    api.vanish(LEASE)
    clock.at = 9
    assert first.leading()
    clock.at = 18.9  # the follower has not reached the API server for longer than a lease
    assert not other.attempt()
    clock.at += 15
    assert not first.leading()
    assert other.attempt()


def test_a_leader_that_cannot_renew_knows_it_before_anybody_else_leads(api: FakeKube, clock: ManualClock) -> None:
    first, other = leader(api, clock), make_elector(api, "b", clock)
    assert not other.attempt()
    api.fail_next(lambda call: call.verb == "update", kube.UnreachableError("cut"), times=99)
    clock.at = 9.9
    assert first.attempt()
    clock.at = 10
    assert not first.attempt()
    assert not first.leading()
    api.calm()
    clock.at = 14.9
    assert not other.attempt()
    clock.at = 15
    assert other.attempt()


def test_a_lease_taken_by_another_or_slept_through_ends_the_lead_at_once(api: FakeKube, clock: ManualClock) -> None:
    elector = leader(api, clock)
    clock.at += 3600  # the machine slept, and its clock did not
    assert not elector.leading()
    assert not elector.attempt()
    clock.at += 15
    assert elector.attempt()
    api.edit(LEASE, lambda lease: lease["spec"].update(holderIdentity="b"))
    assert not elector.attempt()
    assert not elector.leading()


def test_a_reply_that_was_lost_is_not_taken_for_a_lead(api: FakeKube, clock: ManualClock) -> None:
    elector = make_elector(api, "a", clock)
    api.fail_next(lambda call: call.verb == "create", "lost-reply")
    assert not elector.attempt()
    clock.at = 2
    assert not elector.attempt()  # the lease that it made itself is waited out, like anybody's
    clock.at = 17
    assert elector.attempt()


def test_a_release_that_fails_is_logged_only(
    api: FakeKube, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    elector = leader(api, clock)
    api.fail_next(lambda call: call.verb == "get", kube.UnreachableError("gone"))
    elector.release()
    assert not elector.leading()
    assert "lease not released" in caplog.messages
    make_elector(api, "b", clock).release()
    assert api.read(LEASE)["spec"]["holderIdentity"] == "a"


def test_times_must_leave_room_between_giving_up_and_taking_over(api: FakeKube, clock: ManualClock) -> None:
    with pytest.raises(ValueError, match=r"renew 15\.0 s < lease 15\.0 s must hold"):
        make_elector(api, "i", clock, renew_s=15.0)


class Slow(FakeKube):
    """Every request takes a while of a manual clock, at most its timeout; `sent` tells which had how long."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.takes_s = 0.0
        self.sent: list[tuple[str, float]] = []
        self._clock = clock

    def get(self, path: str, params: Params | None = None, *, timeout_s: float = 5.0) -> JsonObject:
        answer = super().get(path, params, timeout_s=timeout_s)  # as of the moment at which it arrived
        self._pass("get", timeout_s)
        return answer

    def replace(self, path: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        self._pass("update", timeout_s)
        return super().replace(path, body, timeout_s=timeout_s)

    def _pass(self, verb: str, timeout_s: float) -> None:
        self.sent.append((verb, timeout_s))
        self._clock.at += min(self.takes_s, timeout_s)
        if self.takes_s > timeout_s:
            raise kube.UnreachableError("timed out")


def test_a_leader_renews_by_one_request_and_finds_one_whose_answer_was_lost(api: FakeKube, clock: ManualClock) -> None:
    elector = leader(api, clock)
    api.calls.clear()
    assert elector.attempt()
    assert [call.verb for call in api.calls] == ["update"]
    api.fail_next(lambda call: call.verb == "update", "lost-reply")
    clock.at = 2
    elector.attempt()
    clock.at = 4
    assert elector.attempt()
    assert elector.leading_until == 14


def test_a_slow_server_costs_no_one_the_lead_and_a_lost_request_is_repeated_before_it_ends(clock: ManualClock) -> None:
    """Every request takes four seconds, as on an overloaded machine."""
    api = Slow(clock)
    elector = leader(api, clock)
    api.takes_s = 4.0
    for _ in range(10):
        clock.at += 2
        assert elector.attempt()
    clock.at = elector.leading_until - 8
    api.sent.clear()
    api.takes_s = 100.0
    assert elector.attempt()
    assert not elector.attempt()
    assert (api.sent, clock.at) == ([("update", 5.0), ("update", 3.0)], elector.leading_until)


def test_a_candidate_counts_from_the_answer_that_showed_a_renewal(clock: ManualClock) -> None:
    """Its question may be older than the renewal; counted from there, it would lead while the leader still may."""
    api = Slow(clock)
    other = make_elector(api, "b", clock)
    leader(api, clock)
    api.takes_s = 4.0
    assert not other.attempt()  # asked at 0, answered at 4
    api.takes_s = 0.0
    clock.at = 18.9
    assert not other.attempt()
    clock.at = 19
    assert other.attempt()


@pytest.mark.parametrize("lease", [{}, {"metadata": {}, "spec": []}, {"metadata": None}])
def test_what_is_no_lease_is_logged_and_not_taken_for_a_lead(
    lease: JsonObject, caplog: pytest.LogCaptureFixture
) -> None:
    class Proxy(FakeKube):
        def get(self, path: str, params: Params | None = None, *, timeout_s: float = 5.0) -> JsonObject:
            return lease

    assert not make_elector(Proxy(), "a", ManualClock(0)).attempt()
    assert "lease" in caplog.messages


def test_a_candidate_with_a_shorter_lease_does_not_lead_before_a_fractional_lease_has_ended(
    api: FakeKube, clock: ManualClock
) -> None:
    short = make_elector(api, "b", clock, lease_s=11)
    assert make_elector(api, "a", clock, lease_s=15.9).attempt()
    assert not short.attempt()
    clock.at = 15.5
    assert not short.attempt()
    clock.at = 16.1
    assert short.attempt()
