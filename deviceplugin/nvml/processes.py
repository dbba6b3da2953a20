"""The processes on each GPU, as NVIDIA's driver lists them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deviceplugin.usage import join
from deviceplugin.usage.values import GpuProcess, Lists
from gpushare.identity import GpuUuid

_KINDS: Final = ("Compute", "Graphics", "MPSCompute")
"""A process may be in several of these lists."""
_VERSIONS: Final = ("_v3", "_v2")
"""Of the functions; drivers before R510 lack the newer ones."""


@dataclass(frozen=True, slots=True)
class NvmlProcesses:
    """Reads the lists. The library is open while they are read only, so that others can close it after a fault."""

    nvml: Any

    def read(self, gpus: Collection[GpuUuid]) -> Lists:
        """The processes on these GPUs and MIG instances."""
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError:
            return dict.fromkeys(gpus)
        try:
            return {gpu: self._of(gpu) for gpu in gpus}
        finally:
            self._close()

    def _of(self, gpu: GpuUuid) -> tuple[GpuProcess, ...] | None:
        try:
            handle = self.nvml.nvmlDeviceGetHandleByUUID(gpu)
            lists = [found for kind in _KINDS if (found := self._list(handle, kind)) is not None]
        except self.nvml.NVMLError:
            return None
        return join.merged(lists) if lists else None

    def _list(self, handle: Any, kind: str) -> Sequence[GpuProcess] | None:
        """One list; None where the driver or the GPU has none of this kind."""
        for version in _VERSIONS:
            try:
                found = getattr(self.nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")(handle)
            except self.nvml.NVMLError_FunctionNotFound:
                continue
            except self.nvml.NVMLError_NotSupported:
                return None
            return [GpuProcess(int(each.pid), each.usedGpuMemory) for each in found]
        return None

    def _close(self) -> None:
        try:
            self.nvml.nvmlShutdown()
        except self.nvml.NVMLError:
            return  # the next reading finds out what is wrong
