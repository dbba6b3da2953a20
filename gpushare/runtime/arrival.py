"""Requests as they arrive: read without waiting, so that a peer that is slow to send holds memory, but no thread."""

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gpushare.runtime.intake import HEAD, SMALL

RECEIVED: Final = "gpushare.received"
"""In the WSGI environment: monotonic time at which the first bytes of a request were there to be read."""
BUSY: Final = "gpushare.busy"
"""In the WSGI environment: whether others have taken all room, so that only the beginning of this body is there."""
_MOST_HEADERS: Final = 32 * 1024
_PIECE: Final = 64 * 1024  # more than a TLS record: no poll of the socket would tell of the rest of one
_TURN: Final = 2048
"""Pieces after which others have their turn. The largest requests of ordinary peers take less."""
_TURN_DROPPING: Final = 128
"""The same of what is dropped: no one waits for it."""
_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*0*(\d{1,18})", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)


class Progress(Enum):
    """What a connection waits for."""

    MORE = "the peer has to send more"
    TURN = "others have their turn; more of it may be there"
    ROOM = "others have to give back room"
    WHOLE = "a request has to be answered"
    ENDED = "nothing: it is to be closed"


class Room:
    """Bytes that all connections of a server share. Safe for many threads."""

    def __init__(self, size: int) -> None:
        self.freed = False
        """Set when any was given back."""
        self._left = size
        self._lock = threading.Lock()

    def take(self, amount: int) -> bool:
        """Whether there is so much."""
        with self._lock:
            if taken := amount <= self._left:
                self._left -= amount
            return taken

    def give_back(self, amount: int) -> None:
        """What was taken."""
        with self._lock:
            self._left += amount
            self.freed = self.freed or amount > 0


class Received:
    """A body to be read, before its request is `answered`."""

    def __init__(self, data: bytearray, start: int, end: int) -> None:
        self._data, self._at, self._end = data, start, end

    def read(self, size: int, /) -> bytes:
        """So many bytes at most; none at the end."""
        begin, self._at = self._at, min(self._at + size, self._end)
        return bytes(memoryview(self._data)[begin : self._at])


@dataclass(kw_only=True)
class Arrival:
    """The requests of one connection, one after the other. For one thread at a time."""

    room: Room
    most: int
    """Bytes of a body. Of a longer one only the beginning is waited for; the rest is dropped after the answer."""
    began: float | None = field(init=False, default=None)
    """When the first bytes of this request came; None if there is none."""
    held: int = field(init=False, default=0)
    """Bytes of the room."""
    busy: bool = field(init=False, default=False)
    """Whether there was no room for this request."""
    _data: bytearray = field(init=False, default_factory=bytearray)
    _headers: int = field(init=False, default=0)
    """Their length, with the line that ends them."""
    _needed: int = field(init=False, default=0)
    """Bytes with which the request can be answered; 0 while its headers are not all there."""
    _left_out: int = field(init=False, default=0)
    """Bytes of its body beyond these."""
    _drop: int = field(init=False, default=0)
    """Bytes of the request before that still have to come."""
    _last: float = field(init=False, default=0.0)
    """When something came."""

    def advance(self, sock: socket.socket, now: float) -> Progress:
        """Read what there is of a non-blocking socket, until a request is whole or others should have their turn."""
        try:
            for _ in range(_TURN_DROPPING if self.is_dropping else _TURN):
                if (progress := self._progress()) is not Progress.MORE:
                    return progress
                data = sock.recv(_PIECE)
                if not data:
                    return Progress.ENDED
                self._add(data, now)
        except (BlockingIOError, ssl.SSLWantReadError):
            return Progress.MORE
        except OSError:
            return Progress.ENDED
        progress = self._progress()
        return Progress.TURN if progress is Progress.MORE else progress

    @property
    def is_dropping(self) -> bool:
        """Whether bytes of a request still come that was answered."""
        return self._drop > 0

    def pieces(self) -> Iterator[bytes]:
        """The request, as far as it is needed."""
        for start in range(0, self._needed, _PIECE):
            yield bytes(self._data[start : min(start + _PIECE, self._needed)])

    def taken(self) -> tuple[bytes, "Received"]:
        """Its headers, without the empty line that ends them, and what there is of its body."""
        head = bytes(memoryview(self._data)[: self._headers - len(_END)])
        return head, Received(self._data, self._headers, self._needed)

    def give_up_room(self) -> None:
        """Wait for the beginning only, by which the sender is answered."""
        self.busy = True
        self._limit_to(HEAD)
        self.close()

    def answered(self) -> None:
        """The next one may come, behind what was left out of this one."""
        del self._data[: self._needed]
        dropped = min(self._left_out, len(self._data))
        del self._data[:dropped]
        self._drop, self._left_out, self._needed, self.busy = self._left_out - dropped, 0, 0, False
        if not self._drop:
            self.began = self._last if self._data else None
        self.close()

    def close(self) -> None:
        """Give back the room."""
        self.room.give_back(self.held)
        self.held = 0

    def _add(self, data: bytes, now: float) -> None:
        self._last = now
        dropped = min(self._drop, len(data))
        self._drop -= dropped
        self._data += data[dropped:]
        if dropped and not self._drop:
            self.began = None  # of the request before
        if self.began is None and self._data:
            self.began = now

    def _progress(self) -> Progress:
        if not self._needed and not self._measure():
            return Progress.MORE if len(self._data) <= _MOST_HEADERS else Progress.ENDED
        if self._needed - self._headers > SMALL and not self.held:
            if not self.room.take(self._needed):
                return Progress.ROOM
            self.held = self._needed
        return Progress.WHOLE if len(self._data) >= self._needed else Progress.MORE

    def _measure(self) -> bool:
        """Whether all headers are there, which say how long the request is."""
        end = self._data.find(_END, 0, _MOST_HEADERS)
        if end < 0:
            return False
        headers = self._data[:end]
        found = None if _CHUNKED.search(headers) else _LENGTH.search(headers)
        self._headers = end + len(_END)
        self._needed = self._headers + (int(found[1]) if found else 0)
        if self._needed - self._headers > self.most:
            self._limit_to(HEAD)
        return True

    def _limit_to(self, body: int) -> None:
        """Wait for so many bytes of the body only."""
        self._left_out = self._needed - self._headers - body
        self._needed = self._headers + body
        extra = min(self._left_out, max(0, len(self._data) - self._needed))
        del self._data[self._needed : self._needed + extra]
        self._left_out -= extra
