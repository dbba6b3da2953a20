"""The end of a connection from the server's side: after an answer, or when a request takes too long."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final, Protocol

from gpushare.runtime.clock import Clock

WAIT_S: Final = 2.0
REQUEST_S: Final = 60.0  # far longer than kube-scheduler and API servers wait, also for what has to be computed
_MOST: Final = 65536  # bytes that are read after the answer


class Connection(Protocol):
    """As gunicorn has it."""

    sock: socket.socket
    """Another one after the TLS handshake has begun."""


class Deadlines:
    """Of requests. A peer that sends slowly, or has vanished in the middle of a request, must not hold a thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[Connection, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def bound(self, connection: Connection) -> Iterator[None]:
        """While a request is read and answered, from its handshake to its last byte."""
        with self._lock:
            self._until[connection] = self._clock.monotonic() + REQUEST_S
        try:
            yield
        finally:
            with self._lock:
                del self._until[connection]

    def enforce(self) -> None:
        """End what is too late: its thread reads the end. To be called often, by the thread that closes connections."""
        now = self._clock.monotonic()
        with self._lock:
            late = [connection.sock for connection, until in self._until.items() if now >= until]
        for sock in late:
            with contextlib.suppress(OSError), _beneath(sock) as plain:
                plain.shutdown(socket.SHUT_RDWR)


def hang_up(sock: socket.socket, *, clock: Clock, wait_s: float = WAIT_S) -> None:
    """Say that no more comes, and wait so many seconds for the peer to do the same. `close` then never waits.

    A connection that is closed while bytes are unread is reset, and the peer may lose the answer. gunicorn waits as
    well, but in its main loop: a few peers that stay connected would stop all others, and the loop's beat.
    """
    with contextlib.suppress(OSError), _beneath(sock) as plain:  # the peer may have left
        try:
            plain.shutdown(socket.SHUT_WR)
            _drain(plain, clock, wait_s)
        finally:
            plain.shutdown(socket.SHUT_RD)


def _drain(plain: socket.socket, clock: Clock, wait_s: float) -> None:
    until, left = clock.monotonic() + wait_s, _MOST
    while left > 0 and (left_s := until - clock.monotonic()) > 0:
        plain.settimeout(left_s)
        read = len(plain.recv(min(left, 4096)))
        if not read:
            return
        left -= read


def _beneath(sock: socket.socket) -> socket.socket:
    """The same connection without its TLS, of which nothing is to be read any more."""
    return socket.fromfd(sock.fileno(), sock.family, sock.type)
