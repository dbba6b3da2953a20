"""What the library says of one device: a GPU or a MIG instance."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.errors import GpuShareError
from gpushare.model.gpu import MAX_INSTANCES

_PROFILE: Final = re.compile(r" MIG (\S+)$")
_RECOVERY_ACTION: Final = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older bindings do not name
_ACTIONS: Final = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "end what uses peer to peer",
    4: "end what runs and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the PCIe bus",
    7: "reboot the machine",
}
MIB: Final = 1024 * 1024


class LeftOutError(GpuShareError):
    """A GPU cannot be shared as it is; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRule:
    """Which memory of a GPU is shared."""

    reserved: bool = False
    """Also what the driver keeps for itself, as Aliyun's plugin counts it: shares of it cannot be allocated in full."""
    unified_mib: int = 0
    """Size of GPUs that have no memory of their own; 0 to leave them out."""


def memory_bytes(nvml: Any, handle: Any, rule: MemoryRule) -> int:
    """Memory of a device that is shared.

    Raises:
        LeftOutError: it has none of its own, and the rule has no size for such a device.
        nvml.NVMLError: the driver does not answer.
    """
    try:
        info, reserved = _memory(nvml, handle)
        if info.total:
            return int(info.total) - (0 if rule.reserved else reserved)
    except nvml.NVMLError_NotSupported:
        pass
    if rule.unified_mib:
        return rule.unified_mib * MIB
    raise LeftOutError(
        "the driver does not say how much memory it has, as with memory that it shares with the processor; set"
        " --unified-memory to the size that may be shared"
    )


def _memory(nvml: Any, handle: Any) -> tuple[Any, int]:
    """Drivers before 510 do not tell what they keep."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch, nvml.NVMLError_NotSupported):
        return nvml.nvmlDeviceGetMemoryInfo(handle), 0
    return info, int(info.reserved)


def in_mig_mode(nvml: Any, handle: Any) -> bool:
    """Whether the GPU is partitioned, so that only its instances can be used."""
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def instances(nvml: Any, handle: Any) -> Sequence[tuple[int, Any]]:
    """Number and handle of each MIG instance of a GPU; the numbers may have gaps."""
    found = []
    for number in range(min(nvml.nvmlDeviceGetMaxMigDeviceCount(handle), MAX_INSTANCES)):
        with suppress(nvml.NVMLError_NotFound):
            found.append((number, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
    return found


def mig_profile(model: str) -> str:
    """From the name of a MIG instance, such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""
    found = _PROFILE.search(model)
    return found[1] if found else ""


def recovery_action(nvml: Any, handle: Any) -> int | None:
    """What the driver asks for so that the GPU works as it should: 0 for nothing. None from drivers before 570."""
    try:
        field = nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])[0]
    except nvml.NVMLError:
        return None
    return int(field.value.uiVal) if field.nvmlReturn == nvml.NVML_SUCCESS else None


def advice(action: int | None) -> str:
    """A recovery action in a few words; empty for none."""
    return f"the driver asks to {_ACTIONS.get(action, f'do {action}')}" if action else ""


def numa(nvml: Any, handle: Any, pci_devices: Path) -> int | None:
    """The NUMA node of the GPU's PCI slot, which NVML itself does not tell on most machines."""
    try:
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId.lower()
        number = int((pci_devices / bus[-12:] / "numa_node").read_text(encoding="ascii"))
    except (nvml.NVMLError, OSError, ValueError):
        return None
    return number if number >= 0 else None


def minor(nvml: Any, handle: Any) -> int | None:
    """Of the GPU's device node."""
    try:
        return int(nvml.nvmlDeviceGetMinorNumber(handle))
    except nvml.NVMLError:
        return None


def caps(nvml: Any, handle: Any, gpu_minor: int | None, mig_minors: Path) -> tuple[int, ...]:
    """Numbers of the nodes `/dev/nvidia-caps/nvidia-cap<N>` that a MIG instance needs; none if the driver has no list.

    Lines of the list: `gpu0/gi7/access 66` and `gpu0/gi7/ci0/access 67`, with the minor number of the GPU.
    """
    gpu = f"gpu{gpu_minor}/gi{nvml.nvmlDeviceGetGpuInstanceId(handle)}"
    wanted = (f"{gpu}/access", f"{gpu}/ci{nvml.nvmlDeviceGetComputeInstanceId(handle)}/access")
    try:
        lines = dict(line.split() for line in mig_minors.read_text(encoding="ascii").splitlines())
        return tuple(int(lines[name]) for name in wanted)
    except (OSError, ValueError, KeyError):
        return ()
