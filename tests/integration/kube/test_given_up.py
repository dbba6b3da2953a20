"""What becomes of a request on which the client has given up."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from gpushare.kube import api as kube
from gpushare.kube.client import RestClient
from gpushare.kube.credentials import Credentials

_WINDOW: bytes = b"x" * 256 * 1024  # more than the server's window takes, less than the client's kernel buffers


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """A server whose kernel accepts a connection and a few bytes, as the near end of a broken network does."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(10)
        yield listener


def test_a_request_that_ran_out_of_time_is_not_delivered_later(deaf: socket.socket) -> None:
    """The kernel would send its buffer for minutes after `close`, and a Binding would arrive under the next leader."""
    rest = RestClient(Credentials(server=f"http://127.0.0.1:{deaf.getsockname()[1]}"))
    with pytest.raises(kube.UnreachableError):
        rest.create("/binding", {"padding": _WINDOW.decode()}, timeout_s=0.3)
    received, _ = deaf.accept()
    with received:
        received.settimeout(10)
        assert not _all_of(received).endswith(b'"}')
    rest.close()


def _all_of(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            found += data
    return found
