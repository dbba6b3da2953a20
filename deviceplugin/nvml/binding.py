"""The door to `pynvml`, and how it may be called: imported late, for one call at a time, within a deadline."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from gpushare.errors import GpuShareError

_TIMEOUT_S: Final = 5.0
_NEW_PROCESS_S: Final = 30.0  # a driver that is asked for the first time may start the GPUs
T = TypeVar("T")


class DriverError(GpuShareError):
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
    command = [sys.executable, "-m", "deviceplugin.nvml.binding"]
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
        return SilentDriverError(f"NVIDIA's driver has not answered in {self._seconds:g} s; see the node's kernel log")


if __name__ == "__main__":
    sys.exit(problem())
