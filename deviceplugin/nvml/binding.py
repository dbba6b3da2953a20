"""The door to `pynvml`."""

import subprocess
import sys
from typing import Any, Final

_NEW_PROCESS_S: Final = 30.0  # a driver that is asked for the first time may start the GPUs


def library() -> Any:
    """The binding. Imported late: a plugin with simulated GPUs needs none."""
    import pynvml

    return pynvml


def problem() -> str | None:
    """Why this process cannot read the driver; None if it can."""
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
    command = [sys.executable, "-m", "deviceplugin.nvml"]
    try:
        return subprocess.run(command, timeout=_NEW_PROCESS_S, check=False, capture_output=True).returncode == 0  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
