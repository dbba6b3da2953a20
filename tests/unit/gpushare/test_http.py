"""Slow peers, more of them than are answered at a time, beside those that are served."""

import contextlib
import errno
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import fields
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
from waitress import buffers, channel, wasyncore

import controller.settings
import webhook.settings
from gpushare.runtime import http
from testing.webhook import authority_and_leaf
from tests.unit.gpushare.http_peers import (
    AT_A_TIME,
    CHECK,
    ENDLESS,
    HALF_OF_ITS_HEADERS,
    LARGE,
    MIB,
    STOPPED,
    Server,
    all_of,
    answer,
    is_closed,
    post,
    received,
    running,
    wait_until,
)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    directory, (_, leaf) = tmp_path_factory.mktemp("certs"), authority_and_leaf()
    (directory / "tls.pem").write_bytes(leaf.key + leaf.certificate)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(directory / "tls.pem")
    return made


@pytest.fixture(params=["plain", "TLS"])
def server(request: pytest.FixtureRequest, context: ssl.SSLContext) -> Iterator[Server]:
    with running(Server(tls=None if request.param == "plain" else lambda: context)) as made:
        yield made


@pytest.mark.parametrize("sent", STOPPED.values(), ids=STOPPED.keys())
def test_peers_that_stop_in_the_middle_keep_no_one_from_being_answered(server: Server, sent: bytes) -> None:
    server.peers(sent)
    peer = server.secure()
    lengths = [0, 1000, MIB // 2]
    if sent == STOPPED["the beginning of a large body"]:
        lengths.pop()  # it would wait for memory, see below
    for length in lengths:
        peer.sendall(post(length, length))
        assert answer(peer) == b"ok"
        assert length in [seen.length for seen in server.seen]


def test_peers_that_stop_in_the_handshake_or_get_no_certificate_hold_no_thread(context: ssl.SSLContext) -> None:
    with running(Server(tls=lambda: context)) as server:
        late = [server.connect() for _ in range(3 * AT_A_TIME)]
        for peer in late:
            peer.sendall(b"\x16\x03\x01")
        [ready] = server.peers(CHECK, 1)
        assert answer(ready) == b"ok"
        server.pass_time_until(lambda: server.count() == 1)
        assert server.clock.at >= 1000.0 + http.RECEIVE_S
        assert all(map(is_closed, late))
    contexts = [context]

    def tls() -> ssl.SSLContext:
        if not contexts:
            raise FileNotFoundError
        return contexts.pop()

    with running(Server(tls=tls)) as server:
        [peer] = server.peers(CHECK, 1)
        assert answer(peer) == b"ok"
        assert is_closed(server.connect())
        contexts.append(context)
        [peer] = server.peers(CHECK, 1)
        assert answer(peer) == b"ok"


@pytest.mark.parametrize("sent", list(STOPPED.values())[1:], ids=list(STOPPED.keys())[1:])
def test_a_request_that_is_not_sent_in_time_ends_its_connection(server: Server, sent: bytes) -> None:
    [late] = server.peers(sent, 1)
    if sent == ENDLESS:
        assert answer(late) == b"ok"  # it has the beginning
    else:
        server.wait_until_begun(at=1000.0)
    late.sendall(b"x" * 10)  # also if it sends a little all the time
    server.pass_time_until(lambda: server.count() == 0)
    assert server.clock.at >= 1000.0 + (http.LEAVE_S if sent == ENDLESS else http.RECEIVE_S)
    assert is_closed(late)


def test_a_connection_between_two_requests_lives_for_its_time(server: Server) -> None:
    peers = server.peers(CHECK, 2)
    assert [answer(peer) for peer in peers] == [b"ok", b"ok"]
    server.wait_until_idle(2)
    server.pass_time(3 * http.RECEIVE_S)
    peers[0].sendall(CHECK)
    assert answer(peers[0]) == b"ok"
    wait_until(lambda: [one.since for one in server.idle()].count(server.clock.at) == 1)
    server.pass_time(75.0 - 3 * http.RECEIVE_S)
    assert is_closed(peers[1])
    peers[0].sendall(CHECK)
    assert answer(peers[0]) == b"ok"


def test_slow_senders_of_large_bodies_give_way_to_others(server: Server) -> None:
    """Each holds its part of the memory, and there is no more."""
    slow = server.peers(LARGE, 2)
    server.wait_until_held(2)
    peer = server.secure()
    sender = threading.Thread(target=peer.sendall, args=(post(MIB // 2, MIB // 2),))
    sender.start()
    wait_until(server.waits_for_memory)
    server.pass_time(http.CROWDED_S - 0.5)
    assert server.seen == []
    server.pass_time(0.5)
    server.pass_time_until(lambda: len(server.seen) == 3)
    assert answer(peer) == b"ok"
    sender.join()
    assert [answer(each) for each in slow] == [b"ok", b"ok"]
    assert sorted((seen.busy, seen.length) for seen in server.seen) == [(False, MIB // 2), (True, 4096), (True, 4096)]


@pytest.mark.parametrize(("connections", "limit_s"), [(100, http.BUDGET_S), (2, http.CROWDED_S)])
def test_a_large_request_for_which_there_is_no_memory_is_told_so(connections: int, limit_s: float) -> None:
    """A connection that ends without an answer could let a pod pass that the webhook was not asked about."""
    with running(Server(connections=connections)) as server:
        assert server.budget.take(MIB)
        [peer], _ = server.peers(post(MIB // 2, 5000), 1), server.peers(b"", 1)
        wait_until(lambda: server.waits_for_memory() and server.count() == 2)
        server.pass_time(limit_s - 0.5)
        assert server.waits_for_memory()
        server.pass_time(0.5)
        assert answer(peer) == b"ok"
        assert [(seen.busy, seen.length) for seen in server.seen] == [(True, 4096)]


def test_all_memory_comes_back(server: Server) -> None:
    for stopped in STOPPED.values():
        for peer in server.peers(stopped, 2):
            peer.close()
    peer = server.secure()
    for _ in range(3):
        peer.sendall(post(MIB, MIB))
        server.pass_time_until(server.idle)
        assert answer(peer) == b"ok"
    wait_until(lambda: server.budget.left == 5 * MIB // 4)


@pytest.mark.parametrize(("others", "limit_s"), [(1, http.CROWDED_S), (0, http.SEND_S)])
def test_peers_that_do_not_read_their_answers_give_way_to_others(server: Server, others: int, limit_s: float) -> None:
    """What waits for them in memory has a bound."""
    slow = server.peers(CHECK.replace(b"/ok", b"/large"), AT_A_TIME)
    wait_until(lambda: [1 for one in server.channels() if one.total_outbufs_len] == [1] * AT_A_TIME)
    server.pass_time(http.LOOK_S)
    assert all(one.total_outbufs_len <= 320 * 1024 for one in server.channels())
    peers = server.peers(CHECK, others)
    wait_until(lambda: len(server.server._server.task_dispatcher.queue) == others)
    server.pass_time(limit_s - 0.5)
    assert server.count() == AT_A_TIME + others
    server.pass_time(0.5)
    assert [answer(peer) for peer in peers] == [b"ok"] * others
    server.pass_time_until(lambda: server.count() == others)
    for peer in slow:
        with contextlib.suppress(ConnectionError):
            assert len(all_of(peer)) < 64 * MIB


def test_large_bodies_and_answers_need_no_file(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The containers' file systems are read-only."""
    monkeypatch.setattr(buffers, "TempfileBasedBuffer", None)
    [peer] = server.peers(CHECK.replace(b"/ok", b"/large"), 1)
    peer.settimeout(20)
    left = 64 * MIB
    while left > 0:
        left -= len(peer.recv(MIB))
    peer.sendall(post(MIB, MIB))
    assert answer(peer) == b"ok"


def test_a_request_that_is_computed_forever_loses_its_connection(server: Server) -> None:
    [peer] = server.peers(CHECK.replace(b"/ok", b"/gate"), 1)
    wait_until(lambda: [one.requests for one in server.channels()] not in ([], [[]]))
    server.pass_time(http.REQUEST_S - 0.5)
    assert server.count() == 1
    server.pass_time(0.5)
    assert is_closed(peer)


def test_peers_that_stay_connected_after_the_end_are_ended(server: Server) -> None:
    for peer in server.peers(CHECK.replace(b"Host", b"Connection: close\r\nHost")):
        assert answer(peer) == b"ok"
    [ready] = server.peers(CHECK, 1)
    assert answer(ready) == b"ok"
    server.pass_time_until(lambda: server.count() == 1)
    assert server.clock.at >= 1000.0 + http.LEAVE_S


def test_an_answer_is_not_lost_where_the_peer_still_sends(server: Server) -> None:
    [peer] = server.peers(b"NONSENSE\r\n\r\n", 1)
    with contextlib.suppress(OSError):
        peer.sendall(b"x" * 30_000)
    assert all_of(peer).startswith(b"HTTP/1.0 400 ")


def test_a_peer_can_send_all_of_a_body_that_is_refused(server: Server) -> None:
    """Else it may fail with what became of its sending, and a pod pass that the webhook was not asked about."""
    assert server.budget.take(MIB)
    peer = server.secure()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    sender = futures.ThreadPoolExecutor().submit(peer.sendall, post(MIB, MIB))
    wait_until(server.waits_for_memory)
    server.pass_time(http.BUDGET_S)
    sender.result()
    assert answer(peer) == b"ok"
    assert [(seen.busy, seen.length) for seen in server.seen] == [(True, 4096)]


def test_what_is_read_after_the_end_has_a_bound(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    [peer] = server.peers(post(2 * MIB, 5000), 1)
    with contextlib.suppress(OSError):
        peer.sendall(b"x" * (2 * MIB))
    wait_until(lambda: server.count() == 0)
    server.pass_time(http.LOOK_S)  # it has left the connection
    assert caplog.messages == []


def test_connections_that_wait_give_way_where_there_are_too_many() -> None:
    with running(Server(connections=10)) as server:
        slow = server.peers(HALF_OF_ITS_HEADERS, 5) + server.peers(b"", 5)
        server.wait_until_begun(at=1000.0, count=5)
        wait_until(lambda: server.count() == len(slow))
        [peer] = server.peers(CHECK, 1)
        server.pass_time(http.CROWDED_S)
        assert answer(peer) == b"ok"
        assert all(map(is_closed, slow))


def test_of_too_many_idle_connections_those_that_asked_last_are_kept() -> None:
    """A peer that holds all places by asking once must not keep others from connecting, nor from being kept."""
    with running(Server(connections=10)) as server:
        idle = server.peers(b"", 9)
        wait_until(lambda: server.count() == 9)
        for count, peer in enumerate(idle, start=1):
            server.clock.at += 0.01
            peer.sendall(CHECK)
            assert b"Connection: close" not in received(peer, b"ok")
            server.wait_until_idle(count)
        server.clock.at += 0.01
        kept, peer = server.peers(CHECK, 2)
        assert (answer(kept), answer(peer)) == (b"ok", b"ok")
        server.pass_time_until(lambda: server.count() <= 7)
        assert all(map(is_closed, idle[:4]))
        kept.sendall(CHECK)
        assert answer(kept) == b"ok"


def test_connections_for_which_no_file_is_left_wait_and_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel says again and again that they are there; who asks it all the time computes for nothing."""
    tried = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    with running(Server()) as server:
        monkeypatch.setattr(wasyncore.dispatcher, "accept", tried)
        [peer] = server.peers(CHECK, 1)
        wait_until(lambda: tried.called)
        before = server.beats
        wait_until(lambda: server.beats > before + 5)
        assert tried.call_count == 1
        assert caplog.messages == ["connection not accepted"]
        monkeypatch.undo()
        server.pass_time(http.LOOK_S)
        assert answer(peer) == b"ok"


def test_requests_that_come_together_are_all_answered(server: Server) -> None:
    [peer] = server.peers(CHECK * 3 + post(5, 5), 1)
    data = b""
    while data.count(b"\r\n\r\nok") < 4:
        data += received(peer, b"ok")
    assert [seen.length for seen in server.seen] == [0, 0, 0, 5]


def test_a_small_answer_leaves_in_one_packet(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: Mock = create_autospec(channel.HTTPChannel.send, side_effect=channel.HTTPChannel.send)
    monkeypatch.setattr(channel.HTTPChannel, "send", sent)
    [peer] = server.peers(CHECK, 1)
    assert answer(peer) == b"ok"
    assert sent.call_count == 1


def test_an_answer_without_a_body_says_that_its_connection_ends(server: Server) -> None:
    [peer] = server.peers(CHECK.replace(b"/ok", b"/same"), 1)
    assert b"\r\nConnection: close\r\n" in all_of(peer)


def test_the_main_loop_rests_while_a_thread_sends(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(one: Any, data: bytes, do_close: bool = True) -> Any:
        turns = len(seen)
        wait_until(lambda: len(seen) > turns + 2)  # by its ticks
        return send(one, data, do_close)

    def turn(**more: Any) -> None:
        seen.append(1)
        loop(**more)

    send, loop, seen = channel.HTTPChannel.send, wasyncore.loop, list[int]()
    monkeypatch.setattr(channel.HTTPChannel, "send", slow)
    monkeypatch.setattr(wasyncore, "loop", turn)
    written: Mock = create_autospec(channel.HTTPChannel.handle_write, side_effect=channel.HTTPChannel.handle_write)
    monkeypatch.setattr(channel.HTTPChannel, "handle_write", written)
    [peer] = server.peers(CHECK, 1)
    assert answer(peer) == b"ok"
    assert not written.called


def test_peers_that_send_many_requests_at_once_wait_their_turn() -> None:
    with running(Server(threads=1)) as server:
        server.peers(CHECK.replace(b"/ok", b"/gate") + CHECK * 100, 1)
        server.at_gate.wait()
        server.peers(CHECK.replace(b"/ok", b"/other"), 1)
        wait_until(lambda: server.server._server.task_dispatcher.queue)
        assert [len(one.requests) for one in server.channels()] == [1, 1]  # thousands would take megabytes
        server.gate.set()
        wait_until(lambda: len(server.seen) == 102)
        assert [seen.path for seen in server.seen].index("/other") == 1


def test_requests_that_wait_for_others_hold_only_threads_of_their_own() -> None:
    with running(Server(threads=1, waiting=frozenset({"/gate"}))) as server:
        waiting = server.peers(CHECK.replace(b"/ok", b"/gate"), 3)
        server.at_gate.wait()
        wait_until(lambda: len(server.server._waiting.queue) == 2)
        [peer] = server.peers(CHECK, 1)
        assert answer(peer) == b"ok"
        server.gate.set()
        assert [answer(peer) for peer in waiting] == [b"ok"] * 3


def test_a_peer_that_asks_whether_to_send_or_for_the_head_gets_one_answer(server: Server) -> None:
    """A question to go on would be sent without a limit of time, and what is refused would come nevertheless."""
    expects = b"Expect: 100-continue\r\nHost"
    [peer] = server.peers(post(5, 5).replace(b"Host", expects), 1)
    assert answer(peer) == b"ok"
    [long] = server.peers(post(2 * MIB, 5000).replace(b"Host", expects), 1)
    assert answer(long) == b"ok"
    assert [seen.length for seen in server.seen] == [5, 4096]
    [peer] = server.peers(CHECK.replace(b"GET", b"HEAD") + CHECK, 1)
    data = received(peer, b"ok")
    assert (data.count(b"Content-Length: 2\r\n"), data.count(b"ok")) == (2, 1)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked", 501),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 5", 501),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5, 5", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -5", 400),
        (b"GET / HTTP/1.1\r\nContent-Length:", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: " + b"1" * 200, 413),
        (b"GET / HTTP/1.1\r\nContent-Length : 5", 400),
        (b"GET / HTTP/1.1\r\nHost", 400),
        (b"GET / HTTP/1.1\r\nHost: x\nContent-Length: 5", 400),
        (b"get / HTTP/1.1\r\nHost: x", 400),
        (b"\x16\x03\x01\r\nHost: x", 400),
        (b"GET /" + b"a" * 40_000, 431),
    ],
)
def test_what_could_be_read_in_two_ways_ends_the_connection(server: Server, lines: bytes, status: int) -> None:
    [peer] = server.peers(lines + b"\r\n\r\n" + CHECK, 1)
    said = all_of(peer)
    assert said.startswith(b"HTTP/1.0 %d" % status) or said.startswith(b"HTTP/1.1 %d" % status)
    assert said.count(b"HTTP/1.") == 1
    assert server.seen == []


def test_what_the_kernel_holds_of_all_connections_has_a_bound(server: Server) -> None:
    """It counts as the container's memory. Of a connection that once was fast it would be megabytes."""
    peer = server.secure()
    for _ in range(3):
        peer.sendall(post(MIB, MIB))
        assert answer(peer) == b"ok"
    [one] = server.channels()
    sizes = [one.socket.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    assert http.CONNECTIONS * sum(sizes) <= 200 * MIB


def test_a_request_is_as_old_as_its_first_byte(server: Server) -> None:
    peer = server.secure()
    for moment in (1010.0, 1020.0):
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
    wait_until(lambda: server.count() == 2)
    server.stopping = True
    assert is_closed(idle)
    with pytest.raises(ConnectionRefusedError):
        server.connect()
    begun.sendall(CHECK[5:])
    assert b"\r\nConnection: close\r\n" in received(begun, b"ok")
    assert is_closed(begun)


def test_a_request_that_never_ends_does_not_keep_the_server_from_stopping(server: Server) -> None:
    [peer] = server.peers(HALF_OF_ITS_HEADERS, 1)
    server.wait_until_begun(at=1000.0)
    server.stopping = True
    wait_until(lambda: server.server.stopping)
    server.clock.at += 8
    assert is_closed(peer)


def test_a_bug_in_the_handler_is_logged_and_ends_its_connection_only_while_the_loop_goes_round(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    [peer] = server.peers(CHECK.replace(b"/ok", b"/bug"), 1)
    assert all_of(peer).startswith(b"HTTP/1.1 500 ")
    assert caplog.messages == ["Exception while serving /bug"]
    [other] = server.peers(CHECK, 1)
    assert answer(other) == b"ok"
    before = server.beats
    wait_until(lambda: server.beats > before + 2)


@pytest.mark.parametrize("settings", [controller.settings.Settings, webhook.settings.Settings])
def test_connections_do_not_use_up_the_usual_limit_of_open_files(settings: Any) -> None:
    """A thread has two connections to the API server at most, and what it opens for a moment."""
    threads: Any = next(field.default for field in fields(settings) if field.name == "threads")
    assert http.CONNECTIONS + 4 * threads < 1024 - 64
