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
from certs.policy import Pair, Reason, Renew


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
    coming = policy.check("next CA", material.next_ca, now) if material.next_ca else None
    # What is served now verifies nowhere, and the CA in use cannot fix it.
    is_dead = ca_expired(ca) or (_unusable(leaf) and _unusable(ca))
    if _unusable(coming):
        return Step(begin if is_dead else Action.ANNOUNCE, _message(coming))
    if is_dead:
        return Step(Action.SWITCH if material.next_ca else begin, _message(leaf) or _message(ca))
    if leaf is not None and not _unusable(ca):
        return Step(Action.RENEW_LEAF, leaf.message)
    if material.phase is Phase.ANNOUNCING:
        if not in_configurations:
            return Step(Action.UNCONFIRM) if material.since else None
        switch = Step(Action.SWITCH, "the next CA is known everywhere")
        return _once_waited(material.since, plan.propagation, now, switch)
    if material.phase is Phase.RETIRING and not _unusable(ca):
        return _once_waited(material.since, plan.retire, now, Step(Action.RETIRE))
    asked = material.rotate and material.rotate != material.rotated
    reason = _message(ca) or ("rotation was asked for" if asked else "")
    return Step(Action.ANNOUNCE, reason) if reason else None


def judge(material: SecretState, plan: Plan, now: datetime) -> tuple[Renew | None, Renew | None]:
    """Why the CA in use and the leaf are to be replaced, if they are."""
    issuers = frozenset({material.ca.facts.fingerprint} if material.ca.facts else ())
    leaf = policy.check("leaf", material.leaf, now, names=plan.names, issuers=issuers)
    return policy.check("CA", material.ca, now), leaf


def ca_expired(ca: Renew | None) -> bool:
    """Whether verifiers refuse everything that this CA signed."""
    return ca is not None and ca.reason is Reason.EXPIRED


def _once_waited(since: datetime | None, wait: timedelta, now: datetime, step: Step) -> Step | None:
    """The step when the waiting time is over; it starts again if the stamp, of another clock, lies further ahead."""
    if since is None or since - now > wait:
        return Step(Action.CONFIRM)
    return step if now - since >= wait else None


def _unusable(renew: Renew | None) -> bool:
    return renew is not None and renew.urgent


def _message(renew: Renew | None) -> str:
    return renew.message if renew is not None else ""
