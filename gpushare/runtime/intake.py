"""How much memory the JSON bodies of all requests of a server take at once, anyone who sends them.

Python needs up to 45 bytes for one byte of JSON. So a body is read piece by piece, weighed before anything parses it,
and refused if it is too large or too heavy, or if others fill the room that all share.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from gpushare.errors import GpuShareError

MIB: Final = 2**20
_PIECE: Final = 64 * 1024
HEAD: Final = 4096  # bytes of a refused body by which its sender is answered
SMALL: Final = 64 * 1024
"""Bytes of a body that never waits for room: ordinary requests do not depend on what others send. The number of
connections and of threads bounds them."""

_BYTE: Final = 5
_COSTS: Final = {b"{": 104, b"[": 104, b":": 140, b'"': 32, b",": 64}
"""Most bytes of memory for a byte of a string, and for a list or an object, a key with its place, half of a string's
head, and an entry with the parser's own note of it. Measured with CPython 3.11 and orjson; a test checks them."""


class Stream(Protocol):
    def read(self, size: int, /) -> bytes:
        """So many bytes at most; none at the end."""


class RefusedBodyError(GpuShareError):
    def __init__(self, message: str, head: bytes, *, busy: bool = False) -> None:
        super().__init__(message)
        self.head = head  # Its first bytes, 4096 at most
        self.busy = busy  # whether the same body may be taken later


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    body: int  # bytes as it is sent
    weight: int  # bytes of memory when it is parsed


class ByteBudget:
    """Bytes of memory that all large requests of a server share. Safe for many threads."""

    def __init__(self, size: int) -> None:
        self.left = size
        self._changed = threading.Condition()

    def take(self, amount: int, wait_s: float = 0.0) -> bool:
        """Whether there is, or comes to be in time, so much."""
        with self._changed:
            if taken := self._changed.wait_for(lambda: amount <= self.left, wait_s):
                self.left -= amount
            return taken

    def give_back(self, amount: int) -> None:
        with self._changed:
            self.left += amount
            self._changed.notify_all()


@dataclass(kw_only=True)
class Intake:
    """Where bodies are read. Safe for use by many threads."""

    budget: ByteBudget  # for all bodies that are not small
    small: int = SMALL
    wait_s: float = 0.5  # how long a body waits for memory, before it is read and before it is used

    @contextlib.contextmanager
    def body(self, stream: Stream, length: int, limit: Limit, *, busy: bool = False) -> Iterator[bytes]:
        """The body, and the memory that its parsed form needs for as long as it is used.

        Where the server is `busy`, its first 4096 bytes are all that there is. Raises RefusedBodyError.
        """
        if length > limit.body:
            raise RefusedBodyError(
                f"it has {length} bytes of JSON, with all defaults; at most {limit.body} are read",
                stream.read(min(length, HEAD)),
            )
        if length <= self.small:
            yield b"".join(_pieces(stream, length))
            return
        with contextlib.ExitStack() as held:
            if busy or not self._take(2 * length, held):  # pieces, and the whole of them
                raise self._busy(stream.read(min(length, HEAD)))
            body = b"".join(_pieces(stream, length))
            needed = weight(body)
            if needed > limit.weight:
                raise RefusedBodyError(
                    f"it has {entries(body)} fields and list entries in {length} bytes of JSON, with all defaults;"
                    " write fewer, such as ports, env, volumes, tolerations",
                    body[:HEAD],
                )
            if not self._take(needed, held):
                raise self._busy(body[:HEAD])
            yield body

    def _busy(self, head: bytes) -> RefusedBodyError:
        return RefusedBodyError("other large requests are being looked at; try again", head, busy=True)

    def _take(self, amount: int, held: contextlib.ExitStack) -> bool:
        """Whether there is so much; it is given back with `held`."""
        if taken := self.budget.take(amount, self.wait_s):
            held.callback(self.budget.give_back, amount)
        return taken


def weight(body: bytes) -> int:
    """An upper bound of the memory in bytes that the parsed body takes; strings that look like JSON count as JSON."""
    # Requests of the extender end with a long list of names: where a token is last is found faster than it is counted.
    return _BYTE * len(body) + sum(cost * body.count(token, 0, body.rfind(token) + 1) for token, cost in _COSTS.items())


def entries(body: bytes) -> int:
    """How many fields and list entries a body has, about."""
    return body.count(b",") + body.count(b"{") + body.count(b"[")


def _pieces(stream: Stream, length: int) -> Iterator[bytes]:
    while length > 0 and (piece := stream.read(min(length, _PIECE))):
        yield piece
        length -= len(piece)
