"""The server tells the extender when a request has arrived, however long it waited for a thread."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from gunicorn.workers.gthread import TConn, ThreadWorker

from controller.extender.app import RECEIVED
from controller.server import ArrivalWorker
from controller.settings import Settings
from gpushare.runtime.hang_up import REQUEST_S, Deadlines
from gpushare.runtime.worker import CONNECTIONS
from tests.unit.controller.world import ManualClock


class Config:
    keepalive = 75


class Hurried(ManualClock):
    """Every look at it costs more time than a peer is given."""

    def monotonic(self) -> float:
        self.at += 10
        return super().monotonic()


class Base:
    """What of gunicorn is below: a queue, and a thread that answers one request when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.seen: list[Any] = []
        self.worker = object.__new__(ArrivalWorker)
        self.worker.clock = self.clock
        self.worker.deadlines = Deadlines(self.clock)
        self.worker.wsgi = self.worker.stamped(self._application)
        monkeypatch.setattr(ThreadWorker, "enqueue_req", lambda _worker, _conn: None)
        monkeypatch.setattr(ThreadWorker, "handle", lambda worker, _conn: worker.wsgi({}, None))

    def _application(self, environ: dict[str, Any], _start: Callable[..., Any]) -> list[bytes]:
        self.seen.append(environ.get(RECEIVED))
        return []


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_request_that_waits_for_a_thread_has_arrived_before(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, (ours, theirs) = Base(monkeypatch), pair
    connection = TConn(Config(), ours, "", "")
    theirs.sendall(b"POST")
    base.worker.enqueue_req(connection)
    base.clock.at += 3
    base.worker.handle(connection)
    assert base.seen == [1000]
    connection.initialized = True  # kept alive, its next request waits again
    base.worker.enqueue_req(connection)
    base.clock.at += 3
    base.worker.handle(connection)
    assert base.seen == [1000, 1003]


def test_a_connection_without_a_request_tells_nothing(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kube-scheduler opens connections ahead of its requests."""
    base, (ours, _) = Base(monkeypatch), pair
    connection = TConn(Config(), ours, "", "")
    base.worker.enqueue_req(connection)
    base.clock.at += 3
    base.worker.handle(connection)
    assert base.seen == [None]


def test_the_main_loop_waits_for_no_peer_that_stays_connected(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gunicorn closes in its main loop, which gives each such peer two seconds: few of them cost the lead."""
    base, (ours, theirs) = Base(monkeypatch), pair
    monkeypatch.setattr(base.worker, "clock", Hurried())
    monkeypatch.setattr(ThreadWorker, "handle", lambda _worker, _conn: False)
    connection = TConn(Config(), ours, "", "")
    base.worker.enqueue_req(connection)
    assert base.worker.handle(connection) is False
    ours.setblocking(False)
    assert ours.recv(1) == b""  # what `close` waits for
    assert theirs.recv(1) == b""  # told that no more comes


def test_a_connection_that_goes_on_is_left_open(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, (ours, theirs) = Base(monkeypatch), pair
    monkeypatch.setattr(ThreadWorker, "handle", lambda _worker, _conn: True)
    connection = TConn(Config(), ours, "", "")
    base.worker.enqueue_req(connection)
    assert base.worker.handle(connection) is True
    ours.sendall(b"x")
    assert theirs.recv(1) == b"x"


def test_a_request_that_is_never_sent_whole_holds_no_thread(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a peer that is slow on purpose, or that vanished without a word."""
    base, (ours, theirs) = Base(monkeypatch), pair
    base.worker.beat = lambda: None

    def read_on(_worker: ThreadWorker, conn: TConn) -> bool:
        conn.sock.setblocking(False)
        for passed_s in (0, REQUEST_S - 1):
            base.clock.at += passed_s
            base.worker.notify()
            with pytest.raises(BlockingIOError):
                conn.sock.recv(1)
        base.clock.at += 1
        base.worker.notify()
        return bool(conn.sock.recv(1))

    monkeypatch.setattr(ThreadWorker, "handle", read_on)
    connection = TConn(Config(), ours, "", "")
    base.worker.enqueue_req(connection)
    assert base.worker.handle(connection) is False
    assert theirs.recv(1) == b""


def test_a_connection_between_two_requests_has_no_deadline(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, (ours, theirs) = Base(monkeypatch), pair
    base.worker.beat = lambda: None
    monkeypatch.setattr(ThreadWorker, "handle", lambda _worker, _conn: True)
    connection = TConn(Config(), ours, "", "")
    base.worker.enqueue_req(connection)
    base.worker.handle(connection)
    base.clock.at += 10 * REQUEST_S
    base.worker.notify()
    theirs.sendall(b"x")
    assert ours.recv(1) == b"x"


def test_connections_do_not_use_up_the_usual_limit_of_open_files() -> None:
    """A thread has a selector, a second socket while it hangs up, and two connections to the API server."""
    assert CONNECTIONS + 4 * Settings().threads < 1024 - 64


def test_a_connection_that_was_closed_already_is_counted_once() -> None:
    """As after a TLS handshake that the peer broke off: else each lets one more connection in than there may be."""
    worker = object.__new__(ArrivalWorker)
    worker.nr_conns, answered = 5, Future[bool]()
    answered.set_result(False)
    ours, theirs = socket.socketpair()
    connection = TConn(Config(), ours, "", "")
    ours.close()
    worker.finish_request(connection, answered)
    assert worker.nr_conns == 4
    theirs.close()
