"""GPUs as NVIDIA's driver reports them."""

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from deviceplugin.causes import NONE, Cause, CauseError, Code, both
from deviceplugin.nvml.driver import Deadline, SilentDriverError
from deviceplugin.nvml.faults import SETTLED_S, Faults
from deviceplugin.source import WITHOUT_INSTANCES, GpuSourceError, OutdatedLibraryError, RawGpu
from gpushare.model.gpu import MAX_INSTANCES, LeftOut, MigInstance, mig_index
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import MIB

_LOG: Final = logging.getLogger(__name__)
_SLICE_S: Final = 0.5  # an event wait cannot be interrupted, so this is the delay of a stop
_TIMEOUT_S: Final = 30.0  # a driver that is asked for the first time may start the GPUs
_GONE: Final = Cause(Code.MIG_GONE, "the MIG instance no longer exists")
_IN_MIG_MODE: Final = Cause(Code.MIG_MODE, "the GPU is in MIG mode")
_PROFILE: Final = re.compile(r" MIG (\S+)$")  # in a name such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`
_ARCHITECTURES: Final = dict(
    enumerate(("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"), 2)
)
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


class LeftOutError(CauseError):
    """A GPU cannot be shared as it is; the cause says why and what to do."""


@dataclass(kw_only=True)
class NvmlSource:
    nvml: Any
    clock: Clock
    reserved: bool = False  # share also what the driver keeps for itself, as Aliyun's plugin counts memory
    unified_mib: int = 0  # size of GPUs that have no memory of their own; 0 to leave them out
    ignored_xids: frozenset[int] = frozenset()
    recovery_s: float = 0.0  # 0: time heals no fault
    recovery_action: bool = True  # a GPU is unhealthy while its driver wants something done, and well if nothing
    pci_devices: Path = Path("/sys/bus/pci/devices")
    mig_minors: Path = Path("/proc/driver/nvidia-caps/mig-minors")
    within: Deadline = field(default_factory=lambda: Deadline(_TIMEOUT_S))
    left_out: Sequence[LeftOut] = field(init=False, default=())
    _open: bool = field(init=False, default=False)
    _faults: Faults = field(init=False)
    _known: dict[int, Sequence[RawGpu]] = field(init=False, default_factory=dict)  # read last, by NVML index
    _away: set[int] = field(init=False, default_factory=set)  # NVML indices of GPUs that were lost at the last reading
    _said: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._faults = Faults(nvml=self.nvml, ignored_xids=self.ignored_xids, say=self._say)

    def read(self) -> Sequence[RawGpu]:
        """See GpuSource. What was read before and cannot be read now has the cause as its fault."""
        try:
            return self.within(self._read_all)
        except SilentDriverError as error:
            raise GpuSourceError(str(error), reason=Cause(Code.DRIVER_SILENT, "the driver does not answer")) from error

    def _read_all(self) -> Sequence[RawGpu]:
        nvml = self.nvml
        try:
            if not self._open:
                nvml.nvmlInit()
                self._open = True
                self._faults.open()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._close()
            raise self._unreadable(error) from error
        if self.recovery_s:
            self._faults.forget(None, self.recovery_s, self.clock.monotonic())
        gpus: list[RawGpu] = []
        gone: list[RawGpu] = []
        self.left_out = ()
        for index in range(count):
            found, former = self._at(index)
            self._known[index] = [*found, *former]
            gpus += found
            gone += former
        # When the library is opened again without a lost GPU, the others may have other numbers.
        uuids, numbers = {gpu.uuid for gpu in gpus}, {gpu.index for gpu in gpus}
        return [*gpus, *(gpu for gpu in gone if gpu.uuid not in uuids and gpu.index not in numbers)]

    def wait(self, stop: threading.Event, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while not stop.is_set() and (left := end - self.clock.monotonic()) > 0:
            if not self._faults.watched:
                self.clock.wait(stop, left)
                continue
            try:
                if self.within(partial(self._fault_within, min(left, _SLICE_S))):
                    return
            except SilentDriverError:
                self.clock.wait(stop, left)  # the next reading tells of it

    def close(self) -> None:
        with suppress(SilentDriverError):
            self.within(self._close)

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        for give_back in (self._faults.close, self.nvml.nvmlShutdown):
            try:
                give_back()
            except self.nvml.NVMLError as error:
                logs.event(_LOG, "nvml not closed", level=logging.DEBUG, error=str(error))

    def _unreadable(self, error: Exception) -> GpuSourceError:
        nvml = self.nvml
        if isinstance(error, nvml.NVMLError_LibRmVersionMismatch):
            return OutdatedLibraryError(
                "the driver of the node and the library that this process has loaded have different versions",
                reason=Cause(Code.DRIVER_CHANGED, "driver and library have different versions"),
            )
        if isinstance(error, nvml.NVMLError_DriverNotLoaded):
            self._faults.forget()  # loading it starts the GPUs from scratch
        return GpuSourceError(
            f"the NVIDIA driver does not answer ({error}); is the driver installed on the node, and is its library"
            " mounted into this container (runtimeClassName nvidia, or the driver's directory as a volume)?",
            reason=Cause(Code.DRIVER_SILENT, f"the driver does not answer: {error}"),
        )

    def _at(self, index: int) -> tuple[Sequence[RawGpu], Sequence[RawGpu]]:
        """What there is at an NVML index, one GPU or its instances; and what was there, with the cause as its fault."""
        known = self._known.get(index, ())
        try:
            found = self._read(index)
        except (self.nvml.NVMLError, LeftOutError) as error:
            if isinstance(error, (self.nvml.NVMLError_GpuIsLost, self.nvml.NVMLError_ResetRequired)):
                self._away.add(index)
            says = Cause(Code.DRIVER_ERROR, f"the driver says: {error}")
            reason = error.cause if isinstance(error, LeftOutError) else says
            self._say("gpu left out", index=index, reason=reason)
            if not known:  # else it is listed, with this reason
                self.left_out = [*self.left_out, LeftOut(index=index, reason=reason)]
            return (), [replace(gpu, fault=reason) for gpu in known]
        uuids, numbers = {gpu.uuid for gpu in found}, {gpu.index for gpu in found}
        former = [gpu for gpu in known if gpu.uuid not in uuids and gpu.index not in numbers]
        return found, [replace(gpu, fault=_GONE if gpu.mig else _IN_MIG_MODE) for gpu in former]

    def _read(self, index: int) -> Sequence[RawGpu]:
        nvml = self.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        gpu = RawGpu(
            uuid=uuid,
            index=index,
            model=nvml.nvmlDeviceGetName(handle),
            memory_bytes=0,
            numa=_numa(nvml, handle, self.pci_devices),
            minor=_minor(nvml, handle),
            attributes=tuple(_attributes(nvml, handle, self.pci_devices)),
        )
        self._faults.watch(handle, uuid)
        if index in self._away:  # what took it away and brought it back was a reset
            self._away.discard(index)
            self._faults.forget(uuid)
        advice = self._advice(handle, uuid)
        if _in_mig_mode(nvml, handle):
            return [self._instance(gpu, advice, *instance) for instance in self._instances(handle)]
        fault = both(self._faults.of(uuid), advice)
        return [replace(gpu, memory_bytes=self._memory_bytes(handle), fault=fault)]

    def _advice(self, handle: Any, uuid: str) -> Cause:
        """What the driver wants to be done; if nothing, the GPU's faults are over."""
        action = _recovery_action(self.nvml, handle) if self.recovery_action else None
        if action == 0:
            self._faults.forget(uuid, SETTLED_S, self.clock.monotonic())
        if not action:
            return NONE
        return Cause(Code.ACTION, f"the driver asks to {_ACTIONS.get(action, f'do {action}')}")

    def _instances(self, handle: Any) -> Sequence[tuple[int, Any]]:
        nvml, found = self.nvml, []
        for number in range(min(nvml.nvmlDeviceGetMaxMigDeviceCount(handle), MAX_INSTANCES)):
            with suppress(nvml.NVMLError_NotFound):
                found.append((number, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
        if not found:
            raise LeftOutError(WITHOUT_INSTANCES)
        return found

    def _instance(self, gpu: RawGpu, advice: Cause, number: int, handle: Any) -> RawGpu:
        """Args: gpu: of which it is a part. advice: of the driver about that GPU."""
        nvml = self.nvml
        model = nvml.nvmlDeviceGetName(handle)
        profile, instance = _PROFILE.search(model), int(nvml.nvmlDeviceGetGpuInstanceId(handle))
        return replace(
            gpu,
            uuid=nvml.nvmlDeviceGetUUID(handle),
            index=mig_index(gpu.index, number),
            model=model,
            memory_bytes=self._memory_bytes(handle),
            fault=both(self._faults.of(gpu.uuid, instance), advice),
            caps=_caps(nvml, handle, gpu.minor, self.mig_minors),
            mig=MigInstance(gpu=gpu.index, number=number, profile=profile[1] if profile else ""),
        )

    def _memory_bytes(self, handle: Any) -> int:
        """Memory of a device that is shared. Raises LeftOutError: it has none of its own, and no size is set."""
        with suppress(self.nvml.NVMLError_NotSupported):
            info, reserved = _memory(self.nvml, handle)
            if info.total:
                return int(info.total) - (0 if self.reserved else reserved)
        if self.unified_mib:
            return self.unified_mib * MIB
        why = (
            "the driver does not say how much memory it has, as with memory that it shares with the processor; set"
            " --unified-memory to the size that may be shared"
        )
        raise LeftOutError(Cause(Code.MEMORY_UNKNOWN, why))

    def _fault_within(self, seconds: float) -> bool:
        try:
            return self._faults.fault_within(seconds, self.clock.monotonic())
        except self.nvml.NVMLError as error:
            # The next reading opens the library again, with the GPUs that answer then.
            self._say("fault events failed", error=str(error))
            self._close()
            return False

    def _say(self, what: str, **fields: Any) -> None:
        said = f"{what} {fields}"
        if said not in self._said:
            logs.event(_LOG, what, level=logging.WARNING, **fields)
        self._said.add(said)


def _memory(nvml: Any, handle: Any) -> tuple[Any, int]:
    """Drivers before 510 do not tell what they keep."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch, nvml.NVMLError_NotSupported):
        return nvml.nvmlDeviceGetMemoryInfo(handle), 0
    return info, int(info.reserved)


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    with suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
        return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)
    return False


def _recovery_action(nvml: Any, handle: Any) -> int | None:
    """What the driver asks for so that the GPU works as it should: 0 for nothing. None from drivers before 570."""
    with suppress(nvml.NVMLError):
        field = nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])[0]
        return int(field.value.uiVal) if field.nvmlReturn == nvml.NVML_SUCCESS else None
    return None


def _numa(nvml: Any, handle: Any, pci_devices: Path) -> int | None:
    """The NUMA node of the GPU's PCI slot, which NVML itself does not tell on most machines."""
    with suppress(nvml.NVMLError, OSError, ValueError):
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId.lower()
        number = int((pci_devices / bus[-12:] / "numa_node").read_text(encoding="ascii"))
        return number if number >= 0 else None
    return None


def _minor(nvml: Any, handle: Any) -> int | None:
    with suppress(nvml.NVMLError):
        return int(nvml.nvmlDeviceGetMinorNumber(handle))
    return None


def _attributes(nvml: Any, handle: Any, pci_devices: Path) -> Iterator[tuple[str, str]]:
    """As far as driver and machine tell them. Versions have three numbers without leading zeros."""
    with suppress(nvml.NVMLError):
        yield "architecture", _ARCHITECTURES.get(nvml.nvmlDeviceGetArchitecture(handle), "Unknown")
    with suppress(nvml.NVMLError):
        yield "cudaComputeCapability", _version(".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle))))
    with suppress(nvml.NVMLError):
        yield "driverVersion", _version(nvml.nvmlSystemGetDriverVersion())
    with suppress(nvml.NVMLError):
        number = nvml.nvmlSystemGetCudaDriverVersion_v2()
        yield "cudaDriverVersion", f"{number // 1000}.{number % 1000 // 10}.0"
    with suppress(nvml.NVMLError):
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId.lower()[-12:]
        yield "resource.kubernetes.io/pciBusID", bus
        if root := re.search(r"/(pci[0-9a-f]{4}:[0-9a-f]{2})/", str((pci_devices / bus).resolve())):
            yield "resource.kubernetes.io/pcieRoot", root[1]


def _version(text: str) -> str:
    numbers = [int(part) for part in re.findall(r"\d+", text)[:3]]
    return ".".join(map(str, [*numbers, 0, 0, 0][:3]))


def _caps(nvml: Any, handle: Any, gpu_minor: int | None, mig_minors: Path) -> tuple[int, ...]:
    """Numbers of the nodes `/dev/nvidia-caps/nvidia-cap<N>` that a MIG instance needs; none if the driver has no list.

    Lines of the list: `gpu0/gi7/access 66` and `gpu0/gi7/ci0/access 67`, with the minor number of the GPU.
    """
    gpu = f"gpu{gpu_minor}/gi{nvml.nvmlDeviceGetGpuInstanceId(handle)}"
    wanted = (f"{gpu}/access", f"{gpu}/ci{nvml.nvmlDeviceGetComputeInstanceId(handle)}/access")
    with suppress(OSError, ValueError, KeyError):
        lines = dict(line.split() for line in mig_minors.read_text(encoding="ascii").splitlines())
        return tuple(int(lines[name]) for name in wanted)
    return ()
