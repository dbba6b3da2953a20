"""Limits of GPU memory for cgroups, which NVIDIA's driver holds from r615 on.

Source: nvml.h of CUDA 13.4, nvmlDeviceSetMemoryLimits_v1 and nvmlDeviceGetMemoryLimits_v1.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deviceplugin.limits.backend import LimitError
from deviceplugin.nvml.deadline import Deadline
from gpushare.identity import GpuUuid

_TIMEOUT_S: Final = 5.0
UNLIMITED: Final = 0xFFFF_FFFF_FFFF_FFFF
_INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _FUNCTION_NOT_FOUND, _SYSTEM = 2, 3, 4, 6, 13, 17
_MEANING: Final = {
    _INVALID_ARGUMENT: "the limit is above the GPU's memory, or below what is in use already",
    _NOT_SUPPORTED: "driver or kernel hold no limits for cgroups on this GPU (driver r615, cgroup v2 and no MIG are"
    " needed, and NVreg_RegistryDwords must not switch them off with RmMemacctMode=0)",
    _NO_PERMISSION: "the plugin needs to be root on the node",
    _FUNCTION_NOT_FOUND: "the driver is older than r615",
    _SYSTEM: "the driver cannot open the cgroup",
}


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Of one cgroup on one GPU, in bytes."""

    hard: int
    used: int


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Sets and reads limits. The library is open meanwhile only, so that others can close it after a fault."""

    nvml: Any
    within: Deadline = field(default_factory=lambda: Deadline(_TIMEOUT_S))

    def set(self, gpu: GpuUuid, cgroup: Path, hard: int) -> None:
        """Limit a cgroup to so many bytes of a GPU; UNLIMITED takes the limit away.

        Raises:
            LimitError: the driver refuses.
        """
        self.within(lambda: self._set(gpu, cgroup, hard))

    def _set(self, gpu: GpuUuid, cgroup: Path, hard: int) -> bool:
        with self._handle(gpu) as handle:
            limits = self.nvml.c_nvmlSetMemoryLimits_v1_t(str(cgroup).encode(), 0, hard)
            self.nvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
        return True

    def get(self, gpu: GpuUuid, cgroup: Path) -> MemoryLimit | None:
        """The limit of a cgroup; None if it has none.

        Raises:
            LimitError: the driver does not say.
        """
        return self.within(lambda: self._get(gpu, cgroup))

    def _get(self, gpu: GpuUuid, cgroup: Path) -> MemoryLimit | None:
        with self._handle(gpu) as handle:
            limits = self.nvml.c_nvmlGetMemoryLimits_v1_t(str(cgroup).encode(), 0, 0, 0)
            try:
                self.nvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
            except self.nvml.NVMLError as error:
                # Without a limit on the group or above it, some drivers answer as if they knew no limits at all.
                if error.value in {_NOT_FOUND, _NOT_SUPPORTED}:
                    return None
                raise
        return None if limits.hardLimit == UNLIMITED else MemoryLimit(limits.hardLimit, limits.currentUsed)

    @contextmanager
    def _handle(self, gpu: GpuUuid) -> Iterator[Any]:
        try:
            self.nvml.nvmlInit()
            try:
                yield self.nvml.nvmlDeviceGetHandleByUUID(gpu)
            finally:
                with suppress(self.nvml.NVMLError):  # the next call finds out what is wrong
                    self.nvml.nvmlShutdown()
        except self.nvml.NVMLError as error:
            meaning = _MEANING.get(error.value, "see the node's kernel log")
            raise LimitError(f"the driver says {error}: {meaning}") from error
