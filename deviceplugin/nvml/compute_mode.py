"""Compute modes of GPUs: who may use them at the same time. Source: nvml.h, nvmlDeviceGetComputeMode."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from deviceplugin.limits.backend import LimitError, Proofs
from deviceplugin.nvml.deadline import Deadline
from gpushare.model.gpu import Gpu

_TIMEOUT_S: Final = 5.0
_LIMITING: Final = {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}


@dataclass(frozen=True, slots=True)
class ComputeModes:
    """Asks the driver. The library is open meanwhile only, so that others can close it after a fault."""

    nvml: Any
    within: Deadline = field(default_factory=lambda: Deadline(_TIMEOUT_S))

    def unshared(self, gpus: Sequence[Gpu]) -> Proofs:
        """Why programs cannot use a GPU side by side unless MPS serves them; GPUs on which they can are not in it.

        A driver that does not answer, or knows no modes, says nothing against it.
        """
        with suppress(LimitError, self.nvml.NVMLError):
            modes = self.within(lambda: [(gpu, self._mode(gpu)) for gpu in gpus if not gpu.mig])
            return {gpu.uuid: _told(gpu, _LIMITING[mode]) for gpu, mode in modes if mode in _LIMITING}
        return {}

    def _mode(self, gpu: Gpu) -> int:
        self.nvml.nvmlInit()
        try:
            with suppress(self.nvml.NVMLError):
                return int(self.nvml.nvmlDeviceGetComputeMode(self.nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)))
            return 0
        finally:
            with suppress(self.nvml.NVMLError):
                self.nvml.nvmlShutdown()


def _told(gpu: Gpu, mode: str) -> str:
    return (
        f"its compute mode is {mode}, so that without MPS it serves one program at a time or none; nvidia-smi -i"
        f" {gpu.index} -c DEFAULT lets others in"
    )
