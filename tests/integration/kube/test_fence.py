"""What is sent, and when: never after the question whether it still may be, and never without a deadline."""

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import urllib3

from gpushare.kube import api as kube, client
from gpushare.kube.client import RestClient
from gpushare.kube.credentials import Credentials
from testing.clock import ManualClock
from testing.webhook import authority_and_leaf


@contextmanager
def listening(
    serve: Callable[[socket.socket], bytes], server: str = "http://127.0.0.1:{}", **credentials: Any
) -> Iterator[tuple[RestClient, list[bytes]]]:
    """A client of a server for one connection, and what that was sent."""
    sent: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(10)
                sent.append(serve(connection))

        thread = threading.Thread(target=accept)
        thread.start()
        with closing(RestClient(Credentials(server=server.format(listener.getsockname()[1]), **credentials))) as rest:
            yield rest, sent
        thread.join()


def drip(connection: socket.socket, text: bytes) -> bytes:
    """Answers byte by byte, each well within any timeout, and forever."""
    connection.recv(65536)
    connection.sendall(text)
    with suppress(OSError):
        while True:
            time.sleep(0.02)
            connection.sendall(b" ")
    return b""


def everything(connection: socket.socket) -> bytes:
    """Until the client closes, which resets the connection."""
    found = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65536):
            found += data
    return found


def answered(connection: socket.socket, end: bytes | tuple[bytes, ...]) -> bytes:
    """A request that ends so, which is answered with an empty object."""
    request = b""
    while not request.endswith(end):
        request += connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    return request


@pytest.fixture
def lead() -> Mock:
    """Whether the leader's lease is held."""
    return Mock(return_value=True)


def test_the_lead_that_ends_while_the_token_is_read_sends_nothing(lead: Mock) -> None:
    def slow_token() -> str:
        lead.return_value = False
        return "secret"

    with listening(everything, token_source=slow_token) as (rest, sent), pytest.raises(kube.NotSentError):
        rest.create("/bindings", {"target": "node-a"}, precondition=lead)
    assert sent == [b""]


def test_the_lead_that_ends_during_the_handshake_sends_nothing(lead: Mock, tmp_path: Path) -> None:
    ca, leaf = authority_and_leaf()
    (tmp_path / "ca.crt").write_bytes(ca.certificate)
    (tmp_path / "tls.pem").write_bytes(leaf.key + leaf.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.pem")

    def serve(connection: socket.socket) -> bytes:
        lead.return_value = False
        with context.wrap_socket(connection, server_side=True) as wrapped:
            return everything(wrapped)

    secure = listening(serve, "https://localhost:{}", ca_file=str(tmp_path / "ca.crt"))
    with secure as (rest, sent), pytest.raises(kube.NotSentError):
        rest.patch("/pods/p", {"metadata": {}}, precondition=lead)
    assert sent == [b""]


def test_a_deletion_without_a_body_is_sent_only_while_the_lead_is_held(lead: Mock) -> None:
    with listening(partial(answered, end=b"{}")) as (rest, sent):
        assert rest.delete("/pods/p", precondition=lead) == {}
    assert b"Content-Length: 2\r\n" in sent[0]
    lead.return_value = False
    with listening(everything) as (rest, sent), pytest.raises(kube.NotSentError):
        rest.delete("/pods/p", precondition=lead)
    assert sent == [b""]


def test_reading_the_token_counts_against_the_deadline(lead: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    given: list[float] = []

    def slow_token() -> str:
        clock.at += 9
        return "secret"

    def request(*_args: object, timeout: urllib3.Timeout, **_options: object) -> None:
        assert isinstance(timeout.total, float)
        given.append(timeout.total)
        raise OSError("that is enough")

    rest = RestClient(Credentials(server="http://127.0.0.1", token_source=slow_token), clock=clock)
    monkeypatch.setattr(urllib3.HTTPConnectionPool, "urlopen", request)
    for timeout_s in (10.0, 5.0):
        with pytest.raises(kube.UnreachableError):
            rest.create("/bindings", {"target": "node-a"}, timeout_s=timeout_s, precondition=lead)
    rest.close()
    assert given == [1, 0.001]


def test_the_leader_sends_the_whole_request_when_the_connection_stands(lead: Mock) -> None:
    connected = threading.Event()

    def serve(connection: socket.socket) -> bytes:
        connected.set()
        return everything(connection)

    def asked() -> bool:
        return not connected.wait(10)

    with listening(serve) as (rest, sent), pytest.raises(kube.NotSentError):
        rest.create("/bindings", {"target": "node-a"}, precondition=asked)
    assert sent == [b""]
    with listening(partial(answered, end=b'{"target":"node-a"}')) as (rest, sent):
        assert rest.create("/bindings", {"target": "node-a"}, precondition=lead) == {}
    assert b"Content-Length: 19\r\n" in sent[0]
    assert b"Transfer-Encoding" not in sent[0]


def test_requests_go_below_the_path_of_the_server_and_through_connections_that_were_kept(lead: Mock) -> None:
    def answer(connection: socket.socket) -> bytes:
        requests = [answered(connection, (b"\r\n\r\n", b"{}")) for _ in range(3)]
        return b"\n".join(request.partition(b"\r\n")[0] for request in requests)

    with listening(answer, "http://127.0.0.1:{}/k8s/clusters/c/") as (rest, sent):
        rest.create("/bindings", {}, params={"timeout": "2s"}, precondition=lead)
        rest.get("/pods", {"labelSelector": "a=b,c"})
        rest.create("/bindings", {})
    assert sent[0].splitlines() == [
        b"POST /k8s/clusters/c/bindings?timeout=2s HTTP/1.1",
        b"GET /k8s/clusters/c/pods?labelSelector=a%3Db%2Cc HTTP/1.1",
        b"POST /k8s/clusters/c/bindings HTTP/1.1",
    ]


def test_a_request_that_ran_out_of_time_is_not_delivered_later() -> None:
    """The kernel would send its buffer for minutes after `close`, and a Binding would arrive under the next leader."""
    padding = "x" * 256 * 1024  # more than the server's window takes, less than the client's kernel buffers
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        deaf.settimeout(10)
        rest = RestClient(Credentials(server=f"http://127.0.0.1:{deaf.getsockname()[1]}"))
        with pytest.raises(kube.UnreachableError):
            rest.create("/binding", {"padding": padding}, timeout_s=0.3)
        received, _ = deaf.accept()
        with received:
            received.settimeout(10)
            assert not everything(received).endswith(b'"}')
        rest.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nX-Header: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nf4240\r\n",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000\r\n\r\n",
    ],
    ids=["status", "header", "body", "chunk", "error"],
)
def test_a_dripping_answer_ends_at_its_deadline(text: bytes) -> None:
    with listening(partial(drip, text=text)) as (rest, _), pytest.raises(kube.UnreachableError, match="GET /x: "):
        rest.get("/x", timeout_s=0.3)


def test_a_quiet_watch_is_cut_before_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "QUIET_S", 0.2)
    event = b'{"type":"ADDED","object":{}}\n'

    def serve(connection: socket.socket) -> bytes:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(event), event))
        return everything(connection)

    with listening(serve) as (rest, _):
        events = rest.watch("/x", {}, timeout_s=300)
        assert next(events) == {"type": "ADDED", "object": {}}
        with pytest.raises(kube.UnreachableError, match="GET /x: "):
            next(events)


def test_without_a_token_the_fix_is_named() -> None:
    error = RuntimeError("exec: no such plugin")
    rest = RestClient(Credentials(server="http://127.0.0.1:9", token_source=Mock(side_effect=error)))
    message = (
        "no token for the API server (RuntimeError: exec: no such plugin); check the pod's service account volume, or"
        " the authentication plug-in that the kubeconfig names"
    )
    with pytest.raises(kube.UnauthorizedError, match=f"^{re.escape(message)}$"):
        rest.get("/x")
    with pytest.raises(kube.UnauthorizedError):
        list(rest.watch("/x", {}, timeout_s=1))


def test_while_the_token_cannot_be_renewed_the_old_one_is_used(caplog: pytest.LogCaptureFixture) -> None:
    error = FileNotFoundError("/token")
    source = Mock(side_effect=["a", error, error, "b", error])
    rest = RestClient(Credentials(server="http://127.0.0.1:9", token_source=source))
    assert [rest._current_token() for _ in range(5)] == ["a", "a", "a", "b", "b"]
    assert caplog.messages == ["token not renewed"] * 2  # once for each failure, not for each request
