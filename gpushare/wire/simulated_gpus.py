"""The GPUs that a profile describes (`gpushare.wire.profile`): values, and what follows from them. Pure."""

import hashlib
from dataclasses import dataclass
from enum import Enum

from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, Limit, MigInstance, mig_index


class FaultKind(Enum):
    """What happens to a simulated GPU."""

    XID = "xid"
    """The driver reports a critical error: unhealthy."""
    ECC = "ecc"
    """An uncorrectable memory error: unhealthy."""
    LOST = "lost"
    """Fell off the bus: no longer listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSpec:
    """One MIG instance."""

    profile: str
    """Such as 1g.5gb."""
    memory_mib: int
    """All of which can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """So many equal GPUs."""

    model: str
    memory_mib: int
    count: int = 1
    numa: int | None = None
    uuid: str = ""
    """Empty for a derived one."""
    reserved_mib: int = 0
    """What the driver keeps of the memory for itself."""
    mig: tuple[MigSpec, ...] | None = None
    """The instances of each in MIG mode; None for GPUs that are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one GPU."""

    gpu: int | None
    """Number on the node; None lets the seed choose."""
    kind: FaultKind
    instance: int | None = None
    """Number of the MIG instance that has it; None for the GPU with all its instances."""
    after_polls: int = 0
    after_seconds: float = 0.0
    recovers_after_polls: int | None = None
    """None if it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The simulated GPUs of one node."""

    seed: int
    gpus: tuple[GpuSpec, ...]
    faults: tuple[Fault, ...]

    @property
    def total(self) -> int:
        """Number of GPUs."""
        return sum(spec.count for spec in self.gpus)

    def spec(self, index: int) -> GpuSpec:
        """What the GPU with this number is like."""
        return [spec for spec in self.gpus for _ in range(spec.count)][index]

    def offered(self, node: NodeName, index: int, *, reserved: bool = False) -> tuple[Gpu, ...]:
        """What the GPU with this number offers, before any fault: itself, or its instances.

        Args:
            node: whose GPUs they are; UUIDs differ between nodes.
            index: number of the GPU, from 0.
            reserved: whether memory that the driver keeps for itself counts.
        """
        spec = self.spec(index)
        if spec.mig is None:
            gpu = Gpu(
                uuid=GpuUuid(spec.uuid) if spec.uuid else uuid_of(self.seed, node, index),
                index=index,
                model=spec.model,
                memory_mib=spec.memory_mib - (0 if reserved else spec.reserved_mib),
                numa=spec.numa,
            )
            return (gpu,)
        return tuple(self._instance(node, index, number, mig) for number, mig in enumerate(spec.mig))

    def _instance(self, node: NodeName, index: int, number: int, mig: MigSpec) -> Gpu:
        spec = self.spec(index)
        return Gpu(
            uuid=mig_uuid_of(self.seed, node, index, number),
            index=mig_index(index, number),
            model=f"{spec.model} MIG {mig.profile}",
            memory_mib=mig.memory_mib,
            numa=spec.numa,
            limit=Limit.MIG,
            mig=MigInstance(gpu=index, number=number, profile=mig.profile),
        )


def uuid_of(seed: int, node: NodeName, index: int) -> GpuUuid:
    """The UUID of a simulated GPU: the same in every run, different on every node, in NVIDIA's format."""
    return GpuUuid(f"GPU-{_digits(f'{seed}/{node}/{index}')}")


def mig_uuid_of(seed: int, node: NodeName, index: int, number: int) -> GpuUuid:
    """The UUID of a simulated MIG instance, in the same way."""
    return GpuUuid(f"MIG-{_digits(f'{seed}/{node}/{index}/{number}')}")


def _digits(of: str) -> str:
    text = hashlib.sha256(of.encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
