"""Our two servers on time that a test owns, and peers that stop in the middle of what they send."""

import contextlib
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gunicorn.config import Config

from gpushare.runtime.arrival import BUSY, RECEIVED, Progress, Room
from gpushare.runtime.serving import Deadlines
from gpushare.runtime.worker import Logger, Worker
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
    busy: bool
    chunked: bool = False


class Server:
    """A server's main loop in a thread."""

    room: Room
    deadlines: Deadlines
    run: Callable[[], None]
    end: Callable[[], None]
    """Ask it to stop."""
    stopped: Callable[[], None]
    """After the main loop."""
    has_looked: Callable[[], bool]
    """Whether the main loop has looked at what is late now."""
    count: Callable[[], int]
    """Of the open connections."""
    waiting: Callable[[], Sequence[Any]]
    """The connections of which something is awaited."""
    idle: Callable[[], Sequence[Any]]
    """The connections between two requests."""
    waits_for_room: Callable[[], bool]
    waits_for_a_turn: Callable[[], object]

    def __init__(self) -> None:
        self.clock, self.seen, self.gate = ManualClock(), list[Seen](), threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._address = self.listener.getsockname()
        self._open = contextlib.ExitStack()
        self.thread = threading.Thread(target=self.run)

    def is_wide(self, connection: Any) -> bool:
        """Whether the kernel may hold more for it."""
        return bool(connection.is_wide)

    def answer_to(self, path: str, seen: Seen) -> bytes:
        if path == "/gate":
            self.gate.wait()
        self.seen.append(seen)
        return b"x" * (64 * MIB) if path == "/large" else b"ok"

    def stop(self) -> None:
        self.gate.set()
        self._open.close()
        self.end()
        while self.thread.is_alive():
            self.pass_time(0.5)
            self.thread.join(0.01)
        self.stopped()

    def pass_time(self, seconds: float) -> None:
        """Returns when the main loop has looked at what is late now."""
        self.clock.at += seconds
        wait_until(lambda: self.has_looked() or not self.thread.is_alive())

    def pass_time_until(self, done: Callable[[], object]) -> None:
        while not done():
            self.pass_time(0.5)

    def connect(self) -> socket.socket:
        return self._open.enter_context(socket.create_connection(self._address))

    def secure(self) -> socket.socket:
        """A connection as the server's ordinary peers have it."""
        return self.connect()

    def peers(self, sent: bytes, count: int = SLOW) -> list[socket.socket]:
        peers = [self.secure() for _ in range(count)]
        for peer in peers:
            peer.sendall(sent)
        return peers

    def wrapped(self, connection: socket.socket) -> socket.socket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return self._open.enter_context(context.wrap_socket(connection))

    def wait_until_begun(self, *, at: float) -> None:
        wait_until(lambda: any(each.arrival.began == at for each in self.waiting()))

    def wait_until_read(self, sent: bytes, count: int) -> None:
        """What so many peers sent that stopped then. Before this, time that passes may find them busy."""
        wait_until(lambda: sum(len(each.arrival._data) for each in self.waiting()) == count * len(sent))

    def wait_until_idle(self, count: int = 1) -> None:
        wait_until(lambda: len(self.idle()) == count)


class Gunicorn(Server):
    """Our worker for gunicorn, as the webhook has it."""

    def __init__(self, directory: Path | None = None, connections: int = 100, turns: int = AT_A_TIME) -> None:
        super().__init__()
        settings = {"clock": self.clock, "most": MIB, "room": 5 * MIB // 4, "is_parent_alive": lambda _: True}
        made: type[Worker] = type("Small", (Worker,), settings)
        config = Config()
        config.set("threads", turns)
        config.set("worker_connections", connections)
        config.set("keepalive", 75)
        if directory is not None:
            config.set("certfile", str(directory / "tls.crt"))
            config.set("keyfile", str(directory / "tls.key"))
        self.worker = made(0, os.getppid(), [self.listener], None, 30, config, Logger(config))
        self.worker.tpool = self.worker.get_thread_pool()
        self.worker.poller = selectors.DefaultSelector()
        self.worker.method_queue.init()
        self.worker.wsgi = self.worker.timed(self._application)
        self.room, self.deadlines = self.worker._room, self.worker._deadlines

    def run(self) -> None:
        self.worker.run()

    def end(self) -> None:
        self.worker.handle_exit(None, None)

    def stopped(self) -> None:
        self.worker.tpool.shutdown()
        self.worker.tmp.close()

    def has_looked(self) -> bool:
        self.worker.method_queue.defer(lambda: None)
        return self.worker._looked >= self.clock.at

    def _application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        size, path = len(environ["wsgi.input"].read()), environ["PATH_INFO"]
        answer = self.answer_to(path, Seen(path, size, environ[RECEIVED], environ[BUSY]))
        start_response("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]

    def secure(self) -> socket.socket:
        return self.wrapped(self.connect()) if self.worker.cfg.is_ssl else self.connect()

    def count(self) -> int:
        return int(self.worker.nr_conns)

    def waiting(self) -> Sequence[Any]:
        return list(self.worker._waiting)

    def idle(self) -> Sequence[Any]:
        return list(self.worker.keepalived_conns)

    def waits_for_room(self) -> bool:
        return Progress.ROOM in self.worker._waiting.values()

    def waits_for_a_turn(self) -> object:
        return self.worker._queued
