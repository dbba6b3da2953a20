from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from certs import rotation, store
from certs.rotation import Action, Facts, Pair, Phase, Plan, Reason, SecretState, Step, Unreadable, Verdict
from certs.store import SecretData

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
PLAN = Plan(names=frozenset({"webhook.svc"}), leaf_life=DAY, ca_life=DAY, propagation=60 * SECOND, retire=600 * SECOND)


def facts(name: str, *, issuer: str, age: float = 1, left: float = 89) -> Facts:
    return Facts(
        fingerprint=name,
        key=f"{name}-key",
        issuer=issuer,
        names=PLAN.names,
        not_before=NOW - age * DAY,
        not_after=NOW + left * DAY,
    )


LEAF = Pair(facts("leaf", issuer="ca"), "leaf-key")
CA = Pair(facts("ca", issuer="ca"), "ca-key")
NEXT = Pair(facts("next", issuer="next"), "next-key")
OLD = "67% of its life is over, expires at 2026-03-30T00:00:00Z"
OLD_LEAF = Pair(facts("leaf", issuer="ca", age=61, left=29), "leaf-key")
DEAD_LEAF = Pair(facts("leaf", issuer="ca", age=90, left=0), "leaf-key")
OLD_CA = Pair(facts("ca", issuer="ca", age=61, left=29), "ca-key")
DEAD_CA = Pair(facts("ca", issuer="ca", age=90, left=0), "ca-key")
KEYLESS_CA = Pair(facts("ca", issuer="ca"), None)
BROKEN = Pair(Unreadable("is no PEM certificate"), None)
STEADY = SecretState(leaf=LEAF, ca=CA, next_ca=None, others=0, since=None, rotate="", rotated="")
ANNOUNCING = replace(STEADY, next_ca=NEXT)
WAITING = replace(ANNOUNCING, since=NOW - 59 * SECOND)
RETIRING = replace(STEADY, others=1, since=NOW - 599 * SECOND)


@pytest.mark.parametrize(
    ("material", "step"),
    [
        # Steady.
        (STEADY, None),
        (replace(STEADY, leaf=OLD_LEAF), Step(Action.RENEW_LEAF, f"leaf: {OLD}")),
        (replace(STEADY, leaf=DEAD_LEAF), Step(Action.RENEW_LEAF, "leaf: expired at 2026-03-01T00:00:00Z")),
        (replace(STEADY, leaf=BROKEN), Step(Action.RENEW_LEAF, "leaf: private key missing")),
        (replace(STEADY, ca=OLD_CA), Step(Action.ANNOUNCE, f"CA: {OLD}")),
        (replace(STEADY, ca=KEYLESS_CA), Step(Action.ANNOUNCE, "CA: private key missing")),
        (replace(STEADY, ca=KEYLESS_CA, leaf=OLD_LEAF), Step(Action.ANNOUNCE, "CA: private key missing")),
        (replace(STEADY, rotate="1"), Step(Action.ANNOUNCE, "rotation was asked for")),
        (replace(STEADY, rotate="1", rotated="1"), None),
        (replace(STEADY, rotated="1"), None),
        (replace(STEADY, ca=DEAD_CA), Step(Action.MAKE, "CA: expired at 2026-03-01T00:00:00Z")),
        (replace(STEADY, ca=KEYLESS_CA, leaf=DEAD_LEAF), Step(Action.MAKE, "leaf: expired at 2026-03-01T00:00:00Z")),
        (replace(STEADY, ca=BROKEN), Step(Action.MAKE, "leaf: not signed by the CA in use")),
        # Announcing.
        (ANNOUNCING, Step(Action.CONFIRM)),
        (WAITING, None),
        (replace(WAITING, since=NOW - 60 * SECOND), Step(Action.SWITCH, "the next CA is known everywhere")),
        (replace(WAITING, since=NOW + 61 * SECOND), Step(Action.CONFIRM)),
        (replace(WAITING, since=NOW + 5 * SECOND), None),
        (replace(WAITING, rotate="2"), None),
        (replace(WAITING, leaf=OLD_LEAF), Step(Action.RENEW_LEAF, f"leaf: {OLD}")),
        (replace(WAITING, leaf=OLD_LEAF, ca=KEYLESS_CA), None),
        (replace(WAITING, leaf=DEAD_LEAF, ca=KEYLESS_CA), Step(Action.SWITCH, "leaf: expired at 2026-03-01T00:00:00Z")),
        (replace(WAITING, ca=DEAD_CA), Step(Action.SWITCH, "CA: expired at 2026-03-01T00:00:00Z")),
        (replace(WAITING, next_ca=BROKEN), Step(Action.ANNOUNCE, "next CA: private key missing")),
        (replace(WAITING, next_ca=BROKEN, leaf=BROKEN, ca=BROKEN), Step(Action.MAKE, "next CA: private key missing")),
        # Retiring.
        (RETIRING, None),
        (replace(RETIRING, since=NOW - 600 * SECOND), Step(Action.RETIRE)),
        (replace(RETIRING, since=None), Step(Action.CONFIRM)),
        (replace(RETIRING, since=NOW + 601 * SECOND), Step(Action.CONFIRM)),
        (replace(RETIRING, rotate="2"), None),
        (replace(RETIRING, ca=OLD_CA), None),
        (replace(RETIRING, ca=KEYLESS_CA), Step(Action.ANNOUNCE, "CA: private key missing")),
        (replace(RETIRING, leaf=DEAD_LEAF), Step(Action.RENEW_LEAF, "leaf: expired at 2026-03-01T00:00:00Z")),
    ],
)
def test_the_next_step_follows_from_the_secret(material: SecretState, step: Step | None) -> None:
    assert rotation.decide(material, PLAN, NOW, in_configurations=True, adoptable=False) == step


@pytest.mark.parametrize(
    ("material", "step"),
    [
        (ANNOUNCING, None),
        (WAITING, Step(Action.UNCONFIRM)),
        (replace(WAITING, since=NOW - DAY), Step(Action.UNCONFIRM)),
        (replace(WAITING, leaf=DEAD_LEAF, ca=KEYLESS_CA), Step(Action.SWITCH, "leaf: expired at 2026-03-01T00:00:00Z")),
        (STEADY, None),
    ],
)
def test_a_new_ca_is_not_used_before_the_configurations_carry_it(material: SecretState, step: Step | None) -> None:
    assert rotation.decide(material, PLAN, NOW, in_configurations=False, adoptable=False) == step


@pytest.mark.parametrize("material", [None, replace(STEADY, ca=BROKEN), replace(STEADY, ca=BROKEN, leaf=BROKEN)])
def test_a_leaf_that_is_served_outlives_the_loss_of_the_secret(material: SecretState | None) -> None:
    for adoptable, action in ((True, Action.ADOPT), (False, Action.MAKE)):
        step = rotation.decide(material, PLAN, NOW, in_configurations=True, adoptable=adoptable)
        assert step is not None
        assert step.action is action


def test_the_phase_follows_from_the_content_and_without_a_next_ca_there_is_nothing_to_switch_to() -> None:
    with pytest.raises(ValueError, match="there is no next CA to switch to"):
        store.after(Action.SWITCH, SecretData(), PLAN, served=SecretData(), known=(), now=NOW)
    for material, phase in [(STEADY, Phase.STEADY), (ANNOUNCING, Phase.ANNOUNCING), (RETIRING, Phase.RETIRING)]:
        assert material.phase is phase


GOOD = replace(facts("leaf", issuer="ca", age=30, left=60), key="key")
AGED = replace(GOOD, not_before=NOW - 60 * DAY, not_after=NOW + 30 * DAY)
DEAD = replace(GOOD, not_after=NOW)


def check_leaf(pair: Pair, now: datetime = NOW) -> Verdict:
    return rotation.check("leaf", pair, now, names=PLAN.names, issuers=frozenset({"ca"}))


MISMATCH = "private key does not belong to the certificate"


@pytest.mark.parametrize(
    ("pair", "reason", "message"),
    [
        (Pair(None, None), Reason.MISSING, "certificate and private key missing"),
        (Pair(None, "key"), Reason.MISSING, "certificate missing"),
        (Pair(Unreadable("is no PEM"), None), Reason.MISSING, "private key missing"),
        (Pair(Unreadable("is no PEM"), "key"), Reason.UNREADABLE, "certificate is no PEM"),
        (Pair(GOOD, Unreadable("is no PEM")), Reason.UNREADABLE, "private key is no PEM"),
        (Pair(GOOD, "other"), Reason.KEY_MISMATCH, MISMATCH),
        (Pair(replace(GOOD, names=frozenset({"x"})), "key"), Reason.WRONG_NAMES, "lacks webhook.svc"),
        (Pair(replace(GOOD, issuer="old"), "key"), Reason.UNKNOWN_ISSUER, "not signed by the CA in use"),
        (Pair(replace(GOOD, issuer=None), "key"), Reason.UNKNOWN_ISSUER, "not signed by the CA in use"),
        (Pair(DEAD, "key"), Reason.EXPIRED, "expired at 2026-03-01T00:00:00Z"),
        (Pair(AGED, "key"), Reason.NEAR_EXPIRY, "67% of its life is over, expires at 2026-03-31T00:00:00Z"),
        (Pair(replace(DEAD, issuer="old"), "other"), Reason.KEY_MISMATCH, MISMATCH),
    ],
)
def test_a_certificate_is_renewed_for_the_first_reason_of_the_list(pair: Pair, reason: Reason, message: str) -> None:
    assert check_leaf(pair) == Verdict(reason, f"leaf: {message}")
    if reason not in {Reason.WRONG_NAMES, Reason.UNKNOWN_ISSUER}:
        assert rotation.check("CA", pair, NOW) == Verdict(reason, f"CA: {message}")


def test_a_ca_needs_no_name_and_signs_itself() -> None:
    assert rotation.check("CA", Pair(replace(GOOD, names=frozenset(), issuer=None), "key"), NOW) == Verdict()


def test_a_good_certificate_is_kept_until_two_thirds_of_its_life_and_can_still_be_used_then() -> None:
    at = NOW + 30 * DAY
    assert check_leaf(Pair(GOOD, "key"), at - SECOND) == Verdict()
    assert check_leaf(Pair(GOOD, "key"), at).reason
    assert [reason for reason in (None, *Reason) if not Verdict(reason).unusable] == [None, Reason.NEAR_EXPIRY]
