"""What a pod asks for, after all spellings were normalised."""

from dataclasses import dataclass
from enum import Enum

from gpushare.identity import ContainerName, PodRef


class ContainerKind(Enum):
    """When a container runs, which decides how its share adds to the others'."""

    INIT = "init"
    """Runs to its end before the next starts; its share counts by maximum."""
    SIDECAR = "sidecar"
    """A restartable init container: from its start to the pod's end."""
    APP = "app"


class Policy(Enum):
    """How GPUs are chosen on a node. `placement.score.POLICIES` has a row for each."""

    BINPACK = "binpack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """One container's wish: `gpu_count` different GPUs of one node, `memory_mib` on each."""

    container: ContainerName
    kind: ContainerKind = ContainerKind.APP
    memory_mib: int
    """MiB on each GPU, at least 1."""
    gpu_count: int = 1

    def __post_init__(self) -> None:
        if self.memory_mib < 1 or self.gpu_count < 1:
            raise ValueError(f"container {self.container}: {self.memory_mib} MiB on {self.gpu_count} GPUs")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """All that placement needs to know of a pod; equal for all replicas of a workload, so results are cached by it."""

    containers: tuple[ContainerRequest, ...]
    """Only those that ask, in the order in which they start: init containers and sidecars, then app containers."""
    policy: Policy | None = None
    """None for the cluster's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """A pod that asks for GPUs."""

    pod: PodRef
    shape: RequestShape
