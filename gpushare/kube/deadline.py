"""Answers that have to be read whole within one deadline, however slowly they drip.

A socket's timeout bounds each wait for bytes; a peer that sends one byte a second never runs into it.
"""

import http.client
import io
import socket
from typing import Any

from gpushare.runtime.clock import Clock


class Answer(http.client.HTTPResponse):
    """A response, headers included, whose deadline is the socket's timeout counted from the start of reading."""

    def __init__(self, sock: socket.socket, *args: Any, clock: Clock, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Timed(sock, clock))


class _Timed(io.RawIOBase):
    def __init__(self, sock: socket.socket, clock: Clock) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)
        self._clock = clock
        self._timeout = sock.gettimeout()
        self._until = clock.monotonic() + (self._timeout if self._timeout is not None else float("inf"))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._timeout is None:
            return self._file.readinto(buffer)
        left = self._until - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError("the answer took longer than its deadline")
        self._sock.settimeout(left)
        try:
            return self._file.readinto(buffer)
        finally:
            self._sock.settimeout(self._timeout)  # what the connection's next request starts with

    def close(self) -> None:
        self._file.close()
        super().close()
