"""Peers of a server that stop in the middle of what they send, and what they are answered."""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable

MIB = 2**20
CHECK = b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n"


def post(length: int, sent: int) -> bytes:
    """A request whose body has a length, and so much of it."""
    return b"POST /ok HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length + b"x" * sent


HALF_OF_ITS_HEADERS = b"POST /ok HTTP/1.1\r\nHost"
LARGE = post(MIB // 2, 70_000)
ENDLESS = post(2 * MIB, 5000)
STOPPED = {
    "nothing": b"",
    "half of its headers": HALF_OF_ITS_HEADERS,
    "half of a small body": post(1000, 500),
    "the beginning of a large body": post(MIB // 2, 10),
    "the beginning of too long a body": post(2 * MIB, 4000),
    "too long a body of which nothing more comes": ENDLESS,
}


def wait_until(done: Callable[[], object]) -> None:
    while not done():
        time.sleep(0.001)


def answer(peer: socket.socket) -> bytes:
    """Its body."""
    head, _, body = received(peer, b"ok").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    return body


def received(peer: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = peer.recv(4096)
        assert piece, data
        data += piece
    return data


def is_closed(peer: socket.socket) -> bool:
    """Waits until the server has said something or closed."""
    with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
        return peer.recv(1) == b""
    return True
