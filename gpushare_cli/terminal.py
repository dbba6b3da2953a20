"""Where commands write: a terminal, which must show what objects hold, and not obey it."""

import re
from typing import Final, Protocol

_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters but tab and newline, and those that change the direction of text."""


class Writer(Protocol):
    """What a command writes to."""

    def write(self, text: str, /) -> int:
        """Write all of it."""
        ...

    def flush(self) -> None:
        """Let it be seen."""
        ...


class Printable:
    r"""Writes control characters as `\u001b`, which JSON reads as the same.

    Kubernetes checks no schedulerName, and no value of an annotation: a tenant could write to an administrator's
    terminal otherwise.
    """

    def __init__(self, stream: Writer) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        """Write all of it."""
        return self._stream.write(printable(text))

    def flush(self) -> None:
        """Let it be seen."""
        self._stream.flush()


def printable(text: str) -> str:
    """The same text without control characters but tab and newline."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """The same text with blanks for the ends of its lines and for tabs, so that it looks like no other line or cell."""
    return " ".join(text.split())
