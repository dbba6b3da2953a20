"""Servers that drip: every answer has one deadline, however many bytes arrive before it."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from gpushare.kube import api, client
from gpushare.kube.client import RestClient
from gpushare.kube.credentials import Credentials


class Dripping:
    """Sends a text byte by byte, each well within any timeout, and then forever spaces."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._stop = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._socket.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(self._text)
                while not self._stop.wait(0.02):
                    peer.sendall(b" ")

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()


@contextlib.contextmanager
def dripping(text: bytes) -> Iterator[RestClient]:
    server = Dripping(text)
    rest = RestClient(Credentials(server=server.url))
    yield rest
    rest.close()
    server.close()


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
    with dripping(text) as rest, pytest.raises(api.UnreachableError, match="GET /x: "):
        rest.get("/x", timeout_s=0.3)


def test_a_quiet_watch_is_cut_before_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "QUIET_S", 0.2)
    event = b'{"type":"ADDED","object":{}}\n'
    server = socket.create_server(("127.0.0.1", 0))
    rest = RestClient(Credentials(server=f"http://127.0.0.1:{server.getsockname()[1]}"))

    def serve() -> socket.socket:
        peer, _ = server.accept()
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(event), event))
        return peer

    peers: list[socket.socket] = []
    thread = threading.Thread(target=lambda: peers.append(serve()))
    thread.start()
    events = rest.watch("/x", {}, timeout_s=300)
    assert next(events) == {"type": "ADDED", "object": {}}
    with pytest.raises(api.UnreachableError, match="GET /x: "):
        next(events)
    thread.join()
    peers[0].close()
    rest.close()
    server.close()


class Source:
    """A source of tokens: those listed, or the errors."""

    def __init__(self, *script: str | Exception) -> None:
        self._script = list(script)

    def __call__(self) -> str | None:
        answer = self._script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "No such file", "/token"), PermissionError("no"), RuntimeError("exec: no such plugin")],
)
def test_without_a_token_the_fix_is_named(error: Exception) -> None:
    rest = RestClient(Credentials(server="http://127.0.0.1:9", token_source=Source(error, error)))
    message = (
        f"no token for the API server ({type(error).__name__}: {error}); check the pod's service account volume, or the"
        " authentication plug-in that the kubeconfig names"
    )
    with pytest.raises(api.UnauthorizedError, match=f"^{re.escape(message)}$"):
        rest.get("/x")
    with pytest.raises(api.UnauthorizedError):
        list(rest.watch("/x", {}, timeout_s=1))


def test_while_the_token_cannot_be_renewed_the_old_one_is_used(caplog: pytest.LogCaptureFixture) -> None:
    error = FileNotFoundError("/token")
    rest = RestClient(Credentials(server="http://127.0.0.1:9", token_source=Source("a", error, error, "b", error)))
    assert [rest._current_token() for _ in range(5)] == ["a", "a", "a", "b", "b"]
    assert caplog.messages == ["token not renewed"] * 2  # once for each failure, not for each request
