"""Time as an argument, so that tests own it."""

import threading
import time
from datetime import UTC, datetime
from typing import Final, Protocol

# Goes on while a laptop or a virtual machine is suspended; Linux stops CLOCK_MONOTONIC then.
_BOOTTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What loops need of time."""

    def now(self) -> datetime:
        """Wall-clock time, aware, UTC. For stamps that people and other machines read, never for measuring."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment, time in suspend included; never goes back. The same in all processes."""
        ...

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Sleep, but wake when `stop` is set. Whether it is set."""
        ...


class SystemClock:
    """The machine's time."""

    def now(self) -> datetime:
        """Wall-clock time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds of a clock that goes on in suspend."""
        return time.clock_gettime(_BOOTTIME)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Sleep until `stop` is set, or for so long."""
        return stop.wait(seconds)
