"""How often a pod's author is told the same or something else: at once, then ever less often. Pure."""

from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 60.0
CAP_S: Final = 960.0
REPEAT_S: Final = 2700.0  # events live for an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class EventThrottle:
    """What was said about a pod so far."""

    at: float = float("-inf")
    """Monotonic seconds."""
    wait_s: float = FIRST_S
    """How long to be silent after it."""
    text: str = ""

    def too_early(self, now: float) -> bool:
        """Whether nothing may be said yet, whatever it is."""
        return now - self.at < self.wait_s

    def after(self, text: str, now: float) -> "EventThrottle | None":
        """What was said after this is said, or None if it is not the time."""
        if self.too_early(now) or (text == self.text and now - self.at < REPEAT_S):
            return None
        wait = min(self.wait_s * 2, CAP_S) if self.text else FIRST_S
        return EventThrottle(at=now, wait_s=wait, text=text)


NO_EVENT: Final = EventThrottle()
