from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from certs import policy
from certs.policy import Facts, Pair, Reason, Renew, Unreadable

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
GOOD = Facts(
    fingerprint="leaf",
    key="key",
    issuer="ca",
    names=frozenset({"webhook.svc", "webhook.svc.cluster.local"}),
    not_before=NOW - 30 * DAY,
    not_after=NOW + 60 * DAY,
)
OLD = replace(GOOD, not_before=NOW - 60 * DAY, not_after=NOW + 30 * DAY)
DEAD = replace(GOOD, not_after=NOW)


def check_leaf(pair: Pair, now: datetime = NOW) -> Renew | None:
    return policy.check("leaf", pair, now, names=frozenset({"webhook.svc"}), issuers=frozenset({"ca"}))


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
        (Pair(OLD, "key"), Reason.NEAR_EXPIRY, "67% of its life is over, expires at 2026-03-31T00:00:00Z"),
        (Pair(replace(DEAD, issuer="old"), "other"), Reason.KEY_MISMATCH, MISMATCH),
    ],
)
def test_a_certificate_is_renewed_for_the_first_reason_of_the_list(pair: Pair, reason: Reason, message: str) -> None:
    assert check_leaf(pair) == Renew(reason, f"leaf: {message}")
    if reason not in {Reason.WRONG_NAMES, Reason.UNKNOWN_ISSUER}:
        assert policy.check("CA", pair, NOW) == Renew(reason, f"CA: {message}")


def test_a_ca_needs_no_name_and_signs_itself() -> None:
    assert policy.check("CA", Pair(replace(GOOD, names=frozenset(), issuer=None), "key"), NOW) is None


def test_a_good_certificate_is_kept_until_two_thirds_of_its_life_and_can_still_be_used_then() -> None:
    at = NOW + 30 * DAY
    assert check_leaf(Pair(GOOD, "key"), at - timedelta(seconds=1)) is None
    assert check_leaf(Pair(GOOD, "key"), at) is not None
    assert [reason for reason in Reason if not Renew(reason, "").urgent] == [Reason.NEAR_EXPIRY]
