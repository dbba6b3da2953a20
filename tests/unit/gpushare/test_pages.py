"""A server of a few pages: probes and metrics."""

import contextlib
import http.client
import socket
from collections.abc import Callable, Iterator

import pytest

from gpushare.errors import SettingsError
from gpushare.runtime.pages import Kept, PageServer, Response, verdict
from testing.clock import ManualClock
from testing.fakes.http_server import free_port


def boom() -> Response:
    raise RuntimeError("boom")


@pytest.fixture
def port() -> Iterator[int]:
    pages: dict[str, Callable[[], Response]] = {
        "/livez": lambda: verdict(""),
        "/readyz": lambda: verdict("not now"),
        "/metrics": lambda: Response(200, b"one 1\n", "text/x"),
        "/broken": boom,
    }
    number = free_port()
    server = PageServer("127.0.0.1", number, "--port")
    server.pages = pages
    server.start()
    yield number
    server.stop()


def ask(port: int, path: str) -> tuple[int, str, bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()


def test_probes_and_metrics_are_answered(port: int, caplog: pytest.LogCaptureFixture) -> None:
    text = "text/plain; charset=utf-8"
    assert ask(port, "/livez") == (200, text, b"ok\n")
    assert ask(port, "/readyz") == (503, text, b"not now\n")
    assert ask(port, "/metrics") == (200, "text/x", b"one 1\n")
    assert ask(port, "/bind") == (404, text, b"not found\n")
    assert caplog.messages == []
    assert ask(port, "/broken") == (500, text, b"internal error\n")
    assert caplog.messages == ["request failed"]


def test_clients_that_connect_and_say_nothing_keep_no_probe_out(port: int) -> None:
    with contextlib.ExitStack() as idle:
        for _ in range(300):
            idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        assert ask(port, "/livez")[0] == 200


@pytest.mark.parametrize("begin", [b"GET /livez HTTP/1.0\r\nX: ", b"GET /"])
def test_no_more_is_read_of_a_request_than_one_needs(port: int, begin: bytes) -> None:
    """The end of what is too long is not waited for."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(begin + b"a" * 30_000)
        received = b""
        with contextlib.suppress(ConnectionError):  # the end of a connection of which not all was read
            while part := client.recv(4096):
                received += part
    assert b" 431 " in received


def test_a_port_that_is_taken_is_a_message_and_all_addresses_are_those_of_both_versions(port: int) -> None:
    with pytest.raises(SettingsError, match=r"^--port 1: Address already in use$"):
        PageServer("127.0.0.1", port, "--port 1")
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    number = free_port()
    server = PageServer("::", number, "--port")
    server.pages = {"/livez": lambda: verdict("")}
    server.start()
    assert ask(number, "/livez")[0] == 200
    server.stop()


@pytest.mark.parametrize(("takes_s", "made"), [(0.0, 100), (0.1, 100), (0.5, 20), (2.0, 5)])
def test_a_page_that_is_asked_for_all_the_time_takes_a_tenth_of_a_processor(takes_s: float, made: int) -> None:
    """That of a large cluster takes half a second, which the threads that answer kube-scheduler have to wait for."""
    clock, pages = ManualClock(), []

    def make() -> Response:
        clock.at += takes_s
        pages.append(Response(200, b"page"))
        return pages[-1]

    kept, end = Kept(make, clock), clock.at + 100
    while clock.at < end:
        assert kept() is pages[-1]
        clock.at += 0.0625
    assert len(pages) * 0.85 <= made <= len(pages) * 1.15
