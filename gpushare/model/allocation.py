"""What a pod was given: decided once at bind and never changed. Or why it fits on no GPUs: a value with numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import add

from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef
from gpushare.model.request import ContainerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One container's GPUs, with the same on each."""

    container: ContainerName
    kind: ContainerKind = ContainerKind.APP
    gpus: tuple[GpuUuid, ...]
    memory_mib: int
    """MiB on each GPU; of whole GPUs that differ, the smallest's."""
    compute_percent: int = 0
    """Per cent of each GPU's compute; 0 if none was set aside."""
    whole: bool = False
    """No one else may be on these GPUs."""
    memory_percent: int = 0
    """Per cent of each GPU's memory beside `memory_mib`, if no one wrote down how much that is: nano-gpu does not."""
    physical: bool = False
    """While it is held, no more is granted on these GPUs than they have."""
    extra_mib: int = 0
    """MiB by which one of these GPUs was oversubscribed when this was decided. What was granted then stays granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All grants of one pod on one node, in the order in which the containers start."""

    pod: PodRef
    node: NodeName
    grants: tuple[Grant, ...]
    labels: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Of the pod as it was last seen, for pods that want its GPU or avoid it. No part of the decision."""

    def of(self, container: ContainerName) -> Grant | None:
        return next((grant for grant in self.grants if grant.container == container), None)


@dataclass(frozen=True, slots=True)
class Held:
    """What a pod needs of one GPU at its worst moment."""

    memory_mib: int
    compute_percent: int = 0
    whole: bool = False
    memory_percent: int = 0
    physical: bool = False
    extra_mib: int = 0


def peak(steps: Iterable[tuple[ContainerKind, tuple[int, ...]]]) -> tuple[int, ...]:
    """What a pod needs at its worst moment, of each of several amounts.

    Kubernetes' own formula: the larger of what the app containers and all sidecars hold together, and what any init
    container holds together with the sidecars started before it.

    Args:
        steps: kind and amounts of each container, in the order in which they start; at least one.
    """
    most: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    for kind, amounts in steps:
        level = tuple(map(add, running, amounts)) if running else amounts
        most = tuple(map(max, most, level)) if most else level
        if kind is not ContainerKind.INIT:
            running = level
    return most


def footprint(grants: Iterable[Grant]) -> Mapping[GpuUuid, Held]:
    """What a pod needs of each GPU at its worst moment (`peak`).

    Args:
        grants: in the order in which the containers start.
    """
    by_gpu: dict[GpuUuid, list[Grant]] = {}
    for grant in grants:
        for gpu in grant.gpus:
            by_gpu.setdefault(gpu, []).append(grant)
    return {gpu: _hold(there) for gpu, there in by_gpu.items()}


def _hold(grants: Sequence[Grant]) -> Held:
    memory, compute, part = peak(
        (grant.kind, (grant.memory_mib, grant.compute_percent, grant.memory_percent)) for grant in grants
    )
    return Held(
        memory,
        compute,
        any(grant.whole for grant in grants),
        part,
        any(grant.physical for grant in grants),
        max(grant.extra_mib for grant in grants),
    )


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
    reason: RefusalReason
    message: str
    permanent: bool = False
    """True if removing pods from the node cannot help, so preemption there is pointless."""


Verdict = Placed | Refused
