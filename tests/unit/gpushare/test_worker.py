"""Slow peers, more of them than there are threads, beside those that are served."""

import contextlib
import os
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.workers.gthread import TConn

import controller.settings
import webhook.settings
from certs import authority
from gpushare.runtime import serving
from gpushare.runtime.arrival import BUSY, RECEIVED, Progress
from gpushare.runtime.serving import Deadlines
from gpushare.runtime.worker import Logger, Worker
from testing.controller.world import ManualClock
from tests.unit.gpushare.peers import CHECK, ENDLESS, LARGE, MIB, STOPPED, answer, is_closed, post, received, wait_until

THREADS = 2
SLOW = 3 * THREADS
HELLO = b"\x16\x03\x01"  # the beginning of a handshake


class Server:
    """The worker's main loop in a thread, on time that the test owns."""

    def __init__(self, directory: Path | None, connections: int) -> None:
        self.clock, self.seen, self.gate = ManualClock(), list[dict[str, Any]](), threading.Event()
        settings = {"clock": self.clock, "most": MIB, "room": 5 * MIB // 4, "is_parent_alive": lambda _: True}
        made: type[Worker] = type("Small", (Worker,), settings)
        config = Config()
        config.set("threads", THREADS)
        config.set("worker_connections", connections)
        config.set("keepalive", 75)
        if directory is not None:
            config.set("certfile", str(directory / "tls.crt"))
            config.set("keyfile", str(directory / "tls.key"))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.worker = made(0, os.getppid(), [self._listener], None, 30, config, Logger(config))
        self.worker.tpool = self.worker.get_thread_pool()
        self.worker.poller = selectors.DefaultSelector()
        self.worker.method_queue.init()
        self.worker.wsgi = self.worker.timed(self._application)
        self._thread = threading.Thread(target=self.worker.run)
        self._open = contextlib.ExitStack()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.gate.set()
        self._open.close()
        self.worker.handle_exit(None, None)
        while self._thread.is_alive():
            self.pass_time(0.5)
        self.worker.tpool.shutdown()
        self.worker.tmp.close()

    def pass_time(self, seconds: float) -> None:
        """Returns when the main loop has looked at what is late now."""
        self.clock.at += seconds
        wait_until(lambda: self._has_looked() or not self._thread.is_alive())

    def _has_looked(self) -> bool:
        self.worker.method_queue.defer(lambda: None)
        return self.worker._looked >= self.clock.at

    def _application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = environ["wsgi.input"].read()
        if environ["PATH_INFO"] == "/gate":
            self.gate.wait()
        seen = {"path": environ["PATH_INFO"], "length": len(body), "received": environ[RECEIVED], "busy": environ[BUSY]}
        self.seen.append(seen)
        answer = b"x" * (64 * MIB) if environ["PATH_INFO"] == "/large" else b"ok"
        start_response("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]

    def connect(self) -> socket.socket:
        return self._open.enter_context(socket.create_connection(self._listener.getsockname()))

    def secure(self) -> socket.socket:
        """A connection as the server's ordinary peers have it."""
        if not self.worker.cfg.is_ssl:
            return self.connect()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return self._open.enter_context(context.wrap_socket(self.connect()))

    def peers(self, sent: bytes, count: int = SLOW) -> list[socket.socket]:
        peers = [self.secure() for _ in range(count)]
        for peer in peers:
            peer.sendall(sent)
        return peers

    def wait_until_begun(self, *, at: float) -> None:
        wait_until(lambda: any(conn.arrival.began == at for conn in list(self.worker._waiting)))

    def wait_until_read(self, sent: bytes, count: int) -> None:
        """What so many peers sent that stopped then. Before this, time that passes may find them busy."""
        wait_until(lambda: sum(len(conn.arrival._data) for conn in list(self.worker._waiting)) == count * len(sent))

    def wait_until_idle(self) -> None:
        """The only connection: its peer may read an answer before the worker is done with it."""
        wait_until(lambda: self.worker.keepalived_conns or self.worker._waiting)

    def wait_until_kept(self, count: int) -> None:
        wait_until(lambda: len(self.worker.keepalived_conns) == count)

    def pass_time_until(self, done: Callable[[], object]) -> None:
        while not done():
            self.pass_time(0.5)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, now = tmp_path_factory.mktemp("certs"), datetime.now(UTC)
    ca = authority.make_ca(now=now, life=timedelta(days=2))
    leaf = authority.make_leaf(ca, names=frozenset({"localhost"}), now=now, life=timedelta(days=1))
    (directory / "tls.crt").write_bytes(leaf.certificate)
    (directory / "tls.key").write_bytes(leaf.key)
    return directory


@contextlib.contextmanager
def running(directory: Path | None, connections: int = 100) -> Iterator[Server]:
    server = Server(directory, connections)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["plain", "tls"])
def server(request: pytest.FixtureRequest, certificate: Path) -> Iterator[Server]:
    with running(certificate if request.param == "tls" else None) as made:
        yield made


@pytest.mark.parametrize("sent", STOPPED.values(), ids=STOPPED.keys())
def test_peers_that_stop_in_the_middle_hold_no_thread(server: Server, sent: bytes) -> None:
    server.peers(sent)
    peer = server.secure()
    lengths = [0, 1000, MIB // 2]
    if sent == STOPPED["the beginning of a large body"]:
        lengths.pop()  # it would wait for room, see below
    for length in lengths:
        peer.sendall(post(length, length))
        assert answer(peer) == b"ok"
        assert length in [seen["length"] for seen in server.seen]


def test_peers_that_stop_in_the_handshake_hold_no_thread(certificate: Path) -> None:
    with running(certificate) as server:
        late = [server.connect() for _ in range(SLOW)]
        for peer in late:
            peer.sendall(HELLO)
        ready = server.secure()
        ready.sendall(CHECK)
        assert answer(ready) == b"ok"
        server.pass_time_until(lambda: server.worker.nr_conns == 1)
        assert server.clock.at >= 1000.0 + serving.RECEIVE_S
        assert all(map(is_closed, late))


@pytest.mark.parametrize("sent", list(STOPPED.values())[1:], ids=list(STOPPED.keys())[1:])
def test_a_request_that_is_not_sent_in_time_ends_its_connection(server: Server, sent: bytes) -> None:
    [late] = server.peers(sent, 1)
    server.wait_until_begun(at=1000.0)
    if sent == ENDLESS:
        assert answer(late) == b"ok"  # it has the beginning
    late.sendall(b"x" * 10)  # also if it sends a little all the time
    server.pass_time_until(lambda: server.worker.nr_conns == 0)
    assert server.clock.at >= 1000.0 + serving.RECEIVE_S
    assert is_closed(late)


def test_a_connection_between_two_requests_lives_on(server: Server) -> None:
    fresh, kept = server.secure(), server.secure()
    for _ in range(2):
        kept.sendall(CHECK)
        assert answer(kept) == b"ok"
        server.wait_until_kept(1)
        server.clock.at += 3 * serving.RECEIVE_S
    fresh.sendall(CHECK)
    assert answer(fresh) == b"ok"


def test_slow_senders_of_large_bodies_give_way_to_others(server: Server) -> None:
    """Each holds its part of the room, and it is full."""
    slow = server.peers(LARGE, 2)
    server.wait_until_read(LARGE, 2)
    peer = server.secure()
    sender = threading.Thread(target=peer.sendall, args=(post(MIB // 2, MIB // 2),))
    sender.start()
    wait_until(lambda: Progress.ROOM in server.worker._waiting.values())
    server.pass_time(serving.HURRY_S - 0.5)
    assert server.seen == []
    server.pass_time(0.5)
    assert answer(peer) == b"ok"
    sender.join()
    assert [answer(each) for each in slow] == [b"ok", b"ok"]
    assert sorted((seen["busy"], seen["length"]) for seen in server.seen) == [
        (False, MIB // 2),
        (True, 4096),
        (True, 4096),
    ]


def test_a_large_request_for_which_there_is_no_room_is_told_so(server: Server) -> None:
    """A connection that ends without an answer could let a pod pass that the webhook was not asked about."""
    assert server.worker._room.take(MIB)
    [peer] = server.peers(post(MIB // 2, 5000), 1)
    wait_until(lambda: Progress.ROOM in server.worker._waiting.values())
    server.pass_time(serving.ROOM_S - 0.5)
    assert server.seen == []
    server.pass_time(0.5)
    assert answer(peer) == b"ok"
    assert (server.seen[0]["busy"], server.seen[0]["length"]) == (True, 4096)


def test_all_room_comes_back(server: Server) -> None:
    for stopped in STOPPED.values():
        for peer in server.peers(stopped, 2):
            peer.close()
    peer = server.secure()
    for _ in range(3):
        peer.sendall(post(MIB, MIB))
        assert answer(peer) == b"ok"
    server.pass_time_until(lambda: server.worker._room._left == 5 * MIB // 4)


def test_peers_that_do_not_read_their_answers_give_way_to_others() -> None:
    with running(None) as server:
        server.peers(CHECK.replace(b"/ok", b"/large"), THREADS)
        limits = server.worker._deadlines._until
        wait_until(lambda: [1 for late, soon in list(limits.values()) if soon < late] == [1] * THREADS)
        peer = server.connect()
        peer.sendall(CHECK)
        wait_until(lambda: server.worker._queued)
        server.pass_time(serving.HURRY_S)
        assert answer(peer) == b"ok"


def test_peers_that_stay_connected_after_the_end_hold_no_thread(server: Server) -> None:
    slow = server.peers(CHECK.replace(b"Host", b"Connection: close\r\nHost"))
    for peer in slow:
        assert answer(peer) == b"ok"
    ready = server.secure()
    ready.sendall(CHECK)
    assert answer(ready) == b"ok"
    server.pass_time_until(lambda: server.worker.nr_conns == 1)


def test_an_answer_is_not_lost_where_the_peer_still_sends(server: Server) -> None:
    [peer] = server.peers(b"NONSENSE\r\n\r\n", 1)
    with contextlib.suppress(OSError):
        peer.sendall(b"x" * 30_000)
    assert received(peer, b"</html>\n").startswith(b"HTTP/1.1 400")


def test_connections_that_wait_give_way_where_there_are_too_many() -> None:
    with running(None, connections=10) as server:
        slow = server.peers(STOPPED["half of its headers"], 5) + server.peers(b"", 5)
        server.wait_until_read(STOPPED["half of its headers"], 5)
        wait_until(lambda: len(server.worker._waiting) == len(slow))
        peer = server.connect()
        peer.sendall(CHECK)
        server.pass_time(serving.HURRY_S)
        assert answer(peer) == b"ok"
        assert all(map(is_closed, slow))


def test_of_too_many_idle_connections_those_that_asked_last_are_kept() -> None:
    """A peer that holds all places by asking once must not keep others from connecting, nor from being kept."""
    with running(None, connections=10) as server:
        idle = server.peers(b"", 9)
        kept = server.connect()
        for count, peer in enumerate([*idle, kept], start=1):
            peer.sendall(CHECK)
            assert b"\r\nConnection: keep-alive\r\n" in received(peer, b"ok")
            server.wait_until_kept(count)
        peer = server.connect()
        peer.sendall(CHECK)
        server.pass_time(serving.HURRY_S)
        assert answer(peer) == b"ok"
        assert all(map(is_closed, idle[:5]))
        kept.sendall(CHECK)
        assert answer(kept) == b"ok"


def test_requests_that_come_together_are_all_answered(server: Server) -> None:
    [peer] = server.peers(CHECK * 3 + post(5, 5), 1)
    data = b""
    while data.count(b"\r\n\r\nok") < 4:
        data += received(peer, b"ok")
    assert [seen["length"] for seen in server.seen] == [0, 0, 0, 5]


def test_peers_that_send_many_requests_at_once_wait_their_turn() -> None:
    with running(None) as server:
        server.peers(CHECK.replace(b"/ok", b"/gate") + CHECK * 100, THREADS)
        wait_until(lambda: len(server.worker._deadlines._until) == THREADS)
        server.peers(CHECK.replace(b"/ok", b"/other"), 1)
        wait_until(lambda: server.worker._queued)
        server.gate.set()
        wait_until(lambda: len(server.seen) == 101 * THREADS + 1)
        assert [seen["path"] for seen in server.seen].index("/other") <= 2 * THREADS


def test_a_body_without_an_end_is_ended_when_it_is_read(server: Server) -> None:
    """One that sends all the time is seldom waiting when the main loop looks."""
    [late] = server.peers(ENDLESS, 1)
    assert answer(late) == b"ok"
    server.wait_until_begun(at=1000.0)
    server.worker._looked = 10_000.0
    server.clock.at += serving.RECEIVE_S
    late.sendall(b"x")
    wait_until(lambda: server.worker.nr_conns == 0)
    server.worker._looked = 0.0


def test_a_peer_that_asks_whether_to_send_gets_one_answer(server: Server) -> None:
    """Its body is there. A question to go on would be sent without a limit of time if it reads nothing."""
    [peer] = server.peers(post(5, 5).replace(b"Host", b"Expect: 100-continue\r\nHost"), 1)
    assert answer(peer) == b"ok"


def test_a_request_that_waits_for_room_is_told_so_also_where_there_are_too_many_connections() -> None:
    with running(None, connections=2) as server:
        assert server.worker._room.take(MIB)
        peer, _ = server.peers(post(MIB // 2, 5000), 1), server.peers(b"", 1)
        wait_until(lambda: Progress.ROOM in server.worker._waiting.values() and len(server.worker._waiting) == 2)
        server.pass_time(serving.HURRY_S)
        assert answer(peer[0]) == b"ok"
        assert server.seen[0]["busy"]


def test_what_the_kernel_holds_of_all_connections_has_a_bound(server: Server) -> None:
    """It counts as the container's memory. Of a connection that once was fast it would be megabytes."""
    peer = server.secure()
    for _ in range(3):
        peer.sendall(post(MIB, MIB))
        assert answer(peer) == b"ok"
    server.wait_until_idle()
    [conn] = server.worker.keepalived_conns
    sizes = [conn.sock.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    assert serving.CONNECTIONS * sum(sizes) <= 200 * MIB


def test_the_kernel_may_hold_more_for_a_connection_that_holds_room(server: Server) -> None:
    """On a busy node a large request would come too late in small pieces."""
    [peer] = server.peers(LARGE, 1)
    server.wait_until_read(LARGE, 1)
    [conn] = server.worker._waiting
    assert conn.is_wide
    peer.sendall(b"x" * (MIB // 2 - 70_000))
    assert answer(peer) == b"ok"
    server.wait_until_idle()
    assert not conn.is_wide


def test_a_request_is_as_old_as_its_first_byte() -> None:
    with running(None) as server:
        peer = server.connect()
        for moment in (1010.0, 1020.0):
            server.wait_until_idle()
            server.clock.at = moment
            peer.sendall(CHECK[:5])
            server.wait_until_begun(at=moment)
            server.clock.at += 3
            peer.sendall(CHECK[5:])
            assert answer(peer) == b"ok"
        assert [seen["received"] for seen in server.seen] == [1010.0, 1020.0]


def test_what_was_begun_is_answered_when_the_server_stops(server: Server) -> None:
    idle, begun = server.secure(), server.secure()
    begun.sendall(CHECK[:5])
    server.wait_until_begun(at=1000.0)
    wait_until(lambda: len(server.worker._waiting) == 2)
    server.worker.handle_exit(None, None)
    server.pass_time(0.5)
    assert is_closed(idle)
    begun.sendall(CHECK[5:])
    assert answer(begun) == b"ok"


@pytest.mark.parametrize(("hurried", "limit_s"), [(False, serving.SEND_S), (True, serving.HURRY_S)])
def test_an_answer_that_others_wait_behind_has_less_time(hurried: bool, limit_s: float) -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    ours, theirs = socket.socketpair()
    connection = TConn(Config(), ours, "", "")
    with ours, theirs, deadlines.bound(connection):
        clock.at += serving.REQUEST_S - 1
        deadlines.enforce(hurried=hurried)
        deadlines.answering(connection)
        clock.at += limit_s - 0.1
        deadlines.enforce(hurried=hurried)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
        clock.at += 0.1
        deadlines.enforce(hurried=hurried)
        assert theirs.recv(1) == b""


def test_a_request_that_is_computed_for_ever_loses_its_connection() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    ours, theirs = socket.socketpair()
    with ours, theirs, deadlines.bound(TConn(Config(), ours, "", "")):
        clock.at += serving.REQUEST_S
        deadlines.enforce(hurried=False)
        assert theirs.recv(1) == b""


@pytest.mark.parametrize("settings", [controller.settings.Settings, webhook.settings.Settings])
def test_connections_do_not_use_up_the_usual_limit_of_open_files(settings: Any) -> None:
    """A thread has two connections to the API server at most, and what it opens for a moment."""
    threads: Any = next(field.default for field in fields(settings) if field.name == "threads")
    assert serving.CONNECTIONS + 4 * threads < 1024 - 64
