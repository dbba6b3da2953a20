"""The processes on each GPU, as NVIDIA's driver lists them."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deviceplugin.nvml.deadline import Deadline, SilentDriverError
from deviceplugin.usage import join
from deviceplugin.usage.values import GpuProcess, Lists
from gpushare.identity import GpuUuid
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
_TIMEOUT_S: Final = 5.0
_KINDS: Final = ("Compute", "Graphics", "MPSCompute")
"""A process may be in several of these lists."""
_VERSIONS: Final = ("_v3", "_v2")
"""Of the functions; drivers before R510 lack the newer ones."""


@dataclass(slots=True)
class NvmlProcesses:
    """Reads the lists. The library is open while they are read only, so that others can close it after a fault.

    Used by one thread.
    """

    nvml: Any
    within: Deadline = field(default_factory=lambda: Deadline(_TIMEOUT_S))
    _told: Mapping[GpuUuid, str] = field(init=False, default_factory=dict)

    def read(self, gpus: Collection[GpuUuid]) -> Lists:
        """The processes on these GPUs and MIG instances; a driver that hangs is given up on, and logged."""
        try:
            found = self.within(lambda: self._read(gpus))
        except (SilentDriverError, self.nvml.NVMLError) as error:
            found = dict.fromkeys(gpus, str(error))
        self._tell({gpu: each for gpu, each in found.items() if isinstance(each, str)})
        return {gpu: None if isinstance(each, str) else each for gpu, each in found.items()}

    def _tell(self, problems: Mapping[GpuUuid, str]) -> None:
        """Log it when it changes."""
        if problems != self._told:
            level = logging.WARNING if problems else logging.INFO
            logs.event(_LOG, "usage unknown" if problems else "usage known", level=level, problems=problems)
        self._told = problems

    def _read(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, Sequence[GpuProcess] | str]:
        """The processes on each GPU, or why they are not known."""
        self.nvml.nvmlInit()
        try:
            return {gpu: self._of(gpu) for gpu in gpus}
        finally:
            self._close()

    def _of(self, gpu: GpuUuid) -> Sequence[GpuProcess] | str:
        try:
            handle = self.nvml.nvmlDeviceGetHandleByUUID(gpu)
            lists = [found for kind in _KINDS if (found := self._list(handle, kind)) is not None]
        except self.nvml.NVMLError as error:
            return f"the driver says: {error}"
        return join.merged(lists) if lists else "the driver does not list its processes"

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
