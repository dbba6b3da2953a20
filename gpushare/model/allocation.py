"""What a pod was given: decided once at bind and never changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef
from gpushare.model.request import ContainerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One container's GPUs: `memory_mib` on each of `gpus`."""

    container: ContainerName
    kind: ContainerKind = ContainerKind.APP
    gpus: tuple[GpuUuid, ...]
    memory_mib: int
    """MiB on each GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All grants of one pod on one node, in the order in which the containers start."""

    pod: PodRef
    node: NodeName
    grants: tuple[Grant, ...]

    def of(self, container: ContainerName) -> Grant | None:
        """The grant of a container, or None if it was given nothing."""
        return next((grant for grant in self.grants if grant.container == container), None)


def footprint(grants: Iterable[Grant]) -> Mapping[GpuUuid, int]:
    """Memory that a pod needs on each GPU at its worst moment, in MiB.

    Kubernetes' own formula, applied to every GPU: the larger of what the app containers and all sidecars hold
    together, and what any init container holds together with the sidecars started before it.

    Args:
        grants: in the order in which the containers start.
    """
    peak: dict[GpuUuid, int] = {}
    running: dict[GpuUuid, int] = {}
    for grant in grants:
        for gpu in grant.gpus:
            level = running.get(gpu, 0) + grant.memory_mib
            peak[gpu] = max(peak.get(gpu, 0), level)
            if grant.kind is not ContainerKind.INIT:
                running[gpu] = level
    return peak
