"""Pods that came to their nodes past this system: which of them cannot be helped any more, or are left alone. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.model.verdict import RefusalReason, Refused
from gpushare.resource_config import ResourceConfig
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire


@dataclass(frozen=True, slots=True)
class Owner:
    """What recreates a pod."""

    keeps_pods: bool = False
    """Its pods are deleted by people only."""
    advice: str = ""
    """What these people are to do, up to the webhook's part."""


# A Job counts each pod that fails or is deleted before its end, and gives up after some; up to Kubernetes 1.25 it even
# counts its failed pods by looking at them. No one but its author can say whether one may be taken from it, and it
# replaces pods that were rejected by itself. The mirror of a static pod goes and comes with the kubelet's file.
_KEEPING: Final[Mapping[str, Owner]] = {
    "Job": Owner(True, "delete it, so that its Job, which will count it as failed, makes it again"),
    "Node": Owner(True, "static pods cannot ask for GPUs: make it a Deployment or a DaemonSet, created"),
}
_ANY: Final = Owner()


def owner(pod: Mapping[str, Any]) -> Owner:
    """How the kind of controller that owns a pod takes its deletion.

    Raises:
        WireError: it is no pod.
    """
    for reference in fields.objects(fields.mapping(pod, "metadata", "pod"), "ownerReferences", "metadata"):
        if reference.get("controller") is True:
            return _KEEPING.get(str(reference.get("kind")), _ANY)
    return _ANY


def gpu_started(pod: Mapping[str, Any], resource_config: ResourceConfig) -> bool:
    """Whether a container that asks for GPUs runs or has run: what it sees was settled then.

    Raises:
        WireError: it is no pod.
    """
    return pods_wire.has_started(pod, among=pods_wire.asking(pod, resource_config))


def is_foreign_node(ledger: LedgerOrRefused) -> bool:
    """Whether nothing says that this project hands out a node's GPUs.

    Anyone else who serves the same resources there may well start a pod that the webhook has not changed.
    """
    return isinstance(ledger, Refused) and ledger.reason is RefusalReason.NO_INVENTORY
