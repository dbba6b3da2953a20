"""Time as an argument, so that tests own it."""

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What loops need of time."""

    def now(self) -> datetime:
        """Wall-clock time, aware, UTC. For stamps that people and other machines read, never for measuring."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        ...

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Sleep, but wake when `stop` is set. Whether it is set."""
        ...


class SystemClock:
    """The machine's time."""

    def now(self) -> datetime:
        """See Clock."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """See Clock."""
        return stop.wait(seconds)
