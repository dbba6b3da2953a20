"""Time that tests own."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


@dataclass
class ManualClock:
    """See Clock. Time passes only where a test says so; waiting takes none, but moves it on."""

    at: float = 1000.0
    on_wait: Callable[[float], object] = lambda _at: None
    """What happens during each wait; takes the time at its end."""
    waits: list[float] = field(default_factory=list)
    began: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    """Wall-clock time at 0."""

    def now(self) -> datetime:
        return self.began + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        self.at += seconds
        self.on_wait(self.at)
        return stop.is_set()


def ending(stop: threading.Event, waits: int = 1) -> ManualClock:
    """Sets `stop` at the wait of that number."""
    clock = ManualClock()
    clock.on_wait = lambda _at: stop.set() if len(clock.waits) >= waits else None
    return clock
