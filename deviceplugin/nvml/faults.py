"""What is wrong with GPUs, by the driver's events: Xids of https://docs.nvidia.com/deploy/xid-errors/ and ECC."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, Final

from deviceplugin.causes import NONE, Cause, Code

_WHOLE_GPU: Final = 0xFFFFFFFF  # what an event says instead of a GPU instance
SETTLED_S: Final = 30.0  # the driver may say for a moment after a fault, too, that nothing needs to be done
HARMLESS: Final = frozenset({13, 31, 43, 45, 68, 109})  # Xids that faulty programs cause; all others condemn
NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        13: "graphics engine exception",
        31: "GPU memory page fault",
        32: "invalid or corrupted push buffer stream",
        38: "driver firmware error",
        43: "GPU stopped processing",
        44: "graphics engine fault during context switch",
        45: "preemptive cleanup, due to previous errors",
        46: "GPU stopped processing",
        48: "double bit ECC error",
        54: "auxiliary power is not connected",
        61: "internal micro-controller breakpoint",
        62: "internal micro-controller halt",
        63: "ECC page retirement or row remapping recorded",
        64: "ECC page retirement or row remapping failed",
        68: "video decoder exception",
        69: "graphics engine class error",
        74: "NVLink error",
        79: "GPU has fallen off the bus",
        92: "high single-bit ECC error rate",
        94: "contained ECC error",
        95: "uncontained ECC error",
        109: "context switch timeout",
        110: "security fault",
        119: "GSP RPC timeout",
        120: "GSP error",
        121: "C2C link corrected error",
        136: "link training failed",
        137: "NVLink fabric address error",
        140: "unrecovered ECC error",
        143: "GPU initialization failed",
        149: "NVLink network interface error",
        154: "GPU recovery action changed",
        155: "NVLink software-defined error",
        156: "memory resource retired",
        157: "memory resource retirement failed",
    }
)


@dataclass(kw_only=True)
class Faults:
    """Those of which the driver's events tell, by GPU and, for MIG, by GPU instance.

    A fault stays until the GPU was away (a reset takes it away), the driver was unloaded or says that nothing needs to
    be done, or the administrator's time has passed without another one.
    """

    nvml: Any
    ignored_xids: frozenset[int]
    say: Callable[..., None]  # logs a warning once: a name and fields
    watched: set[str] = field(init=False, default_factory=set)  # UUIDs of the GPUs whose events come
    _set: Any = field(init=False, default=None)  # NVML's; None where the driver has no events, as in virtual machines
    _found: dict[tuple[str, int], tuple[Cause, float]] = field(init=False, default_factory=dict)

    def of(self, uuid: str, instance: int | None = None) -> Cause:
        """Why an instance of a GPU is unhealthy, which has its GPU's faults too, or a whole GPU; empty if it is not.

        Old drivers name an instance in the events of any GPU: a whole GPU has all of them.
        """
        found = {where: reason for (gpu, where), (reason, _) in self._found.items() if gpu == uuid}
        wanted = (_WHOLE_GPU, *found) if instance is None else (_WHOLE_GPU, instance)
        return next((found[where] for where in wanted if where in found), NONE)

    def forget(self, uuid: str | None = None, older_s: float = 0.0, now: float = inf) -> None:
        """What is so old of a GPU, or of all, is over."""
        self._found = {
            key: fault for key, fault in self._found.items() if uuid not in {None, key[0]} or now - fault[1] < older_s
        }

    def open(self) -> None:
        """Make the event set of this opening of the library."""
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
        """Wait for one event. Whether it makes a GPU unhealthy. Raises nvml.NVMLError: events do not work any more."""
        nvml = self.nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
        except nvml.NVMLError_Timeout:
            return False
        xid = int(event.eventData)
        if event.eventType == nvml.nvmlEventTypeDoubleBitEccError:
            why = Cause(Code.ECC, "uncorrectable memory error (ECC)")
        elif xid in self.ignored_xids | HARMLESS:
            return False
        else:
            why = Cause(f"{Code.XID}{xid}", f"Xid {xid}: {NAMES[xid]}" if xid in NAMES else f"Xid {xid}")
        self._found[nvml.nvmlDeviceGetUUID(event.device), int(event.gpuInstanceId)] = (why, now)
        return True
