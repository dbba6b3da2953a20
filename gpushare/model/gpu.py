"""GPUs of a node as the device plugin reports them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gpushare.identity import GpuUuid, NodeName, by_index
from gpushare.units import MemoryUnit

MAX_GPUS: Final = 64
"""More than any node has."""


class GpuHealth(Enum):
    """Whether new work may be placed on a GPU."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    CORDONED = "Cordoned"
    """It works, but an administrator keeps new pods away; never published by a plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU. `uuid` is its identity; `index` is for people and for Aliyun's annotations."""

    uuid: GpuUuid
    index: int
    """NVML index on its node, from 0."""
    model: str
    memory_mib: int
    """Total memory in MiB, rounded down."""
    numa: int | None = None
    health: GpuHealth = GpuHealth.HEALTHY

    def __post_init__(self) -> None:
        if self.index < 0 or self.memory_mib < 0:
            raise ValueError(f"GPU {self.uuid}: index {self.index} and memory {self.memory_mib} MiB must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInventory:
    """All GPUs of one node, ordered by index. An empty tuple is legal: a node whose GPUs are all gone."""

    node: NodeName
    gpus: tuple[Gpu, ...]
    unit: MemoryUnit
    """The unit in which the node's plugin advertises `aliyun.com/gpu-mem`."""
    by_uuid: Mapping[GpuUuid, Gpu] = field(init=False, repr=False, compare=False)
    _aliases: Mapping[GpuUuid, GpuUuid] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_uuid = {gpu.uuid: gpu for gpu in self.gpus}
        aliases = {by_index(gpu.index): gpu.uuid for gpu in self.gpus}
        if len(by_uuid) != len(self.gpus) or len(aliases) != len(self.gpus):
            raise ValueError(f"node {self.node}: two GPUs with the same UUID or index")
        object.__setattr__(self, "by_uuid", by_uuid)
        object.__setattr__(self, "_aliases", aliases)

    def resolve(self, gpu: GpuUuid) -> GpuUuid:
        """The UUID behind a stand-in of `identity.by_index`; any other is returned as it is."""
        return self._aliases.get(gpu, gpu)

    @property
    def total_units(self) -> int:
        """Units that the node can hand out: every GPU rounded down by itself."""
        return sum(self.unit.floor(gpu.memory_mib) for gpu in self.gpus)
