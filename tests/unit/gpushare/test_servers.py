"""Slow peers, more of them than are answered at a time, beside those that are served."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from gunicorn.config import Config
from gunicorn.workers.gthread import TConn

import controller.settings
import webhook.settings
from certs import authority
from gpushare.runtime import serving
from gpushare.runtime.serving import Deadlines
from testing.clock import ManualClock
from tests.unit.gpushare.servers import (
    AT_A_TIME,
    CHECK,
    ENDLESS,
    HALF_OF_ITS_HEADERS,
    LARGE,
    MIB,
    STOPPED,
    Gunicorn,
    Server,
    answer,
    is_closed,
    post,
    received,
    wait_until,
)

HELLO = b"\x16\x03\x01"  # the beginning of a handshake
Kind = type[Gunicorn]
S = TypeVar("S", bound=Server)
each_kind = pytest.mark.parametrize("kind", [Gunicorn])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, now = tmp_path_factory.mktemp("certs"), datetime.now(UTC)
    ca = authority.make_ca(now=now, life=timedelta(days=2))
    leaf = authority.make_leaf(ca, names=frozenset({"localhost"}), now=now, life=timedelta(days=1))
    (directory / "tls.crt").write_bytes(leaf.certificate)
    (directory / "tls.key").write_bytes(leaf.key)
    return directory


@contextlib.contextmanager
def running(made: S) -> Iterator[S]:
    made.thread.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(params=["gunicorn", "gunicorn with TLS"])
def server(request: pytest.FixtureRequest, certificate: Path) -> Iterator[Server]:
    made: dict[str, Any] = {"gunicorn": Gunicorn, "gunicorn with TLS": lambda: Gunicorn(certificate)}
    with running(made[request.param]()) as started:
        yield started


@pytest.mark.parametrize("sent", STOPPED.values(), ids=STOPPED.keys())
def test_peers_that_stop_in_the_middle_keep_no_one_from_being_answered(server: Server, sent: bytes) -> None:
    server.peers(sent)
    peer = server.secure()
    lengths = [0, 1000, MIB // 2]
    if sent == STOPPED["the beginning of a large body"]:
        lengths.pop()  # it would wait for room, see below
    for length in lengths:
        peer.sendall(post(length, length))
        assert answer(peer) == b"ok"
        assert length in [seen.length for seen in server.seen]


def test_peers_that_stop_in_the_handshake_hold_no_thread(certificate: Path) -> None:
    with running(Gunicorn(certificate)) as server:
        late = [server.connect() for _ in range(3 * AT_A_TIME)]
        for peer in late:
            peer.sendall(HELLO)
        [ready] = server.peers(CHECK, 1)
        assert answer(ready) == b"ok"
        server.pass_time_until(lambda: server.count() == 1)
        assert server.clock.at >= 1000.0 + serving.RECEIVE_S
        assert all(map(is_closed, late))


@pytest.mark.parametrize("sent", list(STOPPED.values())[1:], ids=list(STOPPED.keys())[1:])
def test_a_request_that_is_not_sent_in_time_ends_its_connection(server: Server, sent: bytes) -> None:
    [late] = server.peers(sent, 1)
    server.wait_until_begun(at=1000.0)
    if sent == ENDLESS:
        assert answer(late) == b"ok"  # it has the beginning
    late.sendall(b"x" * 10)  # also if it sends a little all the time
    server.pass_time_until(lambda: server.count() == 0)
    assert server.clock.at >= 1000.0 + serving.RECEIVE_S
    assert is_closed(late)


def test_a_connection_between_two_requests_lives_on(server: Server) -> None:
    fresh, kept = server.secure(), server.secure()
    for _ in range(2):
        kept.sendall(CHECK)
        assert answer(kept) == b"ok"
        server.wait_until_idle()
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
    wait_until(server.waits_for_room)
    server.pass_time(serving.HURRY_S - 0.5)
    assert server.seen == []
    server.pass_time(0.5)
    assert answer(peer) == b"ok"
    sender.join()
    assert [answer(each) for each in slow] == [b"ok", b"ok"]
    assert sorted((seen.busy, seen.length) for seen in server.seen) == [(False, MIB // 2), (True, 4096), (True, 4096)]


def test_a_large_request_for_which_there_is_no_room_is_told_so(server: Server) -> None:
    """A connection that ends without an answer could let a pod pass that the webhook was not asked about."""
    assert server.room.take(MIB)
    [peer] = server.peers(post(MIB // 2, 5000), 1)
    wait_until(server.waits_for_room)
    server.pass_time(serving.ROOM_S - 0.5)
    assert server.seen == []
    server.pass_time(0.5)
    assert answer(peer) == b"ok"
    assert [(seen.busy, seen.length) for seen in server.seen] == [(True, 4096)]


@each_kind
def test_a_request_that_waits_for_room_is_told_so_also_where_there_are_too_many_connections(kind: Kind) -> None:
    with running(kind(connections=2)) as server:
        assert server.room.take(MIB)
        [peer], _ = server.peers(post(MIB // 2, 5000), 1), server.peers(b"", 1)
        wait_until(lambda: server.waits_for_room() and len(server.waiting()) == 2)
        server.pass_time(serving.HURRY_S)
        assert answer(peer) == b"ok"
        assert server.seen[0].busy


def test_all_room_comes_back(server: Server) -> None:
    for stopped in STOPPED.values():
        for peer in server.peers(stopped, 2):
            peer.close()
    peer = server.secure()
    for _ in range(3):
        peer.sendall(post(MIB, MIB))
        assert answer(peer) == b"ok"
    wait_until(lambda: server.room._left == 5 * MIB // 4)


@each_kind
def test_peers_that_do_not_read_their_answers_give_way_to_others(kind: Kind) -> None:
    with running(kind()) as server:
        server.peers(CHECK.replace(b"/ok", b"/large"), AT_A_TIME)
        limits = server.deadlines._until
        wait_until(lambda: [1 for late, soon in list(limits.values()) if soon < late] == [1] * AT_A_TIME)
        [peer] = server.peers(CHECK, 1)
        wait_until(server.waits_for_a_turn)
        server.pass_time(serving.HURRY_S)
        assert answer(peer) == b"ok"


def test_peers_that_stay_connected_after_the_end_are_ended(server: Server) -> None:
    slow = server.peers(CHECK.replace(b"Host", b"Connection: close\r\nHost"))
    for peer in slow:
        assert answer(peer) == b"ok"
    [ready] = server.peers(CHECK, 1)
    assert answer(ready) == b"ok"
    server.pass_time_until(lambda: server.count() == 1)
    assert isinstance(server, Gunicorn) or server.clock.at >= 1000.0 + serving.LEAVE_S


def test_an_answer_is_not_lost_where_the_peer_still_sends(server: Server) -> None:
    [peer] = server.peers(b"NONSENSE\r\n\r\n", 1)
    with contextlib.suppress(OSError):
        peer.sendall(b"x" * 30_000)
    assert received(peer, b"</html>\n").startswith(b"HTTP/1.1 400 ")
    assert is_closed(peer)


@each_kind
def test_connections_that_wait_give_way_where_there_are_too_many(kind: Kind) -> None:
    with running(kind(connections=10)) as server:
        slow = server.peers(HALF_OF_ITS_HEADERS, 5) + server.peers(b"", 5)
        server.wait_until_read(HALF_OF_ITS_HEADERS, 5)
        wait_until(lambda: len(server.waiting()) == len(slow))
        [peer] = server.peers(CHECK, 1)
        server.pass_time(serving.HURRY_S)
        assert answer(peer) == b"ok"
        assert all(map(is_closed, slow))


@each_kind
def test_of_too_many_idle_connections_those_that_asked_last_are_kept(kind: Kind) -> None:
    """A peer that holds all places by asking once must not keep others from connecting, nor from being kept."""
    with running(kind(connections=10)) as server:
        idle = server.peers(b"", 9)
        kept = server.connect()
        for count, peer in enumerate([*idle, kept], start=1):
            peer.sendall(CHECK)
            assert b"\r\nConnection: keep-alive\r\n" in received(peer, b"ok")
            server.wait_until_idle(count)
        [peer] = server.peers(CHECK, 1)
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
    assert [seen.length for seen in server.seen] == [0, 0, 0, 5]


@pytest.mark.parametrize(("kind", "turns", "before"), [(Gunicorn, 2, 4)])
def test_peers_that_send_many_requests_at_once_wait_their_turn(kind: Kind, turns: int, before: int) -> None:
    with running(kind(turns=turns)) as server:
        server.peers(CHECK.replace(b"/ok", b"/gate") + CHECK * 100, turns)
        wait_until(lambda: len(server.deadlines._until) == turns)
        server.peers(CHECK.replace(b"/ok", b"/other"), 1)
        wait_until(server.waits_for_a_turn)
        server.gate.set()
        wait_until(lambda: len(server.seen) == 101 * turns + 1)
        assert [seen.path for seen in server.seen].index("/other") <= before


@pytest.mark.parametrize("tls", [False, True])
def test_a_body_without_an_end_is_ended_when_it_is_read(tls: bool, certificate: Path) -> None:
    """One that sends all the time is seldom waiting when the main loop looks."""
    with running(Gunicorn(certificate if tls else None)) as server:
        [late] = server.peers(ENDLESS, 1)
        assert answer(late) == b"ok"
        server.wait_until_begun(at=1000.0)
        server.worker._looked = 10_000.0
        server.clock.at += serving.RECEIVE_S
        late.sendall(b"x")
        wait_until(lambda: server.count() == 0)
        server.worker._looked = 0.0


def test_a_peer_that_asks_whether_to_send_gets_one_answer(server: Server) -> None:
    """Its body is there. A question to go on would be sent without a limit of time if it reads nothing."""
    [peer] = server.peers(post(5, 5).replace(b"Host", b"Expect: 100-continue\r\nHost"), 1)
    assert answer(peer) == b"ok"


def test_what_the_kernel_holds_of_all_connections_has_a_bound(server: Server) -> None:
    """It counts as the container's memory. Of a connection that once was fast it would be megabytes."""
    peer = server.secure()
    for _ in range(3):
        peer.sendall(post(MIB, MIB))
        assert answer(peer) == b"ok"
    server.wait_until_idle()
    [one] = server.idle()
    sizes = [one.sock.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    assert serving.CONNECTIONS * sum(sizes) <= 200 * MIB


def test_the_kernel_may_hold_more_for_a_connection_that_holds_room(server: Server) -> None:
    """On a busy node a large request would come too late in small pieces."""
    [peer] = server.peers(LARGE, 1)
    server.wait_until_read(LARGE, 1)
    [one] = server.waiting()
    assert server.is_wide(one)
    peer.sendall(b"x" * (MIB // 2 - 70_000))
    assert answer(peer) == b"ok"
    server.wait_until_idle()
    assert not server.is_wide(one)


@each_kind
def test_a_request_is_as_old_as_its_first_byte(kind: Kind) -> None:
    with running(kind()) as server:
        peer = server.connect()
        for moment in (1010.0, 1020.0):
            wait_until(lambda: server.idle() or server.waiting())
            server.clock.at = moment
            peer.sendall(CHECK[:5])
            server.wait_until_begun(at=moment)
            server.clock.at += 3
            peer.sendall(CHECK[5:])
            assert answer(peer) == b"ok"
            server.wait_until_idle()
        assert [seen.received for seen in server.seen] == [1010.0, 1020.0]


def test_what_was_begun_is_answered_when_the_server_stops(server: Server) -> None:
    idle, begun = server.secure(), server.secure()
    begun.sendall(CHECK[:5])
    server.wait_until_begun(at=1000.0)
    wait_until(lambda: len(server.waiting()) == 2)
    server.end()
    if isinstance(server, Gunicorn):
        server.pass_time(0.5)
    assert is_closed(idle)
    begun.sendall(CHECK[5:])
    assert b"\r\nConnection: close\r\n" in received(begun, b"ok")
    assert is_closed(begun)


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
