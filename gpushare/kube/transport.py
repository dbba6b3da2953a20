"""HTTP to one server: pooled connections and a deadline on everything. The only importer of urllib3."""

import contextlib
import http.client
import io
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import urllib3

from gpushare.kube import api as kube
from gpushare.kube.api import Params
from gpushare.kube.credentials import Credentials
from gpushare.runtime.clock import SystemClock

_CLOCK: Final = SystemClock()
_POOL: Final = 32  # concurrent binds plus watches
_CONNECT_S: Final = 5.0
_CHUNK: Final = 65536
_LARGEST_ERROR: Final = 65536
# Closing discards what was not delivered, also when the process is killed. Otherwise the kernel goes on sending for
# minutes, and a Binding on which its sender has given up would arrive under the next leader.
_ABORT: Final = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
_KEEPALIVE: Final = [
    *urllib3.connection.HTTPConnection.default_socket_options,
    # A peer that vanished without a word is noticed after about 30 s, not after the watch's whole timeout.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"), 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """What came back, read whole."""

    what: str  # the request, for messages
    status: int
    data: bytes
    date: str | None  # the header


class Transport:
    """Connections to one server. Safe for use by many threads. What goes wrong with them is an UnreachableError."""

    def __init__(self, credentials: Credentials) -> None:
        self._server = credentials.server.rstrip("/")
        tls: dict[str, Any] = {}
        if credentials.server.startswith("https"):
            tls = {
                "ca_certs": credentials.ca_file,
                "cert_reqs": "CERT_REQUIRED" if credentials.verify else "CERT_NONE",
                "cert_file": credentials.cert_file,
                "key_file": credentials.key_file,
            }
        given = {key: value for key, value in tls.items() if value is not None}
        self._streams = urllib3.PoolManager(maxsize=_POOL, retries=False, socket_options=_KEEPALIVE, **given)
        self._calls = urllib3.PoolManager(maxsize=_POOL, retries=False, socket_options=[*_KEEPALIVE, _ABORT], **given)
        self._calls.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def call(
        self,
        method: str,
        path: str,
        params: Params | None,
        headers: Mapping[str, str],
        *,
        body: bytes | Iterable[bytes] | None,
        timeout_s: float,
    ) -> HttpReply:
        """A request and its answer, which is read whole within so many seconds."""
        what = f"{method} {path}"
        with _unreachable(what):
            response = self._calls.urlopen(
                method,
                self._server + _query(path, params),
                redirect=False,
                body=body,
                headers=headers,
                timeout=_timeout(timeout_s),
            )
        return HttpReply(what=what, status=response.status, data=response.data, date=response.headers.get("Date"))

    @contextlib.contextmanager
    def opened(
        self, path: str, params: Params | None, headers: Mapping[str, str], *, quiet_s: float
    ) -> Iterator[Iterator[bytes]]:
        """The body of an answer to a GET, piece by piece, each of which may take so many seconds.

        The connection is used again if the body was read whole.
        """
        with _unreachable(f"GET {path}"):
            response = self._streams.request(
                "GET",
                self._server + _query(path, params),
                headers=headers,
                timeout=_timeout(quiet_s),
                preload_content=False,
            )
            try:
                if response.status != 200:
                    raise kube.error_in(response.status, response.read(_LARGEST_ERROR))
                yield response.stream(_CHUNK, decode_content=True)
            finally:
                response.close()

    def close(self) -> None:
        self._calls.clear()
        self._streams.clear()


def _query(path: str, params: Params | None) -> str:
    return path + (f"?{urlencode(params)}" if params else "")


@contextlib.contextmanager
def _unreachable(what: str) -> Iterator[None]:
    try:
        yield
    except urllib3.exceptions.NewConnectionError as error:
        # Is a ConnectTimeoutError as well, and names the cause after a colon.
        raise kube.UnreachableError(f"{what}: {str(error).partition(': ')[2]}") from error
    except urllib3.exceptions.ConnectTimeoutError as error:
        raise kube.UnreachableError(f"{what}: the server did not accept a connection in time") from error
    except urllib3.exceptions.ReadTimeoutError as error:
        # Its own words name a class and what was left of the deadline.
        raise kube.UnreachableError(f"{what}: the server did not answer in time") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise kube.UnreachableError(f"{what}: {error}") from error


def _timeout(seconds: float) -> urllib3.Timeout:
    return urllib3.Timeout(connect=_CONNECT_S, total=seconds)


class _Timed(io.RawIOBase):
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)
        self._timeout = sock.gettimeout() or 0.0  # every call has one
        self._until = _CLOCK.monotonic() + self._timeout

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - _CLOCK.monotonic()
        if left <= 0:
            raise TimeoutError("the answer took longer than its deadline")
        self._sock.settimeout(left)
        try:
            return self._file.readinto(buffer)
        finally:
            self._sock.settimeout(self._timeout)  # what the connection's next request starts with

    def close(self) -> None:
        self._file.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """A response, headers included, that has to be read whole within the socket's timeout, from the start of reading.

    urllib3's own timeout bounds each wait for bytes only.
    """

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Timed(sock))


class _Connection(urllib3.connection.HTTPConnection):
    """Sends a request's headers together with its body, in one TLS record if that is small.

    So nothing was sent when the body is asked for, and the connection stands already.
    """

    response_class = _TimedResponse
    _unsent: bytes | None = None
    _has_body = False

    def request(self, method: str, url: str, body: Any = None, *args: Any, **options: Any) -> None:
        if self.sock is None:
            self.connect()
        self._unsent, self._has_body = None, body is not None
        super().request(method, url, body, *args, **options)

    def send(self, data: Any) -> None:
        if self._has_body and self._unsent is None:
            self._unsent = data
            return
        if self._unsent is not None:
            data, self._unsent, self._has_body = self._unsent + data, None, False
        super().send(data)


class _TlsConnection(_Connection, urllib3.connection.HTTPSConnection): ...


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection
