"""GPUs as NVIDIA's driver reports them."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deviceplugin.nvml.binding import text
from deviceplugin.source import GpuSourceError, RawGpu
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
_APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that a faulty program causes: the GPU goes on working for everybody else."""
_SLICE_S: Final = 0.5  # an event wait cannot be interrupted, so this is the delay of a stop
_PCI_DEVICES: Final = Path("/sys/bus/pci/devices")


@dataclass(kw_only=True)
class NvmlSource:
    """Reads the driver's GPUs.

    A GPU with a critical error stays unhealthy until this process ends: the driver does not say when it is well again,
    and a reset needs the pods gone anyway.
    """

    nvml: Any
    clock: Clock
    pci_devices: Path = _PCI_DEVICES
    _open: bool = field(init=False, default=False)
    _events: Any = field(init=False, default=None)
    """NVML's event set; None where the driver has no events, such as in some virtual machines."""
    _watched: set[str] = field(init=False, default_factory=set)
    _faults: dict[str, str] = field(init=False, default_factory=dict)
    _said: set[str] = field(init=False, default_factory=set)

    def read(self) -> Sequence[RawGpu]:
        """All GPUs but those in MIG mode, whose memory is partitioned by the hardware."""
        nvml = self.nvml
        try:
            if not self._open:
                nvml.nvmlInit()
                self._open = True
                self._events = self._event_set()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self.close()
            raise GpuSourceError(
                f"the NVIDIA driver does not answer ({error}); is the driver installed on the node, and is its library"
                " mounted into this container (runtimeClassName nvidia, or the driver's directory as a volume)?"
            ) from error
        return [gpu for index in range(count) if (gpu := self._gpu(index)) is not None]

    def wait(self, stop: threading.Event, seconds: float) -> None:
        """Sleep, but return early after a fault event of the driver."""
        end = self.clock.monotonic() + seconds
        while not stop.is_set() and (left := end - self.clock.monotonic()) > 0:
            if not self._watched:
                self.clock.wait(stop, left)
            elif self._fault_within(min(left, _SLICE_S)):
                return

    def close(self) -> None:
        """Shut the library down; it is opened again by the next reading."""
        if not self._open:
            return
        events, self._events, self._open = self._events, None, False
        self._watched.clear()
        give_back = [self.nvml.nvmlShutdown]
        if events is not None:
            give_back.insert(0, lambda: self.nvml.nvmlEventSetFree(events))
        for free in give_back:
            try:
                free()
            except self.nvml.NVMLError as error:
                logs.event(_LOG, "nvml not closed", level=logging.DEBUG, error=str(error))

    def _event_set(self) -> Any:
        try:
            return self.nvml.nvmlEventSetCreate()
        except self.nvml.NVMLError as error:
            self._say("no fault events", error=str(error))
            return None

    def _gpu(self, index: int) -> RawGpu | None:
        nvml = self.nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if self._is_mig(handle):
                reason = "it is in MIG mode; turn that off with nvidia-smi -mig 0 to share it"
                self._say("gpu left out", index=index, reason=reason)
                return None
            uuid = text(nvml.nvmlDeviceGetUUID(handle))
            self._watch(handle, uuid)
            return RawGpu(
                uuid=uuid,
                index=index,
                model=text(nvml.nvmlDeviceGetName(handle)),
                memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                numa=self._numa(handle),
                fault=self._faults.get(uuid, ""),
            )
        except nvml.NVMLError as error:
            # If it was read before, the inventory keeps it as unhealthy.
            self._say("gpu left out", index=index, reason=f"the driver says: {error}")
            return None

    def _is_mig(self, handle: Any) -> bool:
        try:
            current, _pending = self.nvml.nvmlDeviceGetMigMode(handle)
        except (self.nvml.NVMLError_NotSupported, self.nvml.NVMLError_FunctionNotFound):
            return False
        return bool(current == self.nvml.NVML_DEVICE_MIG_ENABLE)

    def _numa(self, handle: Any) -> int | None:
        """The NUMA node of the GPU's PCI slot, which NVML itself does not tell on most machines."""
        try:
            bus = text(self.nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
            number = int((self.pci_devices / bus[-12:] / "numa_node").read_text(encoding="ascii"))
        except (self.nvml.NVMLError, OSError, ValueError):
            return None
        return number if number >= 0 else None

    def _watch(self, handle: Any, uuid: str) -> None:
        if self._events is None or uuid in self._watched:
            return
        nvml = self.nvml
        self._watched.add(uuid)
        try:
            wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
            wanted &= nvml.nvmlDeviceGetSupportedEventTypes(handle)
            nvml.nvmlDeviceRegisterEvents(handle, wanted, self._events)
        except nvml.NVMLError as error:
            # Old or virtual GPUs have no events; one that stops answering is still noticed by reading it.
            self._say("no fault events", gpu=uuid, error=str(error))

    def _fault_within(self, seconds: float) -> bool:
        """Wait for one event. Whether it makes a GPU unhealthy."""
        nvml = self.nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, int(seconds * 1000))
            uuid = text(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError_Timeout:
            return False
        except nvml.NVMLError as error:
            # The next reading opens the library again, with the GPUs that answer then.
            self._say("fault events failed", error=str(error))
            self.close()
            return False
        fault = self._meaning(event)
        if fault:
            self._faults[uuid] = fault
        return bool(fault)

    def _meaning(self, event: Any) -> str:
        if event.eventType == self.nvml.nvmlEventTypeDoubleBitEccError:
            return "uncorrectable memory error"
        xid = int(event.eventData)
        return "" if xid in _APPLICATION_XIDS else f"Xid {xid}"

    def _say(self, what: str, **fields: Any) -> None:
        """Log a warning once, not at every reading."""
        said = f"{what} {fields}"
        if said not in self._said:
            logs.event(_LOG, what, level=logging.WARNING, **fields)
        self._said.add(said)
