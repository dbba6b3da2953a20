"""Until when the worker may write, in memory that it shares with its supervisor.

The supervisor renews the lease and moves the end of the lead on; the worker compares that end with the clock right
before every write, without waiting for anybody. Both read the same clock of the machine, which goes on in suspend.
Every slot is eight aligned bytes with one writer, so that a reader sees the old value or the new one.
"""

import mmap
import struct
from typing import Final

from gpushare.runtime.clock import Clock

_UNTIL: Final = 0
_WORKER: Final = 1
_SUPERVISOR: Final = 2
_NEVER: Final = float("-inf")


class Fence:
    """Made before any worker is forked. The worker calls `leading` and `beat`, the supervisor all others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots = memoryview(mmap.mmap(-1, 3 * struct.calcsize("d"))).cast("d")
        self.close()

    def close(self) -> None:
        """No one may write. A worker that begins now has not been silent yet."""
        self._slots[_UNTIL] = _NEVER
        self.beat()
        self.supervise()

    def lead_until(self, moment: float) -> None:
        """The worker may write until then; seconds on the clock."""
        self._slots[_UNTIL] = moment

    def leading(self) -> bool:
        """Whether the worker may write, at this very moment."""
        return self._clock.monotonic() < self._slots[_UNTIL]

    def beat(self) -> None:
        """The worker's main loop goes round."""
        self._slots[_WORKER] = self._clock.monotonic()

    def worker_silent_s(self) -> float:
        """Seconds since the worker's last beat."""
        return self._clock.monotonic() - self._slots[_WORKER]

    def supervise(self) -> None:
        """The supervisor's loop goes round."""
        self._slots[_SUPERVISOR] = self._clock.monotonic()

    def supervisor_silent_s(self) -> float:
        """Seconds since the supervisor's loop went round."""
        return self._clock.monotonic() - self._slots[_SUPERVISOR]
