"""Time as an argument, so that tests own it, and delays between tries."""

import random
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

# Goes on while a laptop or a virtual machine is suspended; Linux stops CLOCK_MONOTONIC then. Windows has neither.
_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall-clock time, aware, UTC. For stamps that people and other machines read, never for measuring."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment, time in suspend included; never goes back. The same in all processes."""

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Sleep, but wake when `stop` is set. Whether it is set."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(seconds)


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Delays for retries of one thing. Not shared between threads."""

    first_s: float = 0.2
    cap_s: float = 10.0
    rng: random.Random = field(default_factory=random.Random)
    _next_s: float = field(init=False, default=0.0)

    def next_s(self) -> float:
        """Seconds to wait before the next try: doubling, with up to 50 % taken off so that clients spread."""
        self._next_s = min(self.cap_s, max(self.first_s, self._next_s * 2))
        return self._next_s * (1 - self.rng.random() / 2)

    def reset(self) -> None:
        self._next_s = 0.0
