"""Slow peers, more of them than are answered at a time, beside those that are served."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from gpushare.runtime import http, serving
from gpushare.runtime.conversation import Conversation, Waits
from gpushare.runtime.http import Request, Response
from gpushare.runtime.http_server import HttpServer
from testing.controller.world import ManualClock
from tests.unit.gpushare.peers import (
    CHECK,
    ENDLESS,
    HALF_OF_ITS_HEADERS,
    LARGE,
    MIB,
    STOPPED,
    answer,
    is_closed,
    post,
    received,
    wait_until,
)

TURNS = 2
SLOW = 3 * TURNS


class Running:
    """A server's main loop in a thread, on time that the test owns."""

    def __init__(self, connections: int, turns: int) -> None:
        self.clock, self.seen, self.gate = ManualClock(), list[tuple[Request, int]](), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._address = self._listener.getsockname()
        self.server = HttpServer(
            handler=self._handle,
            listeners=[self._listener],
            clock=self.clock,
            turns=turns,
            most=MIB,
            room=5 * MIB // 4,
            keep_alive_s=75.0,
            connections=connections,
            tick_s=0.005,
        )
        self.stopping, self.beats = False, 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self._open = contextlib.ExitStack()

    def _serve(self) -> None:
        self.server.serve(lambda: self.stopping, self._beat)
        self.server.finish(self._beat, grace_s=8)

    def _beat(self) -> None:
        self.beats += 1

    def stop(self) -> None:
        self.gate.set()
        self._open.close()
        self.stopping = True
        while self._thread.is_alive():
            self.clock.at += 0.5
            self._thread.join(0.01)
        wait_until(lambda: not any(thread.name == "connection" for thread in threading.enumerate()))

    def pass_time(self, seconds: float) -> None:
        """Returns when the main loop has looked at what is late now."""
        self.clock.at += seconds
        wait_until(lambda: self.server._looked >= self.clock.at or not self._thread.is_alive())

    def pass_time_until(self, done: Callable[[], object]) -> None:
        while not done():
            self.pass_time(0.5)

    def _handle(self, request: Request) -> Response:
        size = 0
        while piece := request.body.read(65536):
            size += len(piece)
        if request.head.path == "/gate":
            self.gate.wait()
        self.seen.append((request, size))
        return Response(200, b"x" * (64 * MIB) if request.head.path == "/large" else b"ok")

    def connect(self) -> socket.socket:
        return self._open.enter_context(socket.create_connection(self._address))

    def peers(self, sent: bytes, count: int = SLOW) -> list[socket.socket]:
        peers = [self.connect() for _ in range(count)]
        for peer in peers:
            peer.sendall(sent)
        return peers

    @property
    def open(self) -> list[Conversation]:
        return list(self.server._open)

    def idle(self) -> list[Conversation]:
        return [one for one in self.open if one.kept and one.waits is Waits.PEER and one.arrival.began is None]

    def wait_until_begun(self, *, at: float) -> None:
        wait_until(lambda: any(one.arrival.began == at for one in self.open))

    def wait_until_read(self, sent: bytes, count: int) -> None:
        """What so many peers sent that stopped then. Before this, time that passes may find them busy."""
        wait_until(lambda: sum(len(one.arrival._data) for one in self.open) == count * len(sent))


@contextlib.contextmanager
def running(connections: int = 100, turns: int = TURNS) -> Iterator[Running]:
    made = Running(connections, turns)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as made:
        yield made


@pytest.mark.parametrize("sent", STOPPED.values(), ids=STOPPED.keys())
def test_peers_that_stop_in_the_middle_keep_no_one_from_being_answered(server: Running, sent: bytes) -> None:
    server.peers(sent)
    peer = server.connect()
    lengths = [0, 1000, MIB // 2]
    if sent == STOPPED["the beginning of a large body"]:
        lengths.pop()  # it would wait for room, see below
    for length in lengths:
        peer.sendall(post(length, length))
        assert answer(peer) == b"ok"
        assert length in [size for _, size in server.seen]


@pytest.mark.parametrize("sent", list(STOPPED.values())[1:], ids=list(STOPPED.keys())[1:])
def test_a_request_that_is_not_sent_in_time_ends_its_connection(server: Running, sent: bytes) -> None:
    [late] = server.peers(sent, 1)
    server.wait_until_begun(at=1000.0)
    if sent == ENDLESS:
        assert answer(late) == b"ok"  # it has the beginning
    late.sendall(b"x" * 10)  # also if it sends a little all the time
    server.pass_time_until(lambda: not server.open)
    assert server.clock.at >= 1000.0 + serving.RECEIVE_S
    assert is_closed(late)


def test_a_connection_between_two_requests_lives_on_for_its_time(server: Running) -> None:
    fresh, kept = server.connect(), server.connect()
    for _ in range(2):
        kept.sendall(CHECK)
        assert answer(kept) == b"ok"
        wait_until(lambda: len(server.idle()) == 1)
        server.pass_time(3 * serving.RECEIVE_S)
    fresh.sendall(CHECK)
    assert answer(fresh) == b"ok"
    wait_until(lambda: len(server.idle()) == 2)
    server.pass_time(75.0)
    assert is_closed(fresh)
    assert is_closed(kept)


def test_slow_senders_of_large_bodies_give_way_to_others(server: Running) -> None:
    """Each holds its part of the room, and it is full."""
    slow = server.peers(LARGE, 2)
    server.wait_until_read(LARGE, 2)
    peer = server.connect()
    sender = threading.Thread(target=peer.sendall, args=(post(MIB // 2, MIB // 2),))
    sender.start()
    wait_until(lambda: any(one.waits is Waits.ROOM for one in server.open))
    server.pass_time(serving.HURRY_S - 0.5)
    assert server.seen == []
    server.pass_time(0.5)
    assert answer(peer) == b"ok"
    sender.join()
    assert [answer(each) for each in slow] == [b"ok", b"ok"]
    assert sorted((request.busy, size) for request, size in server.seen) == [
        (False, MIB // 2),
        (True, 4096),
        (True, 4096),
    ]


def test_a_large_request_for_which_there_is_no_room_is_told_so(server: Running) -> None:
    assert server.server._room.take(MIB)
    [peer] = server.peers(post(MIB // 2, 5000), 1)
    wait_until(lambda: any(one.waits is Waits.ROOM for one in server.open))
    server.pass_time(serving.ROOM_S - 0.5)
    assert server.seen == []
    server.pass_time(0.5)
    assert answer(peer) == b"ok"
    [(request, size)] = server.seen
    assert (request.busy, size) == (True, 4096)


def test_a_request_that_waits_for_room_is_told_so_also_where_there_are_too_many_connections() -> None:
    with running(connections=2) as server:
        assert server.server._room.take(MIB)
        peer, _ = server.peers(post(MIB // 2, 5000), 1), server.peers(b"", 1)
        wait_until(lambda: any(one.waits is Waits.ROOM for one in server.open) and len(server.open) == 2)
        server.pass_time(serving.HURRY_S)
        assert answer(peer[0]) == b"ok"
        assert server.seen[0][0].busy


def test_all_room_comes_back(server: Running) -> None:
    for stopped in STOPPED.values():
        for peer in server.peers(stopped, 2):
            peer.close()
    peer = server.connect()
    for _ in range(3):
        peer.sendall(post(MIB, MIB))
        assert answer(peer) == b"ok"
    server.pass_time_until(lambda: server.server._room._left == 5 * MIB // 4)


def test_peers_that_do_not_read_their_answers_give_way_to_others() -> None:
    with running() as server:
        server.peers(CHECK.replace(b"/ok", b"/large"), TURNS)
        limits = server.server._deadlines._until
        wait_until(lambda: [1 for late, soon in list(limits.values()) if soon < late] == [1] * TURNS)
        peer = server.connect()
        peer.sendall(CHECK)
        wait_until(lambda: server.server._turns.awaited)
        server.pass_time(serving.HURRY_S)
        assert answer(peer) == b"ok"


def test_peers_that_stay_connected_after_the_end_are_ended(server: Running) -> None:
    slow = server.peers(CHECK.replace(b"Host", b"Connection: close\r\nHost"))
    for peer in slow:
        assert answer(peer) == b"ok"
    ready = server.connect()
    ready.sendall(CHECK)
    assert answer(ready) == b"ok"
    server.pass_time_until(lambda: len(server.open) == 1)
    assert server.clock.at >= 1000.0 + serving.LEAVE_S


def test_an_answer_is_not_lost_where_the_peer_still_sends(server: Running) -> None:
    [peer] = server.peers(b"NONSENSE\r\n\r\n", 1)
    with contextlib.suppress(OSError):
        peer.sendall(b"x" * 30_000)
    assert received(peer, b"HTTP/1.1\n").startswith(b"HTTP/1.1 400 ")
    assert is_closed(peer)


def test_connections_that_wait_give_way_where_there_are_too_many() -> None:
    with running(connections=10) as server:
        slow = server.peers(HALF_OF_ITS_HEADERS, 5) + server.peers(b"", 5)
        server.wait_until_read(HALF_OF_ITS_HEADERS, 5)
        wait_until(lambda: len(server.open) == len(slow))
        peer = server.connect()
        peer.sendall(CHECK)
        server.pass_time(serving.HURRY_S)
        assert answer(peer) == b"ok"
        assert all(map(is_closed, slow))


def test_of_too_many_idle_connections_those_that_asked_last_are_kept() -> None:
    """A peer that holds all places by asking once must not keep others from connecting, nor from being kept."""
    with running(connections=10) as server:
        idle = server.peers(b"", 9)
        kept = server.connect()
        for count, peer in enumerate([*idle, kept], start=1):
            peer.sendall(CHECK)
            assert b"\r\nConnection: keep-alive\r\n" in received(peer, b"ok")
            wait_until(lambda: len(server.idle()) == count)  # noqa: B023 - called in this round only
        peer = server.connect()
        peer.sendall(CHECK)
        server.pass_time(serving.HURRY_S)
        assert answer(peer) == b"ok"
        assert all(map(is_closed, idle[:5]))
        kept.sendall(CHECK)
        assert answer(kept) == b"ok"


def test_requests_that_come_together_are_all_answered(server: Running) -> None:
    [peer] = server.peers(CHECK * 3 + post(5, 5), 1)
    data = b""
    while data.count(b"\r\n\r\nok") < 4:
        data += received(peer, b"ok")
    assert [size for _, size in server.seen] == [0, 0, 0, 5]


def test_peers_that_send_many_requests_at_once_wait_their_turn() -> None:
    with running(turns=1) as server:
        server.peers(CHECK.replace(b"/ok", b"/gate") + CHECK * 100, 1)
        wait_until(lambda: server.server._deadlines._until)
        server.peers(CHECK.replace(b"/ok", b"/other"), 1)
        wait_until(lambda: server.server._turns.awaited)
        server.gate.set()
        wait_until(lambda: len(server.seen) == 102)
        assert [request.head.path for request, _ in server.seen].index("/other") == 1


def test_a_peer_that_asks_whether_to_send_gets_one_answer(server: Running) -> None:
    [peer] = server.peers(post(5, 5).replace(b"Host", b"Expect: 100-continue\r\nHost"), 1)
    assert answer(peer) == b"ok"


def test_a_peer_that_asks_for_the_head_gets_no_body(server: Running) -> None:
    [peer] = server.peers(CHECK.replace(b"GET", b"HEAD") + CHECK, 1)
    data = received(peer, b"ok")
    assert data.count(b"Content-Length: 2\r\n") == 2
    assert data.count(b"ok") == 1


def test_a_body_of_untold_length_ends_the_connection_after_the_answer(server: Running) -> None:
    [peer] = server.peers(b"POST /ok HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 1)
    assert answer(peer) == b"ok"
    assert is_closed(peer)
    assert [(request.head.chunked, size) for request, size in server.seen] == [(True, 0)]


def test_what_the_kernel_holds_of_all_connections_has_a_bound(server: Running) -> None:
    """It counts as the container's memory. Of a connection that once was fast it would be megabytes."""
    peer = server.connect()
    for _ in range(3):
        peer.sendall(post(MIB, MIB))
        assert answer(peer) == b"ok"
    wait_until(server.idle)
    [one] = server.open
    sizes = [one.sock.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    assert serving.CONNECTIONS * sum(sizes) <= 200 * MIB


def test_the_kernel_may_hold_more_for_a_connection_that_holds_room(server: Running) -> None:
    """On a busy node a large request would come too late in small pieces."""
    [peer] = server.peers(LARGE, 1)
    server.wait_until_read(LARGE, 1)
    [one] = server.open
    assert one.wide
    peer.sendall(b"x" * (MIB // 2 - 70_000))
    assert answer(peer) == b"ok"
    wait_until(server.idle)
    assert not one.wide


def test_a_request_is_as_old_as_its_first_byte() -> None:
    with running() as server:
        peer = server.connect()
        for moment in (1010.0, 1020.0):
            server.clock.at = moment
            peer.sendall(CHECK[:5])
            server.wait_until_begun(at=moment)
            server.clock.at += 3
            peer.sendall(CHECK[5:])
            assert answer(peer) == b"ok"
            wait_until(server.idle)
        assert [request.received for request, _ in server.seen] == [1010.0, 1020.0]


def test_what_was_begun_is_answered_when_the_server_stops(server: Running) -> None:
    idle, begun = server.connect(), server.connect()
    begun.sendall(CHECK[:5])
    server.wait_until_begun(at=1000.0)
    wait_until(lambda: len(server.open) == 2)
    server.stopping = True
    assert is_closed(idle)
    begun.sendall(CHECK[5:])
    assert b"\r\nConnection: close\r\n" in received(begun, b"ok")
    assert is_closed(begun)


def test_a_request_that_never_ends_does_not_keep_the_server_from_stopping(server: Running) -> None:
    [peer] = server.peers(HALF_OF_ITS_HEADERS, 1)
    server.wait_until_begun(at=1000.0)
    server.stopping = True
    wait_until(lambda: server.server._stopping)
    server.clock.at += 8
    assert is_closed(peer)


def test_a_bug_in_the_handler_ends_its_connection_only(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    [peer] = server.peers(CHECK, 1)
    assert answer(peer) == b"ok"
    server.server.handler = lambda _: http.parse(b"")  # type: ignore[assignment,return-value] # a bug
    peer.sendall(CHECK)
    assert is_closed(peer)
    assert "connection failed" in caplog.messages


def test_the_main_loop_tells_that_it_goes_round(server: Running) -> None:
    before = server.beats
    wait_until(lambda: server.beats > before + 2)
