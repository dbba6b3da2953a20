"""The door to NVIDIA's driver: `pynvml`, and what it is asked beside the reading of GPUs. Source: nvml.h of CUDA 13.4.

Each kind of question has a deadline of its own: a list of processes that hangs must not hold up a start.
"""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from deviceplugin import source
from deviceplugin.causes import Cause, CauseError, Code
from deviceplugin.source import GpuProcess, Lists, Measured
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
_TIMEOUT_S: Final = 5.0
_NEW_PROCESS_S: Final = 30.0  # a driver that is asked for the first time may start the GPUs
T = TypeVar("T")
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
_CODES: Final = {_FUNCTION_NOT_FOUND: Code.DRIVER_OLD, _NOT_SUPPORTED: Code.NOT_SUPPORTED}
_LIMITING_MODES: Final = {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
_KINDS: Final = ("Compute", "Graphics", "MPSCompute")  # A process may be in several of these lists
_VERSIONS: Final = ("_v3", "_v2")  # of the functions; drivers before R510 lack the newer ones


class DriverError(CauseError):
    """The driver refuses, or does not say what it was asked."""


class SilentDriverError(DriverError):
    """The driver has not answered in time; it may still do what it was asked."""


def library() -> Any:
    """The binding. Imported late: a plugin with simulated GPUs needs none."""
    import pynvml

    return pynvml


def problem() -> str | None:
    """Why this process cannot read the driver; None if it can. As a program: exit status 0, else 1 and the cause."""
    nvml = library()
    try:
        nvml.nvmlInit()
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return str(error)
    return None


def works_in_new_process() -> bool:
    """Whether a process that is started now can read the driver: it loads the library that is there now."""
    # S603: this very program.
    command = [sys.executable, "-m", "deviceplugin.nvml.driver"]
    try:
        return subprocess.run(command, timeout=_NEW_PROCESS_S, check=False, capture_output=True).returncode == 0  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def opened(nvml: Any) -> Iterator[None]:
    """The library, open meanwhile only, so that the source can really unload it after a fault."""
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):  # the next call finds out what is wrong
            nvml.nvmlShutdown()


class Deadline:
    """Makes one call at a time, and gives up on one that takes too long: a driver that hangs cannot be interrupted.

    Until that one is back, no other is made: it must not undo what was done after it. Safe for use by many threads.
    """

    def __init__(self, seconds: float = _TIMEOUT_S) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()
        self._late: Future[Any] | None = None  # the last call that was given up on

    def __call__(self, call: Callable[[], T]) -> T:
        """The call's value. Raises SilentDriverError: it did not come back in time, or an earlier one has not."""
        is_late = self._late is not None and not self._late.done()
        if is_late or not self._turn.acquire(timeout=self._seconds):
            raise self._silent()
        future: Future[T] = Future()
        # A process that ends does not wait for it.
        threading.Thread(target=self._run, args=(future, call), name="driver", daemon=True).start()
        futures.wait([future], self._seconds)
        if not future.done():
            self._late = future
            raise self._silent()
        return future.result()

    def _run(self, future: Future[T], call: Callable[[], T]) -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
            future.set_exception(error)
        finally:
            self._turn.release()

    def _silent(self) -> SilentDriverError:
        why = f"NVIDIA's driver has not answered in {self._seconds:g} s; see the node's kernel log"
        return SilentDriverError(Cause(Code.DRIVER_SILENT, why))


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits of GPU memory for cgroups, which the driver holds from r615 on. All raise DriverError."""

    nvml: Any
    within: Deadline = field(default_factory=Deadline)

    def set(self, gpu: GpuUuid, cgroup: Path, hard: int) -> None:
        """Limit a cgroup to so many bytes of a GPU; UNLIMITED takes the limit away."""
        self.within(lambda: self._set(gpu, cgroup, hard))

    def _set(self, gpu: GpuUuid, cgroup: Path, hard: int) -> bool:
        with self._handle(gpu) as handle:
            limits = self.nvml.c_nvmlSetMemoryLimits_v1_t(str(cgroup).encode(), 0, hard)
            self.nvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
        return True

    def get(self, gpu: GpuUuid, cgroup: Path) -> int | None:
        """The limit of a cgroup in bytes; None if it has none."""
        return self.within(lambda: self._get(gpu, cgroup))

    def _get(self, gpu: GpuUuid, cgroup: Path) -> int | None:
        with self._handle(gpu) as handle:
            limits = self.nvml.c_nvmlGetMemoryLimits_v1_t(str(cgroup).encode(), 0, 0, 0)
            try:
                self.nvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
            except self.nvml.NVMLError as error:
                # Without a limit on the group or above it, some drivers answer as if they knew no limits at all.
                if error.value in {_NOT_FOUND, _NOT_SUPPORTED}:
                    return None
                raise
        return None if limits.hardLimit == UNLIMITED else int(limits.hardLimit)

    @contextmanager
    def _handle(self, gpu: GpuUuid) -> Iterator[Any]:
        try:
            with opened(self.nvml):
                yield self.nvml.nvmlDeviceGetHandleByUUID(gpu)
        except self.nvml.NVMLError as error:
            meaning = _MEANING.get(error.value, "see the node's kernel log")
            code = _CODES.get(error.value, Code.DRIVER_ERROR)
            raise DriverError(Cause(code, f"the driver says {error}: {meaning}")) from error


@dataclass(frozen=True, slots=True)
class ComputeModes:
    nvml: Any
    within: Deadline = field(default_factory=Deadline)

    def exclusive(self, gpus: Sequence[Gpu]) -> Mapping[GpuUuid, Cause]:
        """Why programs cannot use a GPU side by side without MPS; a silent driver says nothing against it."""
        with suppress(DriverError, self.nvml.NVMLError):
            modes = self.within(lambda: [(gpu, self._mode(gpu)) for gpu in gpus if not gpu.mig])
            return {
                gpu.uuid: Cause(
                    Code.COMPUTE_MODE,
                    f"its compute mode is {_LIMITING_MODES[mode]}, so that without MPS it serves one program at a time"
                    f" or none; nvidia-smi -i {gpu.index} -c DEFAULT lets others in",
                )
                for gpu, mode in modes
                if mode in _LIMITING_MODES
            }
        return {}

    def _mode(self, gpu: Gpu) -> int:
        with opened(self.nvml):
            with suppress(self.nvml.NVMLError):
                return int(self.nvml.nvmlDeviceGetComputeMode(self.nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)))
            return 0


@dataclass(frozen=True, slots=True)
class Sensors:
    nvml: Any
    within: Deadline = field(default_factory=Deadline)

    def read(self, gpus: Sequence[Gpu]) -> Measured:
        """Of whole GPUs: the driver measures no MIG instance by itself. What it does not tell is missing."""
        with suppress(DriverError, self.nvml.NVMLError):
            return self.within(lambda: self._read([gpu.uuid for gpu in gpus if not gpu.mig]))
        return {}

    def _read(self, gpus: Sequence[GpuUuid]) -> Measured:
        with opened(self.nvml):
            return {gpu: dict(self._of(gpu)) for gpu in gpus}

    def _of(self, gpu: GpuUuid) -> Iterator[tuple[str, float]]:
        nvml = self.nvml
        questions: tuple[tuple[str, Callable[[Any], float]], ...] = (
            ("utilization_ratio", lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            ("temperature_celsius", lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            ("power_watts", lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        )
        for name, ask in questions:
            with suppress(nvml.NVMLError):
                yield name, ask(nvml.nvmlDeviceGetHandleByUUID(gpu))


@dataclass(slots=True)
class NvmlProcesses:
    nvml: Any
    within: Deadline = field(default_factory=Deadline)
    _problems: Mapping[GpuUuid, str] = field(init=False, default_factory=dict)  # as they were logged last

    def read(self, gpus: Collection[GpuUuid]) -> Lists:
        try:
            found = self.within(lambda: self._read(gpus))
        except (SilentDriverError, self.nvml.NVMLError) as error:
            found = dict.fromkeys(gpus, str(error))
        problems = {gpu: each for gpu, each in found.items() if isinstance(each, str)}
        if problems != self._problems:
            level = logging.WARNING if problems else logging.INFO
            logs.event(_LOG, "usage unknown" if problems else "usage known", level=level, problems=problems)
        self._problems = problems
        return {gpu: None if isinstance(each, str) else each for gpu, each in found.items()}

    def _read(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, Sequence[GpuProcess] | str]:
        with opened(self.nvml):
            return {gpu: self._of(gpu) for gpu in gpus}

    def _of(self, gpu: GpuUuid) -> Sequence[GpuProcess] | str:
        try:
            handle = self.nvml.nvmlDeviceGetHandleByUUID(gpu)
            lists = [found for kind in _KINDS if (found := self._list(handle, kind)) is not None]
        except self.nvml.NVMLError as error:
            return f"the driver says: {error}"
        return source.merged(lists) if lists else "the driver does not list its processes"

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


if __name__ == "__main__":
    sys.exit(problem())
