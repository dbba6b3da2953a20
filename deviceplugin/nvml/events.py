"""The driver's fault events."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deviceplugin.nvml import xids
from deviceplugin.nvml.faults import Faults


@dataclass(kw_only=True)
class Events:
    """The event set of one opening of the library."""

    nvml: Any
    faults: Faults
    ignored_xids: frozenset[int]
    say: Callable[..., None]
    """Logs a warning once: a name and fields."""
    watched: set[str] = field(init=False, default_factory=set)
    """UUIDs of the GPUs whose events come."""
    _set: Any = field(init=False, default=None)
    """NVML's event set; None where the driver has no events, such as in some virtual machines."""

    def open(self) -> None:
        """Call when the library was opened."""
        try:
            self._set = self.nvml.nvmlEventSetCreate()
        except self.nvml.NVMLError as error:
            self.say("no fault events", error=str(error))

    def close(self) -> None:
        """Call before the library is closed. May raise the library's error."""
        events, self._set = self._set, None
        self.watched.clear()
        if events is not None:
            self.nvml.nvmlEventSetFree(events)

    def watch(self, handle: Any, uuid: str) -> None:
        """Have the events of a GPU come."""
        if self._set is None or uuid in self.watched:
            return
        nvml = self.nvml
        self.watched.add(uuid)
        try:
            wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
            wanted &= nvml.nvmlDeviceGetSupportedEventTypes(handle)
            nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except nvml.NVMLError as error:
            # Old or virtual GPUs have no events; one that stops answering is still noticed by reading it.
            self.say("no fault events", gpu=uuid, error=str(error))

    def fault_within(self, seconds: float, now: float) -> bool:
        """Wait for one event. Whether it makes a GPU unhealthy.

        Raises:
            nvml.NVMLError: events do not work any more.
        """
        nvml = self.nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
        except nvml.NVMLError_Timeout:
            return False
        reason = self._reason(event)
        if reason:
            self.faults.add(nvml.nvmlDeviceGetUUID(event.device), int(event.gpuInstanceId), reason, now)
        return bool(reason)

    def _reason(self, event: Any) -> str:
        if event.eventType == self.nvml.nvmlEventTypeDoubleBitEccError:
            return "uncorrectable memory error (ECC)"
        return xids.reason(int(event.eventData), self.ignored_xids)
