"""KubeApi over HTTP: pooled connections, plain dictionaries, a deadline on everything.

The official client is not used for requests: importing it costs the device plugin most of its start-up second and its
memory, and models drop fields that they do not know. It reads kubeconfig files (`gpushare.kube.config`).
"""

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import orjson
import urllib3

from gpushare.errors import SettingsError
from gpushare.kube import api as kube
from gpushare.kube import stream
from gpushare.kube.api import JsonObject, Page, Params, PatchKind, Reply
from gpushare.kube.credentials import Credentials, InClusterCredentials, own_namespace
from gpushare.kube.deadline import Answer
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.wire import json

_LOG: Final = logging.getLogger(__name__)
_USER_AGENT: Final = "gpushare"
_POOL: Final = 32  # concurrent binds plus watches
_CONNECT_S: Final = 5.0
_GRACE_S: Final = 15.0  # a watch may end this much later than asked
# A watch that says nothing for so long is cut and resumed. Bookmarks come about once a minute; without them a quiet
# collection costs one request in this time, and a peer that accepts bytes but never answers is noticed.
_QUIET_S: Final = 100.0
_LIST_QUIET_S: Final = 30.0  # a server that makes a long list says nothing at first
_CHUNK: Final = 65536
_LARGEST_ERROR: Final = 65536
_LARGE: Final = 2**20  # bytes; no usual object is, and parsed it may be ten times as large
T = TypeVar("T")
_NOT_REACHED: Final = "error trying to reach service"  # of older API servers' proxies, in plain text
# Closing discards what was not delivered, also when the process is killed. Otherwise the kernel goes on sending for
# minutes, and a Binding on which its sender has given up would arrive under the next leader.
_ABORT: Final = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
_KEEPALIVE: Final = [
    *urllib3.connection.HTTPConnection.default_socket_options,
    # A peer that vanished without a word is noticed after about 30 s, not after the watch's whole timeout.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


def connect(kubeconfig: str = "", context: str = "") -> "RestClient":
    """A client for the cluster of a kubeconfig file, or else for the cluster that this process runs in.

    Raises:
        SettingsError: neither can be used; says what is missing.
    """
    if not kubeconfig:
        return RestClient(InClusterCredentials.load())
    return RestClient(_config().load(kubeconfig, context))


def namespace(kubeconfig: str = "", context: str = "") -> str:
    """The namespace that a user means who names none: of the kubeconfig's context, or else of this process's pod.

    Raises:
        SettingsError: the kubeconfig cannot be used.
    """
    return _config().namespace(kubeconfig, context) if kubeconfig else own_namespace()


def _config() -> ModuleType:
    """Imported late, because it imports the official client."""
    try:
        from gpushare.kube import config
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"a kubeconfig needs the library {error.name}; run: pip install 'gpushare[cli]', or leave the kubeconfig "
            "away to use the pod's service account"
        ) from error
    return config


class RestClient:
    """See KubeApi. Safe for use by many threads."""

    def __init__(self, credentials: Credentials, *, clock: Clock | None = None) -> None:
        self._credentials = credentials
        self._clock = clock or SystemClock()
        self._token: str | None = None
        self._token_failed = False
        self._large = threading.Lock()
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
        self._calls.pool_classes_by_scheme = _pools_with_deadline(self._clock)

    def get(self, path: str, params: Params | None = None, *, timeout_s: float = 5.0) -> JsonObject:
        """See KubeApi."""
        return self._call("GET", path, None, params, timeout_s)

    def read_object(self, path: str, *, keep: Callable[[JsonObject], T], timeout_s: float = 5.0) -> T:
        """See KubeApi."""
        data = _whole(self._send("GET", path, None, None, timeout_s))
        with self._large if len(data) > _LARGE else contextlib.nullcontext():
            return keep(_parsed(f"GET {path}", data))

    def list_page(
        self, path: str, params: Params | None = None, *, keep: Callable[[JsonObject], T], timeout_s: float = 300.0
    ) -> Page[T]:
        """See KubeApi."""
        until = self._clock.monotonic() + timeout_s
        response = self._opened(path, params, min(timeout_s, _LIST_QUIET_S))
        with _reading(f"GET {path}", response):
            return stream.page(f"GET {path}", self._chunks(response, until), keep)

    def create(
        self,
        path: str,
        body: JsonObject,
        params: Params | None = None,
        *,
        timeout_s: float = 5.0,
        precondition: kube.Precondition | None = None,
    ) -> JsonObject:
        """See KubeApi."""
        return self._call("POST", path, body, params, timeout_s, precondition=precondition)

    def replace(self, path: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        """See KubeApi."""
        return self._call("PUT", path, body, None, timeout_s)

    def patch(
        self,
        path: str,
        body: JsonObject | Sequence[JsonObject],
        *,
        kind: PatchKind = PatchKind.MERGE,
        params: Params | None = None,
        timeout_s: float = 5.0,
        precondition: kube.Precondition | None = None,
    ) -> JsonObject:
        """See KubeApi."""
        return self._call("PATCH", path, body, params, timeout_s, content_type=kind.value, precondition=precondition)

    def delete(
        self,
        path: str,
        body: JsonObject | None = None,
        *,
        timeout_s: float = 5.0,
        precondition: kube.Precondition | None = None,
    ) -> JsonObject:
        """See KubeApi."""
        return self._call("DELETE", path, body, None, timeout_s, precondition=precondition)

    def watch(self, path: str, params: Params, *, timeout_s: float) -> Iterator[JsonObject]:
        """See KubeApi."""
        query = {**params, "watch": "true", "timeoutSeconds": str(int(timeout_s))}
        quiet_s = min(timeout_s + _GRACE_S, _QUIET_S)
        return _events(path, self._opened(path, query, quiet_s))

    def ask(self, path: str, *, timeout_s: float = 5.0) -> Reply:
        """See KubeApi."""
        response = self._send("GET", path, None, None, timeout_s)
        status = _status(response.data)
        if status is not None and status.get("status") == "Failure":
            raise _error(response.status, response.data)
        text = response.data.decode("utf-8", "replace")
        reply = Reply(status=response.status, text=text, at=_moment(response.headers.get("Date")))
        if reply.status >= 500 and text.lower().startswith(_NOT_REACHED):
            raise kube.error_of(reply.status, reply.brief)
        return reply

    def close(self) -> None:
        """Close idle connections."""
        self._calls.clear()
        self._streams.clear()

    def _opened(self, path: str, params: Params | None, quiet_s: float) -> urllib3.BaseHTTPResponse:
        """An answer to be read piece by piece, each of which may take so long."""
        response = self._send("GET", path, None, params, quiet_s, stream=True)
        if response.status == 200:
            return response
        with _reading(f"GET {path}", response):
            raise _error(response.status, response.read(_LARGEST_ERROR))

    def _chunks(self, response: urllib3.BaseHTTPResponse, until: float) -> Iterator[bytes]:
        for chunk in response.stream(_CHUNK, decode_content=True):
            if self._clock.monotonic() > until:
                raise TimeoutError("the answer took longer than its deadline")
            yield chunk

    def _call(
        self,
        method: str,
        path: str,
        body: JsonObject | Sequence[JsonObject] | None,
        params: Params | None,
        timeout_s: float,
        *,
        content_type: str = "application/json",
        precondition: kube.Precondition | None = None,
    ) -> JsonObject:
        response = self._send(
            method, path, body, params, timeout_s, content_type=content_type, precondition=precondition
        )
        return _parsed(f"{method} {path}", _whole(response))

    def _send(  # noqa: PLR0913 - all that differs between requests
        self,
        method: str,
        path: str,
        body: JsonObject | Sequence[JsonObject] | None,
        params: Params | None,
        timeout_s: float,
        *,
        content_type: str = "application/json",
        precondition: kube.Precondition | None = None,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        until = self._clock.monotonic() + timeout_s
        url = self._credentials.server.rstrip("/") + path + (f"?{urlencode(params)}" if params else "")
        headers = {"Accept": "application/json", "User-Agent": _USER_AGENT}
        if token := self._current_token():
            headers["Authorization"] = f"Bearer {token}"
        if body is None and precondition is not None:
            body = {}  # the headers alone must not be a whole request
        data = None if body is None else orjson.dumps(body)
        if data is not None:
            headers |= {"Content-Type": content_type, "Content-Length": str(len(data))}
        left_s = max(until - self._clock.monotonic(), 0.001)  # reading the token may have taken long
        try:
            return (self._streams if stream else self._calls).request(
                method,
                url,
                body=_guarded(data, precondition) if data is not None and precondition is not None else data,
                headers=headers,
                timeout=urllib3.Timeout(connect=min(left_s, _CONNECT_S), total=left_s),
                preload_content=not stream,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise kube.UnreachableError(f"{method} {path}: {error}") from error

    def _current_token(self) -> str | None:
        """The token to send. While the source fails, the last one: it may well be valid still."""
        try:
            self._token = self._credentials.token()
        except Exception as error:  # authentication plug-ins and files fail in their own ways
            problem = f"{type(error).__name__}: {str(error)[:300]}"
            if self._token is None:
                raise kube.UnauthorizedError(
                    f"no token for the API server ({problem}); check the pod's service account volume, or the"
                    " authentication plug-in that the kubeconfig names"
                ) from error
            if not self._token_failed:
                logs.event(_LOG, "token not renewed", level=logging.WARNING, error=problem)
            self._token_failed = True
        else:
            self._token_failed = False
        return self._token


def _pools_with_deadline(clock: Clock) -> dict[str, Any]:
    """Pools whose answers have to be read whole within the timeout; urllib3's own bounds each wait for bytes only."""
    answer = staticmethod(partial(Answer, clock=clock))

    class Plain(urllib3.connection.HTTPConnection):
        response_class = answer  # type: ignore[assignment] # called, never asked for its type

    class Tls(urllib3.connection.HTTPSConnection):
        response_class = answer  # type: ignore[assignment] # same

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}


@contextlib.contextmanager
def _reading(what: str, response: urllib3.BaseHTTPResponse) -> Iterator[None]:
    """What goes wrong with the connection is an UnreachableError. It is used again if the answer was read whole."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise kube.UnreachableError(f"{what}: {error}") from error
    finally:
        response.close()


def _whole(response: urllib3.BaseHTTPResponse) -> bytes:
    """The body of an answer to a request that the server agreed to."""
    if not 200 <= response.status < 300:
        raise _error(response.status, response.data)
    return response.data


def _parsed(what: str, data: bytes) -> JsonObject:
    try:
        value = json.parse(data)
    except ValueError as error:
        raise kube.ServerFaultError(f"{what}: answer is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise kube.ServerFaultError(f"{what}: answer is not an object")
    return value


def _guarded(body: bytes, precondition: kube.Precondition) -> Iterator[bytes]:
    """A request's body, for which the connection asks when it stands and the headers are on their way.

    Without its body a request does nothing: the API server waits for as many bytes as the headers say.
    """
    if not precondition():
        raise kube.NotSentError("not sent: what it depends on ended before")
    yield body


def _events(path: str, response: urllib3.BaseHTTPResponse) -> Iterator[JsonObject]:
    with _reading(f"watch {path}", response):
        try:
            yield from map(_event, stream.lines(response.stream(_CHUNK, decode_content=True)))
        except ValueError as error:
            # Not a cut: resumed at the same version, it would come again.
            raise kube.ServerFaultError(f"watch {path}: {error}") from error


def _event(line: bytes) -> JsonObject:
    try:
        value = json.parse(line)
    except ValueError as error:
        raise ValueError(f"broken line ({error})") from error
    if not isinstance(value, dict) or not isinstance(value.get("object"), dict):
        raise ValueError("a line is not an event; is there a proxy in between?")  # noqa: TRY004 - as for broken JSON
    return value


def _error(status: int, body: bytes) -> kube.KubeError:
    """The error for an answer; only the message of a `kind: Status` is kept, so that no data reaches a log."""
    found = _status(body)
    error = kube.error_of(status, f"HTTP {status}" if found is None else str(found.get("message", ""))[:1024])
    metadata = found.get("metadata") if found else None
    if isinstance(error, kube.GoneError) and isinstance(metadata, dict):
        error.more = str(metadata.get("continue") or "")
    return error


def _status(body: bytes) -> JsonObject | None:
    """The API server's own `kind: Status`, if an answer is one."""
    if not body.startswith(b"{"):
        return None
    try:
        value: JsonObject = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if value.get("kind") == "Status" else None


def _moment(header: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(header) if header else None
    except ValueError:
        return None
