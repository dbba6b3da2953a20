"""May this container start? What is asked, and what can be answered. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from deviceplugin.edits import ContainerEdits
from deviceplugin.resources import Resource
from gpushare.identity import ContainerName, NodeName
from gpushare.model.allocation import Grant
from gpushare.model.gpu import NodeInventory
from gpushare.units import ResourceConfig
from gpushare.wire.pods import Pod

AGAIN: Final = "delete the pod and create it again"
_LONGEST: Final = 2048
"""Characters of a message: it travels in a header, which may hold 8 KiB, and is remembered."""


class Reason(Enum):
    """Why a container may not start; for logs and programs."""

    UNIDENTIFIED = "Unidentified"
    KUBELET_SILENT = "KubeletSilent"
    API_SILENT = "ApiSilent"
    UNKNOWN_POD = "UnknownPod"
    OTHER_NODE = "OtherNode"
    NOT_BOUND = "NotBound"
    UNREADABLE = "Unreadable"
    NOT_GRANTED = "NotGranted"
    NOT_MUTATED = "NotMutated"
    TAMPERED = "Tampered"
    WRONG_AMOUNT = "WrongAmount"
    GPU_GONE = "GpuGone"
    GPU_UNHEALTHY = "GpuUnhealthy"
    OVER_COMMITTED = "OverCommitted"
    NOT_LIMITED = "NotLimited"
    LATE = "Late"
    NOT_HANDED_OVER = "NotHandedOver"


@dataclass(frozen=True, slots=True)
class Accept:
    """The container starts, with the GPUs of its grant."""

    grants: tuple[Grant, ...]
    of_pod: tuple[Grant, ...] = field(default=(), compare=False)
    """Of all containers of the pod."""
    limits: Mapping[ContainerName, ContainerEdits] = field(default_factory=dict, compare=False)
    """What holds each of these containers to its share."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The container does not start; the kubelet tries again later."""

    reason: Reason
    message: str
    """Cut, because it quotes what authors of pods have written."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", self.message[:_LONGEST])


Decision = Accept | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A container about to start, and what is known about its pod and node."""

    pod: Pod
    containers: tuple[ContainerName, ...]
    """Those that may be the one that starts: each has to be in order."""
    resource: Resource
    """Of which the kubelet gave it devices."""
    ids: frozenset[str]
    """The devices."""
    node: NodeName
    inventory: NodeInventory
    resource_config: ResourceConfig
    others: Sequence[Pod] = ()
    """All pods of the node that are known; the pod itself may be among them."""
    up_to_date: bool = False
    """Whether the kubelet starts it from a copy of the pod that has the allocation for sure, although that was written
    after the pod had come to the node; of no meaning for other pods."""
