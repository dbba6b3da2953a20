"""The webhook's worker on sockets, without a server."""

import socket
from concurrent.futures import Future
from dataclasses import fields
from typing import Any

import pytest
from gunicorn.workers.gthread import TConn, ThreadWorker

from gpushare.runtime.hang_up import Deadlines
from gpushare.runtime.worker import CONNECTIONS, Worker
from webhook.settings import Settings


class Config:
    keepalive = 75


class Hurried:
    """Every look at it costs more time than a peer is given."""

    at = 0.0

    def monotonic(self) -> float:
        self.at += 10
        return self.at


@pytest.mark.parametrize("again", [False, True])
def test_the_main_loop_waits_for_no_peer_that_stays_connected(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = object.__new__(Worker)
    worker.clock = Hurried()  # type: ignore[assignment]  # as much of a clock as is asked
    worker.deadlines = Deadlines(worker.clock)
    monkeypatch.setattr(ThreadWorker, "handle", lambda _worker, _conn: again)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert worker.handle(TConn(Config(), ours, "", "")) is again
        ours.setblocking(False)
        if again:
            with pytest.raises(BlockingIOError):
                ours.recv(1)
        else:
            assert ours.recv(1) == b""  # what gunicorn's `close` waits for


def test_connections_do_not_use_up_the_usual_limit_of_open_files() -> None:
    threads: Any = next(field.default for field in fields(Settings) if field.name == "threads")
    assert CONNECTIONS + 4 * threads < 1024 - 64


def test_a_connection_that_was_closed_already_is_counted_once() -> None:
    """As after a TLS handshake that the peer broke off: else each lets one more connection in than there may be."""
    worker = object.__new__(Worker)
    worker.nr_conns, answered = 5, Future[bool]()
    answered.set_result(False)
    ours, theirs = socket.socketpair()
    connection = TConn(Config(), ours, "", "")
    ours.close()
    worker.finish_request(connection, answered)
    assert worker.nr_conns == 4
    theirs.close()
