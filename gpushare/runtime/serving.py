"""How patient servers are with their peers, and what they keep of them, whatever reads the requests."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final, Protocol

from gpushare.runtime.clock import Clock

CONNECTIONS: Final = 800
"""Others wait in the kernel. With four files for each thread they stay below the usual limit of 1024 open files."""
RECEIVE_S: Final = 10.0  # API servers and kube-scheduler send in milliseconds
REQUEST_S: Final = 60.0  # far longer than they wait, also for what has to be computed
SEND_S: Final = 5.0
LEAVE_S: Final = 2.0
ROOM_S: Final = 2.0
"""How long after its beginning a large request may wait for room. Then its sender is told that it may come again."""
HURRY_S: Final = 1.0
"""What remains of these times for a peer whose place others need."""
LOOK_S: Final = 0.2
MOST_AFTER_END: Final = 65536  # bytes that are read after the answer
_KERNEL: Final = 64 * 1024
"""Bytes that the kernel holds of what one connection has received, and of what it has to send. It takes twice as much
for itself, counts it as the container's memory, and without a bound lets fast peers have megabytes."""
_SO_BUF_LOCK: Final = 72  # include/uapi/asm-generic/socket.h, since Linux 5.14
_SOCK_SNDBUF_LOCK: Final = 1


class Connection(Protocol):
    """Of a peer."""

    @property
    def sock(self) -> socket.socket:
        """Its socket."""
        ...


def narrow(sock: socket.socket) -> None:
    """Let the kernel hold little for a connection."""
    with contextlib.suppress(OSError):  # it would end the main loop
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL)


def widen(sock: socket.socket) -> None:
    """Let its buffer grow with its speed. It holds room, which is a bound for all that do."""
    with contextlib.suppress(OSError):  # an old kernel
        sock.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, _SOCK_SNDBUF_LOCK)


class Deadlines:
    """Of the requests that are being answered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[Connection, tuple[float, float]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def bound(self, connection: Connection) -> Iterator[None]:
        """While a request is answered."""
        self._set(connection, REQUEST_S, REQUEST_S)
        try:
            yield
        finally:
            with self._lock:
                del self._until[connection]

    def answering(self, connection: Connection) -> None:
        """From now on only the peer can make it late."""
        self._set(connection, SEND_S, HURRY_S)

    def enforce(self, *, hurried: bool) -> None:
        """End what is too late: its thread cannot send. To be called often, by the thread that closes connections.

        Args:
            hurried: other requests wait for a thread.
        """
        now = self._clock.monotonic()
        with self._lock:
            late = [connection.sock for connection, until in self._until.items() if now >= until[hurried]]
        for sock in late:
            # Beneath its TLS, which another thread is writing.
            with contextlib.suppress(OSError), socket.fromfd(sock.fileno(), sock.family, sock.type) as plain:
                plain.shutdown(socket.SHUT_RDWR)

    def _set(self, connection: Connection, limit_s: float, hurried_s: float) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._until[connection] = now + limit_s, now + hurried_s
