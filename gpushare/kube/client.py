"""KubeApi over HTTP: plain dictionaries, a deadline on everything.

The official client is not used for requests: importing it costs the device plugin most of its start-up second and its
memory, and models drop fields that they do not know. It reads kubeconfig files (`gpushare.kube.config`).
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import Any, Final, TypeVar, Unpack

import orjson

from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare.kube import stream
from gpushare.kube.api import JsonObject, Page, Params, PatchKind, Precondition, Reply, WriteOptions
from gpushare.kube.credentials import Credentials, in_cluster, own_namespace
from gpushare.kube.transport import HttpReply, Transport
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.wire import fields

_LOG: Final = logging.getLogger(__name__)
_USER_AGENT: Final = "gpushare"
_GRACE_S: Final = 15.0  # a watch may end this much later than asked
# A watch that says nothing for so long is cut and resumed. Bookmarks come about once a minute; without them a quiet
# collection costs one request in this time, and a peer that accepts bytes but never answers is noticed.
QUIET_S: Final = 100.0
_LIST_QUIET_S: Final = 30.0  # a server that makes a long list says nothing at first
_NOT_REACHED: Final = "error trying to reach service"  # of older API servers' proxies, in plain text
_LARGE: Final = 2**20  # bytes; no usual object is, and parsed it may be ten times as large
T = TypeVar("T")


def connect(kubeconfig: str = "", context: str = "") -> "RestClient":
    """A client for the cluster of a kubeconfig file, or else for that of this process. May raise a SettingsError."""
    if not kubeconfig:
        return RestClient(in_cluster())
    return RestClient(_config().load(kubeconfig, context))


def namespace(kubeconfig: str = "", context: str = "") -> str:
    """What a user means who names none: the kubeconfig context's, or else this pod's. May raise a SettingsError."""
    return _config().namespace(kubeconfig, context) if kubeconfig else own_namespace()


def context_name(kubeconfig: str = "", context: str = "") -> str:
    """The given or the current context's; empty in a pod. May raise a SettingsError."""
    return context or (str(_config().context_name(kubeconfig)) if kubeconfig else "")


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
    """The verbs of KubeApi at one server. Safe for use by many threads."""

    def __init__(self, credentials: Credentials, *, clock: Clock | None = None) -> None:
        self._token_source = credentials.token_source
        self._clock = clock or SystemClock()
        self._token: str | None = None
        self._token_failed = False
        self._large = threading.Lock()
        self._transport = Transport(credentials, self._clock)

    def get(self, path: str, params: Params | None = None, *, timeout_s: float = 5.0) -> JsonObject:
        return self._object("GET", path, params, timeout_s=timeout_s)

    def read_object(self, path: str, *, keep: Callable[[JsonObject], T], timeout_s: float = 5.0) -> T:
        answer = self._call("GET", path, timeout_s=timeout_s)
        with self._large if len(answer.data) > _LARGE else contextlib.nullcontext():
            return keep(_an_object(answer))

    def list_page(
        self, path: str, params: Params | None = None, *, keep: Callable[[JsonObject], T], timeout_s: float = 300.0
    ) -> Page[T]:
        until = self._clock.monotonic() + timeout_s
        quiet_s = min(timeout_s, _LIST_QUIET_S)
        with self._transport.opened(path, params, self._headers(), quiet_s=quiet_s) as chunks:
            return stream.page(f"GET {path}", self._until(until, chunks), keep)

    def create(
        self, path: str, body: JsonObject, params: Params | None = None, **options: Unpack[WriteOptions]
    ) -> JsonObject:
        return self._object("POST", path, params, body=body, **options)

    def replace(self, path: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        return self._object("PUT", path, body=body, timeout_s=timeout_s)

    def patch(
        self,
        path: str,
        body: JsonObject | Sequence[JsonObject],
        *,
        kind: PatchKind = PatchKind.MERGE,
        params: Params | None = None,
        **options: Unpack[WriteOptions],
    ) -> JsonObject:
        return self._object("PATCH", path, params, body=body, media=kind.value, **options)

    def delete(self, path: str, body: JsonObject | None = None, **options: Unpack[WriteOptions]) -> JsonObject:
        return self._object("DELETE", path, body=body, **options)

    def watch(self, path: str, params: Params, *, timeout_s: float) -> Iterator[JsonObject]:
        query = {**params, "watch": "true", "timeoutSeconds": str(int(timeout_s))}
        quiet_s = min(timeout_s + _GRACE_S, QUIET_S)
        with contextlib.ExitStack() as opened:
            chunks = opened.enter_context(self._transport.opened(path, query, self._headers(), quiet_s=quiet_s))
            return _events(path, chunks, opened.pop_all())

    def ask(self, path: str, *, timeout_s: float = 5.0) -> Reply:
        return _reply(self._call("GET", path, timeout_s=timeout_s))

    def close(self) -> None:
        self._transport.close()

    def _until(self, until: float, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._clock.monotonic() > until:
                raise TimeoutError("the answer took longer than its deadline")
            yield chunk

    def _object(self, method: str, path: str, params: Params | None = None, **options: Any) -> JsonObject:
        return _an_object(self._call(method, path, params, **options))

    def _call(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        *,
        timeout_s: float = 5.0,
        body: JsonObject | Sequence[JsonObject] | None = None,
        media: str = "application/json",
        precondition: Precondition | None = None,
    ) -> HttpReply:
        until = self._clock.monotonic() + timeout_s
        headers = self._headers()
        if body is None and precondition is not None:
            body = {}  # which asks for the precondition
        data = None if body is None else orjson.dumps(body)
        if data is not None:
            headers |= {"Content-Type": media, "Content-Length": str(len(data))}
        return self._transport.call(
            method,
            path,
            params,
            headers,
            body=_guarded(data, precondition) if data is not None and precondition is not None else data,
            timeout_s=max(until - self._clock.monotonic(), 0.001),  # reading the token may have taken long
        )

    def _headers(self) -> dict[str, str]:
        token = self._current_token()
        headers = {"Accept": "application/json", "User-Agent": _USER_AGENT}
        return {**headers, "Authorization": f"Bearer {token}"} if token else headers

    def _current_token(self) -> str | None:
        """The token to send. While the source fails, the last one: it may well be valid still."""
        try:
            self._token = self._token_source()
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


def _guarded(body: bytes, precondition: kube.Precondition) -> Iterator[bytes]:
    """A request's body, for which the connection asks when it stands and before anything is sent."""
    if not precondition():
        raise kube.NotSentError("not sent: what it depends on ended before")
    yield body


def _events(path: str, chunks: Iterable[bytes], opened: contextlib.ExitStack) -> Iterator[JsonObject]:
    with opened:
        try:
            # By map, which does not hold an object, perhaps a large one, while it waits for the next one.
            yield from map(_event, stream.lines(chunks))
        except (ValueError, WireError) as error:
            # Not a cut: resumed at the same version, it would come again.
            problem = f"watch {path}: unreadable event ({error}); is there a proxy in between?"
            raise kube.ServerFaultError(problem) from error


def _event(line: bytes) -> JsonObject:
    return fields.an_object(fields.parse_json(line), "")


def _an_object(answer: HttpReply) -> JsonObject:
    if not 200 <= answer.status < 300:
        raise kube.error_in(answer.status, answer.data)
    try:
        return fields.an_object(fields.parse_json(answer.data), "")
    except (ValueError, WireError) as problem:
        raise kube.ServerFaultError(f"{answer.what}: unreadable answer ({problem})") from problem


def _reply(answer: HttpReply) -> Reply:
    """What an endpoint said; raises if the API server itself said no, or could not reach it."""
    status = kube.status_in(answer.data)
    if status is not None and status.get("status") == "Failure":
        raise kube.error_in(answer.status, answer.data)
    said = Reply(status=answer.status, text=answer.data.decode("utf-8", "replace"), at=_moment(answer.date))
    if said.status >= 500 and said.text.lower().startswith(_NOT_REACHED):
        raise kube.error_of(said.status, said.brief)
    return said


def _moment(header: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(header) if header else None
    except ValueError:
        return None
