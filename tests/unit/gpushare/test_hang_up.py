"""The end of a connection: the peer gets its answer, and the server waits for it in one place only."""

import socket
import threading
from collections.abc import Iterator

import pytest

from gpushare.runtime.clock import SystemClock
from gpushare.runtime.hang_up import hang_up

FOR_EVER_S = 1000.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def test_it_ends_with_the_peer_and_reads_what_the_peer_still_sends(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    thread = threading.Thread(target=hang_up, args=(ours,), kwargs={"clock": SystemClock(), "wait_s": FOR_EVER_S})
    thread.start()
    assert theirs.recv(1) == b""
    theirs.sendall(b"x" * 10000)
    theirs.close()
    thread.join()


def test_a_peer_that_sends_for_ever_is_not_read_for_ever(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    thread = threading.Thread(target=hang_up, args=(ours,), kwargs={"clock": SystemClock(), "wait_s": FOR_EVER_S})
    thread.start()
    theirs.sendall(b"x" * 65536)
    thread.join()


def test_a_peer_that_stays_connected_is_given_up_and_close_does_not_wait_again(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    hang_up(ours, clock=SystemClock(), wait_s=0.01)
    assert theirs.recv(1) == b""
    ours.setblocking(False)
    assert ours.recv(1) == b""


def test_a_peer_that_has_left_is_no_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    ours.close()
    hang_up(ours, clock=SystemClock())
