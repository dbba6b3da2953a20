"""Capped exponential back-off with jitter."""

import random
from dataclasses import dataclass, field


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
        """After a success."""
        self._next_s = 0.0
