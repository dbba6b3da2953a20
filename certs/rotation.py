"""The next step of a certificate's life, decided from what the Secret and the webhook configurations hold.

    steady ─Announce─► announcing ─Confirm─(propagation)─Switch─► retiring ─(retire)─Retire─► steady

An API server verifies with the bundle that it saw last. So a leaf of a new CA is used only after that CA has been in
both configurations for the propagation time, and the old CA leaves only after every replica had time to drop its old
leaf.

Every step is one write of the Secret; anyone who is late finds another resourceVersion and decides again. No I/O, no
clock.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from certs import policy
from certs.policy import Keep, Pair, Reason, Renew, Renewal, Wanted


class Phase(Enum):
    """Follows from the Secret's content, so that the two cannot disagree."""

    STEADY = "steady"
    ANNOUNCING = "announcing"
    RETIRING = "retiring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What the Secret holds."""

    leaf: Pair
    ca: Pair
    """The CA in use: the bundle's first certificate."""
    next_ca: Pair | None
    others: int
    """Further certificates of the bundle, the next CA's not counted."""
    since: datetime | None
    """Announcing: since when both configurations carry the bundle. Retiring: since when the leaf is the new CA's."""
    rotate: str
    """The forced rotation that is asked for; empty if none."""
    rotated: str
    """The forced rotation that was begun last."""

    @property
    def phase(self) -> Phase:
        """Where in its life it is."""
        if self.next_ca is not None:
            return Phase.ANNOUNCING
        return Phase.RETIRING if self.others else Phase.STEADY


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that a decision rests on."""

    material: Material | None
    """None if there is no Secret."""
    carried: bool
    """Whether every existing webhook configuration carries exactly the Secret's bundle."""
    adoptable: bool
    """Whether this replica serves a good leaf of its own files that could go on being served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The rules."""

    names: frozenset[str]
    propagation: timedelta
    """How long a change of a configuration may take to reach every API server."""
    retire: timedelta
    """How long after the switch the old CA stays."""
    renew_at: float = 2 / 3


@dataclass(frozen=True, slots=True)
class Make:
    """New CA and leaf at once: there is nothing that could go on being served."""

    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Write the files that this replica serves into the Secret, so that a new CA can be announced first."""

    reason: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Make the next CA and put it into the bundle; the leaf stays."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unconfirm:
    """The bundle vanished from a configuration: the waiting time starts again."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """The waiting time of the phase starts; announcing: the bundle was read back from the configurations."""


@dataclass(frozen=True, slots=True)
class Switch:
    """The next CA becomes the CA in use and signs a leaf; the old one stays in the bundle."""

    reason: str


@dataclass(frozen=True, slots=True)
class RenewLeaf:
    """A new leaf of the CA in use."""

    reason: str


@dataclass(frozen=True, slots=True)
class Retire:
    """Only the CA in use stays in the bundle."""


Step = Make | Adopt | Announce | Unconfirm | Confirm | Switch | RenewLeaf | Retire


def decide(seen: Seen, plan: Plan, now: datetime) -> Step | None:
    """The one change that the Secret needs now; None if it is as it should be."""
    found = seen.material
    if found is None:
        return _begin(seen, "there is no Secret")
    ca, leaf = judge(found, plan, now)
    if _dead(ca, leaf) and found.next_ca is None:
        return _begin(seen, _message(leaf) or _message(ca))
    if found.next_ca is not None:
        return _announcing(found, found.next_ca, seen, plan, now)
    if isinstance(leaf, Renew) and not _unusable(ca):
        return RenewLeaf(leaf.message)
    if _unusable(ca) or (found.phase is Phase.STEADY and isinstance(ca, Renew)):
        return Announce(_message(ca))
    if found.phase is Phase.STEADY:
        return Announce("rotation was asked for") if found.rotate != found.rotated and found.rotate else None
    return _retiring(found, plan, now)


def judge(found: Material, plan: Plan, now: datetime) -> tuple[Renewal, Renewal]:
    """What the policy says of the CA in use and of the leaf."""
    issuers = frozenset({found.ca.facts.fingerprint} if found.ca.facts else ())
    leaf = Wanted(title="leaf", names=plan.names, issuers=issuers, renew_at=plan.renew_at)
    return (
        policy.check(policy.CA, found.ca, Wanted(title="CA", renew_at=plan.renew_at), now),
        policy.check(policy.LEAF, found.leaf, leaf, now),
    )


def ca_expired(ca: Renewal) -> bool:
    """Whether verifiers refuse everything that this CA signed."""
    return isinstance(ca, Renew) and ca.reason is Reason.EXPIRED


def _begin(seen: Seen, reason: str) -> Step:
    return Adopt(reason) if seen.adoptable else Make(reason)


def _announcing(found: Material, next_ca: Pair, seen: Seen, plan: Plan, now: datetime) -> Step | None:
    ca, leaf = judge(found, plan, now)
    coming = policy.check(policy.CA, next_ca, Wanted(title="next CA", renew_at=plan.renew_at), now)
    if _unusable(coming):
        return _begin(seen, _message(coming)) if _dead(ca, leaf) else Announce(_message(coming))
    if _dead(ca, leaf):
        return Switch(_message(leaf) or _message(ca))
    if isinstance(leaf, Renew) and not _unusable(ca):
        return RenewLeaf(leaf.message)
    if not seen.carried:
        return Unconfirm() if found.since else None
    if found.since is None or _wrong(found.since, plan.propagation, now):
        return Confirm()
    return Switch("the next CA is known everywhere") if now - found.since >= plan.propagation else None


def _retiring(found: Material, plan: Plan, now: datetime) -> Step | None:
    if found.since is None or _wrong(found.since, plan.retire, now):
        return Confirm()
    return Retire() if now - found.since >= plan.retire else None


def _dead(ca: Renewal, leaf: Renewal) -> bool:
    """Whether what is served now verifies nowhere and the CA in use cannot fix it."""
    return ca_expired(ca) or (_unusable(leaf) and _unusable(ca))


def _unusable(verdict: Renewal) -> bool:
    return isinstance(verdict, Renew) and verdict.urgent


def _message(verdict: Renewal) -> str:
    match verdict:
        case Renew():
            return verdict.message
        case Keep():
            return ""


def _wrong(since: datetime, wait: timedelta, now: datetime) -> bool:
    """Whether the stamp of a replica with another clock lies so far ahead that waiting for it makes no sense."""
    return since - now > wait
