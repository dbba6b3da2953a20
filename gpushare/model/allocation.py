"""What a pod was given: decided once at bind and never changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    """Nobody else may be on these GPUs."""
    memory_percent: int = 0
    """Per cent of each GPU's memory beside `memory_mib`, if nobody wrote down how much that is: nano-gpu does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All grants of one pod on one node, in the order in which the containers start."""

    pod: PodRef
    node: NodeName
    grants: tuple[Grant, ...]
    labels: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Of the pod as it was last seen, for pods that want its GPU or avoid it. No part of the decision."""

    def of(self, container: ContainerName) -> Grant | None:
        """The grant of a container, or None if it was given nothing."""
        return next((grant for grant in self.grants if grant.container == container), None)


@dataclass(frozen=True, slots=True)
class Hold:
    """What a pod needs of one GPU at its worst moment."""

    memory_mib: int
    compute_percent: int = 0
    whole: bool = False
    memory_percent: int = 0


_NOTHING = Hold(0)


def footprint(grants: Iterable[Grant]) -> Mapping[GpuUuid, Hold]:
    """What a pod needs of each GPU at its worst moment.

    Kubernetes' own formula, applied to every GPU: the larger of what the app containers and all sidecars hold
    together, and what any init container holds together with the sidecars started before it.

    Args:
        grants: in the order in which the containers start.
    """
    peak: dict[GpuUuid, Hold] = {}
    running: dict[GpuUuid, Hold] = {}
    for grant in grants:
        for gpu in grant.gpus:
            before, most = running.get(gpu, _NOTHING), peak.get(gpu, _NOTHING)
            level = Hold(
                memory_mib=before.memory_mib + grant.memory_mib,
                compute_percent=before.compute_percent + grant.compute_percent,
                whole=grant.whole,
                memory_percent=before.memory_percent + grant.memory_percent,
            )
            peak[gpu] = Hold(
                memory_mib=max(most.memory_mib, level.memory_mib),
                compute_percent=max(most.compute_percent, level.compute_percent),
                whole=most.whole or grant.whole,
                memory_percent=max(most.memory_percent, level.memory_percent),
            )
            if grant.kind is not ContainerKind.INIT:
                running[gpu] = level
    return peak
