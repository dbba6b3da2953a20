"""GPUs of a node as the device plugin reports them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from gpushare.identity import GpuUuid, NodeName, by_index
from gpushare.units import MemoryUnit

MAX_GPUS: Final = 64  # more than any node has
MAX_INSTANCES: Final = 16  # more MIG instances than any GPU has
NO_LIMIT: Final = "no limit can be held"
"""How the reason of a GPU begins that is out of use because nothing that the administrator demands holds limits."""
MODE_CHANGES: Final = "its mode changes"
"""The same of a GPU that takes nothing new until it is shared in another way."""
_LONGEST_REASON: Final = 120  # in refusals, which are repeated for every node


class GpuHealth(Enum):
    """Whether new work may be placed on a GPU."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    CORDONED = "Cordoned"  # it works, but an administrator keeps new pods away; never published by a plugin


class Strength(Enum):
    """How far it can be relied on that containers keep within their shares of a GPU."""

    ENFORCED = "enforced"  # hardware or driver refuses what is above the share, whatever the container does
    BYPASSABLE = "bypassable"  # against mistakes, not against intent
    AFTERWARDS = "after the fact"
    ADVISORY = "advisory"  # nothing: a program that ignores its variables can use the whole GPU


class Limit(Enum):
    """What keeps a container within its share of a GPU, from the strongest down."""

    MIG = "mig"
    CGROUP = "cgroup"
    MPS = "mps"
    HAMI_CORE = "hami-core"
    WATCHDOG = "watchdog"
    ADVISORY = "advisory"

    @property
    def strength(self) -> Strength:
        """MPS can be bypassed: its limit counts for each process, and a container starts as many as it likes."""
        return _STRENGTHS[self]

    @property
    def enforced(self) -> bool:
        return self.strength is Strength.ENFORCED


_STRENGTHS: Final[Mapping[Limit, Strength]] = {
    Limit.MIG: Strength.ENFORCED,
    Limit.CGROUP: Strength.ENFORCED,
    Limit.MPS: Strength.BYPASSABLE,
    Limit.HAMI_CORE: Strength.BYPASSABLE,
    Limit.WATCHDOG: Strength.AFTERWARDS,
    Limit.ADVISORY: Strength.ADVISORY,
}


class Mode(Enum):
    """By what a GPU is shared; each GPU by one of both at a time."""

    DEVICE_PLUGIN = "device-plugin"  # pods ask by gpu-mem, and the controller chooses
    DRA = "dra"  # ResourceClaims ask, and kube-scheduler allocates


class HandOver(Enum):
    """How a node's containers get the devices of their GPUs."""

    CDI = "cdi"  # the container runtime injects what the device plugin wrote for the container
    ENVVAR = "envvar"  # NVIDIA's runtime reads NVIDIA_VISIBLE_DEVICES
    VOLUME_MOUNTS = "volume-mounts"  # NVIDIA's runtime reads mounts below /var/run/nvidia-container-devices


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    gpu: int  # NVML index of the GPU that is partitioned
    number: int  # NVML index of the instance on that GPU, from 0
    profile: str  # compute and memory slices, such as 1g.10gb; empty where the driver does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU or MIG instance. `uuid` is its identity; `index` is for people and for Aliyun's annotations."""

    uuid: GpuUuid
    index: int  # NVML index on its node, from 0; of a MIG instance `mig_index`
    model: str
    memory_mib: int  # total memory in MiB, rounded down; of a MIG instance to whole units
    extra_mib: int = 0  # MiB that may be granted beyond `memory_mib`: an administrator has oversubscribed it
    numa: int | None = None
    health: GpuHealth = GpuHealth.HEALTHY
    reason: str = ""  # why it is not healthy, in a few words; empty if it is, or if its plugin did not say
    limit: Limit = Limit.ADVISORY
    limit_reason: str = ""  # why it is no stronger one; empty if there is none, or if its plugin did not say
    mig: MigInstance | None = None

    def __post_init__(self) -> None:
        if self.index < 0 or self.memory_mib < 0:
            raise ValueError(f"GPU {self.uuid}: index {self.index} and memory {self.memory_mib} MiB must be 0 or more")
        if self.extra_mib < 0:
            raise ValueError(f"GPU {self.uuid}: {self.grantable_mib} MiB to grant are less than its {self.memory_mib}")

    @property
    def label(self) -> str:
        return label(self.index)

    @property
    def grantable_mib(self) -> int:
        """MiB that may be granted to all pods together."""
        return self.memory_mib + self.extra_mib

    @property
    def factor(self) -> str:
        """By which it is oversubscribed, such as 1.5; 1 if it is not."""
        return f"{self.grantable_mib / max(self.memory_mib, 1):.2f}".rstrip("0").rstrip(".") if self.extra_mib else "1"

    def counted_in(self, unit: MemoryUnit) -> "Gpu":
        """With what whole units give of a MIG instance, so that all of its units are all of it, and nothing is left."""
        whole_mib = unit.floor(self.memory_mib) * unit.mib
        return replace(self, memory_mib=whole_mib) if self.mig and whole_mib else self

    def limit_of(self, *shares_mib: int) -> Limit:
        """What holds containers to shares of so many MiB; without any, what would hold one to all of it.

        Of a MIG instance, the hardware holds nothing less than all of it.
        """
        in_part = any(mib < self.memory_mib for mib in shares_mib)
        return Limit.ADVISORY if self.limit is Limit.MIG and in_part else self.limit

    @property
    def why(self) -> str:
        """`unhealthy` and the cause, `cordoned`; empty for a healthy GPU."""
        if self.health is GpuHealth.HEALTHY:
            return ""
        word = self.health.value.lower()
        is_told = self.reason and self.health is GpuHealth.UNHEALTHY
        return f"{word}: {self.reason:.{_LONGEST_REASON}}" if is_told else word


def mig_index(gpu: int, number: int) -> int:
    """The index of a MIG instance: above those of all GPUs, and the same for as long as the instance exists."""
    return MAX_GPUS + gpu * MAX_INSTANCES + number


def label(index: int) -> str:
    """An index as people read it: `3`, or `3:1` for MIG instance 1 of GPU 3, as nvidia-smi counts them."""
    gpu, number = divmod(index - MAX_GPUS, MAX_INSTANCES)
    return f"{gpu}:{number}" if index >= MAX_GPUS else str(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A GPU that is there and cannot be shared as it is."""

    index: int  # NVML index on its node
    reason: str  # in a few words, with what to do


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInventory:
    """All GPUs of one node, ordered by index. An empty tuple is legal: a node whose GPUs are all gone."""

    node: NodeName
    gpus: tuple[Gpu, ...]  # what gpu-mem asks for
    unit: MemoryUnit  # the unit in which the node's plugin advertises `aliyun.com/gpu-mem`
    hand_over: HandOver = HandOver.ENVVAR
    hand_over_reason: str = ""  # why this way, in a few words
    left_out: tuple[LeftOut, ...] = ()
    dra: tuple[Gpu, ...] = ()  # of mode DRA, which `gpus` are not: no pod gets one by gpu-mem
    by_uuid: Mapping[GpuUuid, Gpu] = field(init=False, repr=False, compare=False)
    _aliases: Mapping[GpuUuid, GpuUuid] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_uuid = {gpu.uuid: gpu for gpu in self.gpus}
        aliases = {by_index(gpu.index): gpu.uuid for gpu in self.gpus}
        every = self.every
        if not len({gpu.uuid for gpu in every}) == len({gpu.index for gpu in every}) == len(every):
            raise ValueError(f"node {self.node}: two GPUs with the same UUID or index")
        object.__setattr__(self, "by_uuid", by_uuid)
        object.__setattr__(self, "_aliases", aliases)

    def resolve(self, gpu: GpuUuid) -> GpuUuid:
        """The UUID behind a stand-in of `identity.by_index`; any other is returned as it is."""
        return self._aliases.get(gpu, gpu)

    @property
    def every(self) -> tuple[Gpu, ...]:
        """Those of all modes."""
        return (*self.gpus, *self.dra)

    @property
    def of_modes(self) -> Mapping[Mode, tuple[Gpu, ...]]:
        return {Mode.DEVICE_PLUGIN: self.gpus, Mode.DRA: self.dra}

    @property
    def healthy(self) -> tuple[Gpu, ...]:
        """GPUs that take new pods."""
        return tuple(gpu for gpu in self.gpus if gpu.health is GpuHealth.HEALTHY)

    @property
    def total_units(self) -> int:
        """Units that its GPUs have: every GPU rounded down by itself."""
        return sum(self.unit.floor(gpu.memory_mib) for gpu in self.gpus)
