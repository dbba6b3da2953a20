"""The server on time that a test owns, and peers that stop in the middle of what they send."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpushare.runtime.http import HttpServer
from gpushare.runtime.intake import ByteBudget
from gpushare.runtime.pages import Request, Response, wsgi
from testing.clock import ManualClock

MIB = 2**20
AT_A_TIME = 2
SLOW = 3 * AT_A_TIME
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


def all_of(peer: socket.socket) -> bytes:
    """What comes until the server closes."""
    data = b""
    with contextlib.suppress(ssl.SSLEOFError):
        while piece := peer.recv(4096):
            data += piece
    return data


def is_closed(peer: socket.socket) -> bool:
    """Waits until the server has said something or closed."""
    with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
        return peer.recv(1) == b""
    return True


@dataclass(frozen=True)
class Seen:
    """What the application was asked."""

    path: str
    length: int
    received: float
    busy: bool = False


class Server:
    """The main loop in a thread."""

    def __init__(
        self,
        connections: int = 100,
        threads: int = AT_A_TIME,
        tls: Callable[[], ssl.SSLContext] | None = None,
        waiting: frozenset[str] = frozenset(),
    ) -> None:
        self.tls = tls
        self.clock, self.seen, self.gate = ManualClock(), list[Seen](), threading.Event()
        self.at_gate = threading.Event()
        listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._address, self._open = listener.getsockname(), contextlib.ExitStack()
        self.budget = ByteBudget(5 * MIB // 4)
        self.server = HttpServer(
            application=wsgi(self._handle),
            listener=listener,
            clock=self.clock,
            threads=threads,
            waiting=waiting,
            waiting_threads=len(waiting),
            most=MIB,
            budget=self.budget,
            keep_alive_s=75.0,
            connections=connections,
            tls=tls,
            tick_s=0.005,
        )
        self.stopping, self.beats = False, 0
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.server.serve(lambda: self.stopping, self._beat)
        self.server.finish(self._beat, grace_s=8)

    def _beat(self) -> None:
        self.beats += 1

    def _handle(self, request: Request) -> Response:
        size = 0
        while piece := request.body.read(65536):
            size += len(piece)
        if request.path == "/gate":
            self.at_gate.set()
            self.gate.wait()
        if request.path == "/bug":
            raise RuntimeError
        self.seen.append(Seen(request.path, size, request.received, request.busy))
        if request.path == "/same":
            return Response(304, b"")
        return Response(200, b"x" * (64 * MIB) if request.path == "/large" else b"ok")

    def stop(self) -> None:
        self.gate.set()
        self._open.close()
        self.stopping = True
        while self.thread.is_alive():
            self.clock.at += 0.5
            self.thread.join(0.01)

    def pass_time(self, seconds: float) -> None:
        """Returns when the main loop has looked at what is late now."""
        self.clock.at += seconds
        wait_until(lambda: self.server._looked >= self.clock.at or not self.thread.is_alive())

    def pass_time_until(self, done: Callable[[], object]) -> None:
        while not done():
            self.pass_time(0.5)

    def connect(self) -> socket.socket:
        return self._open.enter_context(socket.create_connection(self._address))

    def secure(self) -> socket.socket:
        """A connection as the server's ordinary peers have it."""
        connection = self.connect()
        if self.tls is None:
            return connection
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return self._open.enter_context(context.wrap_socket(connection))

    def peers(self, sent: bytes, count: int = SLOW) -> list[socket.socket]:
        peers = [self.secure() for _ in range(count)]
        for peer in peers:
            peer.sendall(sent)
        return peers

    def channels(self) -> list[Any]:
        return list(self.server._server.active_channels.values())

    def count(self) -> int:
        return len(self.channels())

    def idle(self) -> list[Any]:
        return [one for one in self.channels() if one.answered and not (one.request or one.requests)]

    def wait_until_begun(self, *, at: float, count: int = 1) -> None:
        wait_until(lambda: [1 for one in self.channels() if one.request and one.request.began == at] == [1] * count)

    def wait_until_held(self, count: int) -> None:
        """So many requests hold memory."""
        wait_until(lambda: [1 for one in self.channels() if one.request and one.request.held] == [1] * count)

    def waits_for_memory(self) -> bool:
        return any(one.request and one.request.awaits for one in self.channels())

    def wait_until_idle(self, count: int = 1) -> None:
        wait_until(lambda: len(self.idle()) == count)


@contextlib.contextmanager
def running(made: Server) -> Iterator[Server]:
    made.thread.start()
    try:
        yield made
    finally:
        made.stop()
