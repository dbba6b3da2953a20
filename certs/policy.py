"""When a certificate is renewed: a list of objections to read from top to bottom. No I/O, no clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

RENEW_AT: Final = 2 / 3  # part of its life after which a certificate is renewed


class Reason(Enum):
    MISSING = "Missing"
    UNREADABLE = "Unreadable"
    KEY_MISMATCH = "KeyMismatch"
    WRONG_NAMES = "WrongNames"
    UNKNOWN_ISSUER = "UnknownIssuer"
    EXPIRED = "Expired"
    NEAR_EXPIRY = "NearExpiry"


@dataclass(frozen=True, slots=True)
class Renew:
    reason: Reason
    message: str

    @property
    def urgent(self) -> bool:
        """Whether no one can use it as it is."""
        return self.reason is not Reason.NEAR_EXPIRY


@dataclass(frozen=True, slots=True)
class Unreadable:
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What matters of a certificate. Fingerprints are SHA-256 in hexadecimal."""

    fingerprint: str
    key: str  # fingerprint of the public key
    issuer: str | None  # fingerprint of the certificate, of those looked at, that signed it
    names: frozenset[str]  # DNS names and IP addresses
    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: Facts | Unreadable | None
    key: str | Unreadable | None  # fingerprint of the key's public half

    @property
    def facts(self) -> Facts | None:
        return self.certificate if isinstance(self.certificate, Facts) else None

    @property
    def expires(self) -> datetime | None:
        return self.facts.not_after if self.facts else None


def check(
    title: str, pair: Pair, now: datetime, *, names: frozenset[str] = frozenset(), issuers: frozenset[str] | None = None
) -> Renew | None:
    """The first objection, which begins with the title; None if the certificate is good for now.

    The issuers are fingerprints of the certificates that may have signed it; None of a CA, which signs itself.
    """
    for reason, message in _objections(pair, now, names, issuers):
        return Renew(reason, f"{title}: {message}")
    return None


def _objections(
    pair: Pair, now: datetime, names: frozenset[str], issuers: frozenset[str] | None
) -> Iterator[tuple[Reason, str]]:
    parts = {"certificate": pair.certificate, "private key": pair.key}
    if lacking := [what for what, part in parts.items() if part is None]:  # nothing to serve, or to sign with
        yield Reason.MISSING, f"{' and '.join(lacking)} missing"
    for what, part in parts.items():
        if isinstance(part, Unreadable):  # somebody edited the Secret, or a CA's certificate may not sign
            yield Reason.UNREADABLE, f"{what} {part.problem}"
    facts = pair.facts
    if facts is None:
        return
    if facts.key != pair.key:  # half of a pair was replaced
        yield Reason.KEY_MISMATCH, "private key does not belong to the certificate"
    if unnamed := names - facts.names:  # the namespace or the Service was renamed
        yield Reason.WRONG_NAMES, f"lacks {', '.join(sorted(unnamed))}"
    if issuers is not None and facts.issuer not in issuers:  # API servers would not verify it
        yield Reason.UNKNOWN_ISSUER, "not signed by the CA in use"
    end = facts.not_after.strftime("%Y-%m-%dT%H:%M:%SZ")
    if now >= facts.not_after:  # no one ran for long
        yield Reason.EXPIRED, f"expired at {end}"
    if now >= facts.not_before + (facts.not_after - facts.not_before) * RENEW_AT:  # the ordinary case
        yield Reason.NEAR_EXPIRY, f"{RENEW_AT:.0%} of its life is over, expires at {end}"
