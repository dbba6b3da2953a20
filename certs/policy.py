"""When a certificate is renewed: two lists to read from top to bottom. No I/O, no clock."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    title: str  # begins the messages
    names: frozenset[str] = frozenset()
    issuers: frozenset[str] = frozenset()  # fingerprints of the certificates that may have signed it
    renew_at: float = 2 / 3  # part of its life after which it is renewed


Check = Callable[[Pair, Wanted, datetime], Renew | None]


def _missing(pair: Pair, wanted: Wanted, _now: datetime) -> Renew | None:
    lacking = [what for what, part in (("certificate", pair.certificate), ("private key", pair.key)) if part is None]
    return Renew(Reason.MISSING, f"{wanted.title}: {' and '.join(lacking)} missing") if lacking else None


def _unreadable(pair: Pair, wanted: Wanted, _now: datetime) -> Renew | None:
    for what, part in (("certificate", pair.certificate), ("private key", pair.key)):
        if isinstance(part, Unreadable):
            return Renew(Reason.UNREADABLE, f"{wanted.title}: {what} {part.problem}")
    return None


def _key_mismatch(pair: Pair, wanted: Wanted, _now: datetime) -> Renew | None:
    if pair.facts is None or pair.facts.key == pair.key:
        return None
    return Renew(Reason.KEY_MISMATCH, f"{wanted.title}: private key does not belong to the certificate")


def _wrong_names(pair: Pair, wanted: Wanted, _now: datetime) -> Renew | None:
    lacking = wanted.names - (pair.facts.names if pair.facts else frozenset())
    return Renew(Reason.WRONG_NAMES, f"{wanted.title}: lacks {', '.join(sorted(lacking))}") if lacking else None


def _unknown_issuer(pair: Pair, wanted: Wanted, _now: datetime) -> Renew | None:
    if pair.facts is None or pair.facts.issuer in wanted.issuers:
        return None
    return Renew(Reason.UNKNOWN_ISSUER, f"{wanted.title}: not signed by the CA in use")


def _expired(pair: Pair, wanted: Wanted, now: datetime) -> Renew | None:
    if pair.facts is None or now < pair.facts.not_after:
        return None
    return Renew(Reason.EXPIRED, f"{wanted.title}: expired at {_stamp(pair.facts.not_after)}")


def _near_expiry(pair: Pair, wanted: Wanted, now: datetime) -> Renew | None:
    if pair.facts is None or now < renewal_time(pair.facts, wanted.renew_at):
        return None
    return Renew(
        Reason.NEAR_EXPIRY,
        f"{wanted.title}: {wanted.renew_at:.0%} of its life is over, expires at {_stamp(pair.facts.not_after)}",
    )


LEAF: Final[tuple[Check, ...]] = (
    _missing,  # nothing to serve
    _unreadable,  # somebody edited the Secret
    _key_mismatch,  # half of a pair was replaced
    _wrong_names,  # the namespace or the Service was renamed
    _unknown_issuer,  # API servers would not verify it
    _expired,  # no one ran for long
    _near_expiry,  # the ordinary case
)

CA: Final[tuple[Check, ...]] = (
    _missing,  # nothing to sign with
    _unreadable,  # also: a certificate that may not sign
    _key_mismatch,  # its signatures would not verify
    _expired,  # API servers refuse everything that it signed
    _near_expiry,  # the ordinary case
)


def check(checks: tuple[Check, ...], pair: Pair, wanted: Wanted, now: datetime) -> Renew | None:
    """What the first check says that objects; None if the certificate is good for now."""
    return next((renew for each in checks if (renew := each(pair, wanted, now)) is not None), None)


def renewal_time(facts: Facts, renew_at: float) -> datetime:
    """From when on a certificate counts as near its expiry."""
    return facts.not_before + (facts.not_after - facts.not_before) * renew_at


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
