"""The next step of a certificate's life, decided from what the Secret and the webhook configurations hold.

    steady ─Announce─► announcing ─Confirm─(propagation)─Switch─► retiring ─(retire)─Retire─► steady

An API server verifies with the bundle that it saw last. So a leaf of a new CA is used only after that CA has been in
both configurations for the propagation time, and the old CA leaves only after every replica had time to drop its old
leaf.

Every step is one write of the Secret; anyone who is late finds another resourceVersion and decides again. No I/O, no
clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
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
class Verdict:
    """Why a certificate is to be replaced; nothing of one that is good for now."""

    reason: Reason | None = None
    message: str = ""

    @property
    def unusable(self) -> bool:
        return self.reason not in {None, Reason.NEAR_EXPIRY}

    @property
    def expired(self) -> bool:
        """Whether verifiers refuse it, and everything that it signed."""
        return self.reason is Reason.EXPIRED


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
) -> Verdict:
    """The first objection, which begins with the title.

    The issuers are fingerprints of the certificates that may have signed it; None of a CA, which signs itself.
    """
    objection = next(_objections(pair, now, names, issuers), None)
    return Verdict(objection[0], f"{title}: {objection[1]}") if objection else Verdict()


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


class Phase(Enum):
    """Follows from the Secret's content, so that the two cannot disagree."""

    STEADY = "steady"
    ANNOUNCING = "announcing"
    RETIRING = "retiring"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretState:
    leaf: Pair
    ca: Pair  # the CA in use: the bundle's first certificate
    next_ca: Pair | None
    others: int  # further certificates of the bundle, the next CA's not counted
    since: datetime | None
    """Announcing: since when both configurations carry the bundle. Retiring: since when the leaf is the new CA's."""
    rotate: str  # the forced rotation that is asked for; empty if none
    rotated: str  # the forced rotation that was begun last

    @property
    def phase(self) -> Phase:
        if self.next_ca is not None:
            return Phase.ANNOUNCING
        return Phase.RETIRING if self.others else Phase.STEADY


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    names: frozenset[str]  # DNS names and IP addresses of a leaf
    leaf_life: timedelta
    ca_life: timedelta
    propagation: timedelta  # how long a change of a configuration may take to reach every API server
    retire: timedelta  # how long after the switch the old CA stays


class Action(Enum):
    """One write of the Secret."""

    MAKE = "Make"  # new CA and leaf at once: there is nothing that could go on being served
    ADOPT = "Adopt"  # write the files that this replica serves into the Secret, so that a new CA can be announced first
    ANNOUNCE = "Announce"  # make the next CA and put it into the bundle; the leaf stays
    UNCONFIRM = "Unconfirm"  # the bundle vanished from a configuration: the waiting time starts again
    CONFIRM = "Confirm"
    """The waiting time of the phase starts; announcing: the bundle was read back from the configurations."""
    SWITCH = "Switch"  # the next CA becomes the CA in use and signs a leaf; the old one stays in the bundle
    RENEW_LEAF = "RenewLeaf"  # a new leaf of the CA in use
    RETIRE = "Retire"  # only the CA in use stays in the bundle


@dataclass(frozen=True, slots=True)
class Step:
    action: Action
    reason: str = ""  # empty if time or another replica brings it about


def decide(
    material: SecretState | None, plan: Plan, now: datetime, *, in_configurations: bool, adoptable: bool
) -> Step | None:
    """The one change that the Secret needs now; None if it is as it should be.

    `material` is None if there is no Secret. `in_configurations`: every webhook configuration that exists carries
    exactly its bundle. `adoptable`: this replica serves a good leaf of its own files that could go on being served.
    """
    begin = Action.ADOPT if adoptable else Action.MAKE
    if material is None:
        return Step(begin, "there is no Secret")
    ca, leaf = judge(material, plan, now)
    coming = check("next CA", material.next_ca, now) if material.next_ca else Verdict()
    # What is served now verifies nowhere, and the CA in use cannot fix it.
    is_dead = ca.expired or (leaf.unusable and ca.unusable)
    if coming.unusable:
        return Step(begin if is_dead else Action.ANNOUNCE, coming.message)
    if is_dead:
        return Step(Action.SWITCH if material.next_ca else begin, leaf.message or ca.message)
    if leaf.reason and not ca.unusable:
        return Step(Action.RENEW_LEAF, leaf.message)
    if material.phase is Phase.ANNOUNCING:
        if not in_configurations:
            return Step(Action.UNCONFIRM) if material.since else None
        switch = Step(Action.SWITCH, "the next CA is known everywhere")
        return _once_waited(material.since, plan.propagation, now, switch)
    if material.phase is Phase.RETIRING and not ca.unusable:
        return _once_waited(material.since, plan.retire, now, Step(Action.RETIRE))
    asked = material.rotate and material.rotate != material.rotated
    reason = ca.message or ("rotation was asked for" if asked else "")
    return Step(Action.ANNOUNCE, reason) if reason else None


def judge(material: SecretState, plan: Plan, now: datetime) -> tuple[Verdict, Verdict]:
    """Of the CA in use, and of the leaf."""
    issuers = frozenset({material.ca.facts.fingerprint} if material.ca.facts else ())
    leaf = check("leaf", material.leaf, now, names=plan.names, issuers=issuers)
    return check("CA", material.ca, now), leaf


def _once_waited(since: datetime | None, wait: timedelta, now: datetime, step: Step) -> Step | None:
    """The step when the waiting time is over; it starts again if the stamp, of another clock, lies further ahead."""
    if since is None or since - now > wait:
        return Step(Action.CONFIRM)
    return step if now - since >= wait else None
