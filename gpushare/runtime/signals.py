"""SIGTERM and SIGINT as a flag.

A handler runs in the middle of whatever the main thread does, perhaps while that holds the lock of the very event or
log that the handler would use; so it only sets an attribute, and the main thread looks.
"""

import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final

_WATCHED: Final = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Whether this process was told to end."""

    number: int = 0
    """Of the last signal; 0 if there was none."""

    def install(self) -> Mapping[signal.Signals, Any]:
        """Take the signals over; the handlers before. From the main thread only."""
        return {number: signal.signal(number, self._on_signal) for number in _WATCHED}

    @staticmethod
    def restore(handlers: Mapping[signal.Signals, Any]) -> None:
        """Give the signals back."""
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
