"""The answer to "does this pod fit on this node?". A refusal is a value with numbers, never an exception."""

from dataclasses import dataclass
from enum import Enum

from gpushare.model.allocation import Grant


class RefusalReason(Enum):
    """Stable reasons for programs; the message is for people."""

    NO_INVENTORY = "NoInventory"
    NO_HEALTHY_GPU = "NoHealthyGpu"
    UNIT_MISMATCH = "UnitMismatch"
    INSUFFICIENT_GPU_MEMORY = "InsufficientGpuMemory"
    INSUFFICIENT_GPU_COMPUTE = "InsufficientGpuCompute"
    NO_UNTOUCHED_GPU = "NoUntouchedGpu"
    NO_MATCHING_GPU = "NoMatchingGpu"
    TOO_FEW_GPUS = "TooFewGpus"
    OTHER_HAND_OVER = "OtherHandOver"
    SEARCH_TOO_LONG = "SearchTooLong"


@dataclass(frozen=True, slots=True)
class Placed:
    """The pod fits; `grants` say where, in the order in which the containers start."""

    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The pod does not fit."""

    reason: RefusalReason
    message: str
    permanent: bool = False
    """True if removing pods from the node cannot help, so preemption there is pointless."""


Verdict = Placed | Refused
