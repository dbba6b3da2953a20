"""Bypassed pods: what becomes of each. Pure.

The controller acts on this decision; `gpushare explain` and `gpushare simulate` tell it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from gpushare.cluster import pod_records
from gpushare.cluster.pod_records import Bypassed
from gpushare.model.ledger import LedgerOrRefused, RefusalReason, Refused


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


class Fate(Enum):
    LEFT_ALONE = auto()  # anyone else who serves these resources there may start it
    INVALID = auto()  # what it asks for cannot be understood; with the problem
    TOO_LATE = auto()  # its containers have started without GPUs: what they see was settled then
    BIND = auto()  # it is given GPUs of its node as soon as it fits there
    RECREATE = auto()  # the webhook did not change it: the controller deletes it, so that its owner recreates it
    ASK_AUTHOR = auto()  # the same, and only its author may delete it; with advice, if something owns it


def outcome(pod: Bypassed, ledger: LedgerOrRefused | None, owner: Owner | None) -> tuple[Fate, str]:
    """What becomes of a bypassed pod. Without a ledger its node is not known, without an owner nothing recreates it."""
    # Where nothing says that this project hands out a node's GPUs, anyone else who serves the same resources may well
    # start a pod that the webhook has not changed.
    foreign = ledger is None or (isinstance(ledger, Refused) and ledger.reason is RefusalReason.NO_INVENTORY)
    if not pod.mutated and foreign:
        return Fate.LEFT_ALONE, ""
    if pod.request is None:
        return Fate.INVALID, pod.problem
    if pod.started and (pod.mutated or owner is not None):
        return Fate.TOO_LATE, ""
    if pod.mutated:
        return Fate.BIND, ""
    if owner is None or owner.keeps_pods:
        return Fate.ASK_AUTHOR, "" if owner is None else owner.advice
    return Fate.RECREATE, ""


def again(pod: Bypassed | None) -> str:
    """How its author gets it recreated."""
    owned = pod is not None and pod.owner
    return "delete it, so that its controller makes it again" if owned else "delete it and create it again"


def owner(pod: Mapping[str, Any]) -> Owner | None:
    """How the kind of a pod's controller takes its deletion; None if it has none. Raises WireError: it is no pod."""
    reference = pod_records.controller_of(pod)
    return None if reference is None else _KEEPING.get(str(reference.get("kind")), _ANY)
