"""What a pod asks for, after all spellings were normalised."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from gpushare.identity import ContainerName, PodRef
from gpushare.model.gpu import Gpu
from gpushare.model.selector import ANY_GPU, Affinity, GpuSelector

MAX_CONTAINERS: Final = 512
"""Of each kind in a pod; more than any node runs."""
MAX_ASKING: Final = 64
"""Containers of a pod that ask for GPUs. Placement looks at each of them on every node while kube-scheduler waits."""


class ContainerKind(Enum):
    """When a container runs, which decides how its share adds to the others'."""

    INIT = "init"
    """Runs to its end before the next starts; its share counts by maximum."""
    SIDECAR = "sidecar"
    """A restartable init container: from its start to the pod's end."""
    APP = "app"


class Policy(Enum):
    """How nodes and their GPUs are chosen. `placement.policies.POLICIES` has a row for each."""

    BINPACK = "binpack"
    """The fullest GPU with room, on the fullest node."""
    SPREAD = "spread"
    """The emptiest."""
    DENSE = "dense"
    """Where the pod takes the least from the pods to come."""
    FGD = "fgd"
    """Fragmentation gradient descent, as published."""

    @classmethod
    def known(cls) -> str:
        *others, last = (policy.value for policy in cls)
        return f"{', '.join(others)} or {last}"

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """By its name. Raises ValueError, which says which ones there are."""
        try:
            return cls(text)
        except ValueError:
            raise ValueError(f"{text!r:.80} is no policy; write {cls.known()}") from None


DEFAULT_POLICY: Final = Policy.DENSE
"""Of pods that name none, where neither their namespace nor the cluster's settings do."""


class Need(NamedTuple):
    memory_mib: int
    compute_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """One container's request: `gpu_count` different GPUs of one node, with the same on each.

    How much memory is said in one of three ways: in MiB, as a part of whatever the GPU has, or as whole GPUs.
    """

    container: ContainerName
    kind: ContainerKind = ContainerKind.APP
    memory_mib: int = 0
    """MiB on each GPU."""
    memory_percent: int = 0
    """Per cent of each GPU's memory, 1 to 100."""
    compute_percent: int = 0
    """Per cent of each GPU's compute, up to 100; 0 leaves it to be shared freely."""
    whole: bool = False
    """GPUs that no one else uses, with all they have."""
    gpu_count: int = 1

    def __post_init__(self) -> None:
        ways = (self.memory_mib > 0) + (self.memory_percent > 0) + self.whole
        small = min(self.memory_mib, self.memory_percent, self.compute_percent) < 0
        if ways != 1 or small or max(self.memory_percent, self.compute_percent) > 100 or self.gpu_count < 1:
            raise ValueError(
                f"container {self.container}: {self.memory_mib} MiB, {self.memory_percent} % of memory,"
                f" {self.compute_percent} % of compute, whole {self.whole}, on {self.gpu_count} GPUs"
            )

    def need(self, gpu: Gpu) -> Need:
        """What it would take from this GPU. Parts are rounded down, so that parts of 100 % always fit together."""
        if self.whole:
            return Need(gpu.memory_mib, 100)
        if self.memory_percent:
            return Need(max(gpu.memory_mib * self.memory_percent // 100, 1), self.compute_percent)
        return Need(self.memory_mib, self.compute_percent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """All that placement needs to know of a pod; equal for all replicas of a workload, so results are cached by it."""

    containers: tuple[ContainerRequest, ...]
    """Only those that ask, in the order in which they start: init containers and sidecars, then app containers."""
    policy: Policy | None = None
    """None for the cluster's default."""
    gpus: GpuSelector = ANY_GPU
    affinity: Affinity | None = None
    only_cdi: bool = False
    """Only nodes that hand GPUs over by CDI show them to it: it was created without a RuntimeClass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    pod: PodRef
    shape: RequestShape
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    app_containers: tuple[str, ...] = ()
    """Names in the order of `spec.containers`: other systems' annotations count by it."""
    cpu_milli: int = 0
    """What it requests of the host, as `host_mib`."""
    host_mib: int = 0
