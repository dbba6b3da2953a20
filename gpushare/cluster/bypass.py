"""Bypassed pods: what becomes of each. Pure.

The controller acts on this decision; `gpushare explain` and `gpushare simulate` tell it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.cluster import pod_records
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.pod_records import Bypassed
from gpushare.model.allocation import RefusalReason, Refused
from gpushare.model.request import PodRequest


@dataclass(frozen=True, slots=True)
class Owner:
    """What recreates a pod."""

    keeps_pods: bool = False  # its pods are deleted by people only
    advice: str = ""  # what these people are to do, up to the webhook's part


# A Job counts each pod that fails or is deleted before its end, and gives up after some; up to Kubernetes 1.25 it even
# counts its failed pods by looking at them. No one but its author can say whether one may be taken from it, and it
# replaces pods that were rejected by itself. The mirror of a static pod goes and comes with the kubelet's file.
_KEEPING: Final[Mapping[str, Owner]] = {
    "Job": Owner(True, "delete it, so that its Job, which will count it as failed, makes it again"),
    "Node": Owner(True, "static pods cannot ask for GPUs: make it a Deployment or a DaemonSet, created"),
}
_ANY: Final = Owner()


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Anyone else who serves these resources there may start it."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """What it asks for cannot be understood."""

    problem: str


@dataclass(frozen=True, slots=True)
class TooLate:
    """Its containers have started without GPUs: what they see was settled then."""


@dataclass(frozen=True, slots=True)
class Bind:
    """It is given GPUs of its node as soon as it fits there."""

    request: PodRequest


@dataclass(frozen=True, slots=True)
class Recreate:
    """The webhook did not change it: the controller deletes it, so that its owner recreates it."""


@dataclass(frozen=True, slots=True)
class AskAuthor:
    """The webhook did not change it, and only its author may delete it."""

    advice: str  # for the kind of its owner; empty if nothing owns it


Hopeless = Invalid | TooLate | Recreate | AskAuthor  # outcomes without GPUs for this pod
Outcome = LeftAlone | Bind | Hopeless


def outcome(pod: Bypassed, ledger: LedgerOrRefused | None, owner: Owner | None) -> Outcome:
    """What becomes of a bypassed pod. Without a ledger its node is not known, without an owner nothing recreates it."""
    if not pod.mutated and _is_foreign(ledger):
        return LeftAlone()
    if pod.request is None:
        return Invalid(pod.problem)
    if pod.started and (pod.mutated or owner is not None):
        return TooLate()
    if pod.mutated:
        return Bind(pod.request)
    if owner is None or owner.keeps_pods:
        return AskAuthor(owner.advice if owner is not None else "")
    return Recreate()


def again(pod: Bypassed | None) -> str:
    """How its author gets it recreated."""
    owned = pod is not None and pod.owner
    return "delete it, so that its controller makes it again" if owned else "delete it and create it again"


def owner(pod: Mapping[str, Any]) -> Owner | None:
    """How the kind of controller that owns a pod takes its deletion; None if none owns it.

    Raises WireError: it is no pod.
    """
    reference = pod_records.controller_of(pod)
    return None if reference is None else _KEEPING.get(str(reference.get("kind")), _ANY)


def _is_foreign(ledger: LedgerOrRefused | None) -> bool:
    """Whether nothing says that this project hands out a node's GPUs.

    Anyone else who serves the same resources there may well start a pod that the webhook has not changed.
    """
    return ledger is None or (isinstance(ledger, Refused) and ledger.reason is RefusalReason.NO_INVENTORY)
