"""The end of a connection from the server's side, in the thread that answered."""

import contextlib
import socket
from typing import Final

from gpushare.runtime.clock import Clock

WAIT_S: Final = 2.0
_MOST: Final = 65536  # bytes that are read after the answer


def hang_up(sock: socket.socket, *, clock: Clock, wait_s: float = WAIT_S) -> None:
    """Say that no more comes, and wait so many seconds for the peer to do the same. `close` then never waits.

    A connection that is closed while bytes are unread is reset, and the peer may lose the answer. gunicorn waits as
    well, but in its main loop: a few peers that stay connected would stop all others, and the loop's beat.
    """
    # By a second socket beneath TLS, of which nothing is to be read any more. The peer may have left.
    with contextlib.suppress(OSError), socket.fromfd(sock.fileno(), sock.family, sock.type) as plain:
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
