"""KubeApi over HTTP: plain dictionaries, a deadline on everything.

The official client is not used for requests: importing it costs the device plugin most of its start-up second and its
memory, and models drop fields that they do not know. It reads kubeconfig files (`gpushare.kube.credentials`).
"""

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar, Unpack

import orjson

from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Page, Params, Patch, PatchKind, Precondition, Reply, WriteOptions
from gpushare.kube.credentials import Credentials, of_kubeconfig, of_pod
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
LARGEST: Final = 16 * 2**20  # bytes of an object in JSON. What etcd stores is smaller, whatever it holds.
_LIST: Final = re.compile(rb'"items"\s*:\s*\[')
_START: Final = re.compile(rb'\{\s*"[^"\\]{1,64}"\s*:')
_MARGIN: Final = 128  # bytes; more than either of these patterns takes
T = TypeVar("T")


def connect(kubeconfig: str = "", context: str = "") -> "RestClient":
    """A client for the cluster of a kubeconfig file, or else for that of this process. May raise a SettingsError."""
    return RestClient(of_kubeconfig(kubeconfig, context) if kubeconfig else of_pod())


def connect_as(kubeconfig: str = "", context: str = "") -> Callable[[str], "RestClient"]:
    """The same for users of tokens, over shared connections: a certificate of ours would count before a token."""
    own = of_kubeconfig(kubeconfig, context) if kubeconfig else of_pod()
    bare = replace(own, cert_file=None, key_file=None)
    transport = Transport(bare)
    return lambda token: RestClient(replace(bare, token_source=lambda: token), transport=transport)


class RestClient:
    """The verbs of KubeApi at one server. Safe for use by many threads."""

    def __init__(
        self, credentials: Credentials, *, clock: Clock | None = None, transport: Transport | None = None
    ) -> None:
        self._token_source = credentials.token_source
        self._clock = clock or SystemClock()
        self._token: str | None = None
        self._token_failed = False
        self._large = threading.Lock()
        self._transport = transport or Transport(credentials)

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
            return page_in(f"GET {path}", self._until(until, chunks), keep)

    def create(self, path: str, body: JsonObject, **options: Unpack[WriteOptions]) -> JsonObject:
        return self._object("POST", path, body=body, **options)

    def replace(self, path: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        return self._object("PUT", path, body=body, timeout_s=timeout_s)

    def patch(
        self, path: str, body: Patch, *, kind: PatchKind = PatchKind.MERGE, **options: Unpack[WriteOptions]
    ) -> JsonObject:
        return self._object("PATCH", path, body=body, media=kind.value, **options)

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
        body: Patch | None = None,
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
            yield from map(_event, lines_in(chunks))
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
    with contextlib.suppress(ValueError):
        return parsedate_to_datetime(header) if header else None
    return None


# Lists and watches, read from a stream of bytes object by object. Tenants decide how large objects are: of 1.5 MiB in
# etcd they can make 9 MiB of JSON and 75 MiB of parsed values, and a page has hundreds of objects. So no more than one
# object is ever in memory unreduced, whatever the answer has.


def page_in(what: str, chunks: Iterable[bytes], keep: Callable[[JsonObject], T]) -> Page[T]:
    """A page of a list from the body of an answer; `keep` reduces each object at once, `what` is for messages.

    Raises ServerFaultError: it is none.
    """
    objects = _Objects(chunks)
    try:
        # By map, which lets go of an object before it asks for the next one.
        kept = list(map(keep, objects))
    except ValueError as error:
        raise kube.ServerFaultError(f"{what}: answer is not a list ({error})") from error
    metadata = objects.envelope.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(version, str) or not version:
        raise kube.ServerFaultError(f"{what}: answer is not a list (no resourceVersion); is there a proxy in between?")
    return Page(items=kept, version=version, more=str(metadata.get("continue") or ""))


def lines_in(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream, without empty ones; an unfinished last one is left out.

    Raises ValueError: a line is larger than any object.
    """
    rest = bytearray()
    for chunk in chunks:
        sought = len(rest)
        rest += chunk
        while (end := rest.find(b"\n", sought)) >= 0:
            line = bytes(rest[:end])
            del rest[: end + 1]
            sought = 0
            if line:
                yield line
        if len(rest) > LARGEST:
            raise ValueError(f"a line is larger than {LARGEST} bytes")


class _Objects:
    """The objects of a list in JSON. To be iterated over once; raises a ValueError for what is no list."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.envelope: JsonObject = {}  # the list without its items; complete after the last object
        self._chunks = iter(chunks)
        self._buffer = bytearray()
        self._separator = b""

    def __iter__(self) -> Iterator[JsonObject]:
        head = self._head()
        if head is None:  # `items` is missing or null
            self.envelope = _envelope(fields.parse_json(bytes(self._buffer)))
            if self.envelope.get("items") is not None:
                raise ValueError("items is not a list")
            return
        byte = self._peek()
        while byte != b"]":
            yield self._object()
            byte = self._peek()
            if byte == b",":
                del self._buffer[:1]
                self._peek()
            elif byte != b"]":
                raise ValueError("an object is followed by neither a comma nor the end of the list")
        while self._more():
            pass
        self.envelope = _envelope(orjson.loads(head + self._buffer))

    def _head(self) -> bytes | None:
        """What stands before the first object."""
        sought = 0
        while (begin := _LIST.search(self._buffer, sought)) is None:
            sought = max(0, len(self._buffer) - _MARGIN)
            if not self._more():
                return None
        head = bytes(self._buffer[: begin.end()])
        del self._buffer[: begin.end()]
        return head

    def _object(self) -> JsonObject:
        """The next one. Where it ends is first guessed: where the next one seems to begin."""
        separator, sought = self._separator or self._learn(), 0
        while (at := self._buffer.find(separator, sought)) < 0 and len(self._buffer) < LARGEST:
            sought = max(0, len(self._buffer) - len(separator))
            if not self._more():
                break
        if at >= 0:
            try:
                return self._taken(at + 1, orjson.loads)
            except orjson.JSONDecodeError:
                pass  # the same bytes stand inside of the object, or it is too deep; a value has one end only
        return self._taken(self._end(), fields.parse_json)

    def _taken(self, end: int, parse: Callable[[bytes], Any]) -> JsonObject:
        value: JsonObject = parse(bytes(self._buffer[:end]))
        del self._buffer[:end]
        return value

    def _learn(self) -> bytes:
        """What stands between two objects, if they begin alike."""
        while len(self._buffer) < _MARGIN and self._more():
            pass
        start = _START.match(self._buffer)
        self._separator = b"}," + (start[0] if start else b"{")
        return self._separator

    def _end(self) -> int:
        """Where the value at the beginning ends, found bracket by bracket."""
        if self._peek() != b"{":
            raise ValueError("an item is not an object")
        depth = at = 0
        while True:
            for token in fields.TOKEN.finditer(self._buffer, at):
                kind = self._buffer[token.start()]
                if kind == fields.QUOTE and token[1] is None:
                    break  # the string goes on in what was not read yet
                at = token.end()
                depth += (kind in b"[{") - (kind in b"]}")
                if depth == 0 and kind != fields.QUOTE:
                    return at
            wanted = 2 * len(self._buffer) - at  # so many that no long string is looked at again and again
            if not self._more():
                raise ValueError("it ends in the middle of an object")
            while len(self._buffer) < wanted and self._more():
                pass

    def _peek(self) -> bytes:
        """The next byte that is not white space."""
        while True:
            blank = len(self._buffer) - len(self._buffer.lstrip())
            del self._buffer[:blank]
            if self._buffer:
                return bytes(self._buffer[:1])
            if not self._more():
                raise ValueError("it ends in the middle of the list")

    def _more(self) -> bool:
        """Read on. Whether there was more."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._buffer += chunk
        if len(self._buffer) - len(chunk) > LARGEST:
            raise ValueError(f"an object is larger than {LARGEST} bytes")
        return True


def _envelope(answer: object) -> JsonObject:
    if not isinstance(answer, dict):
        raise ValueError("the answer is not an object")  # noqa: TRY004 - as for broken JSON
    return answer
