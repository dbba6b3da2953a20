"""What is answered over HTTP: requests and responses as values, and a few pages, such as metrics and probes."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from gpushare.runtime import http, logs
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.http import HttpServer
from gpushare.runtime.intake import SMALL, ByteBudget, Stream

_LOG: Final = logging.getLogger(__name__)
JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
_AT_ONCE: Final = 64  # connections
_THREADS: Final = 8
_FRESH_S: Final = 1.0
_SHARE: Final = 10.0
"""A page is kept for so many times as long as it took to make: that of 5,000 nodes takes half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str  # as it was sent, without a query
    length: int  # of the body, in bytes
    body: Stream
    received: float  # see `http.RECEIVED`
    busy: bool = False  # see `http.BUSY`
    environ: Mapping[str, Any] = field(default_factory=dict)

    def header(self, name: str, default: str = "") -> str:
        return str(self.environ.get(f"HTTP_{name.upper().replace('-', '_')}", default))


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    content_type: str = JSON
    close: bool = False  # no further request is wanted on this connection
    headers: Mapping[str, str] = field(default_factory=dict)  # further ones


Handler = Callable[[Request], Response]


def wsgi(handler: Handler) -> http.Wsgi:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(
            method=environ["REQUEST_METHOD"],
            path=environ["REQUEST_URI"].partition("?")[0],
            length=int(environ.get("CONTENT_LENGTH") or 0),
            body=environ["wsgi.input"],
            received=environ[http.RECEIVED],
            busy=environ[http.BUSY],
            environ=environ,
        )
        response = handler(request)
        headers = {"Content-Type": response.content_type, "Content-Length": str(len(response.body)), **response.headers}
        start_response(f"{response.status} {HTTPStatus(response.status).phrase}", list(headers.items()))
        if response.close:
            environ[http.CLOSE]()
        return () if request.method == "HEAD" else (response.body,)

    return application


class Kept:
    """A page that is made once a second at most, and takes a tenth of a processor at most, however many ask."""

    def __init__(self, make: Callable[[], Response], clock: Clock) -> None:
        self._make, self._clock = make, clock
        self._lock = threading.Lock()
        self._made: Response | None = None
        self._due = float("-inf")

    def __call__(self) -> Response:
        with self._lock:
            began = self._clock.monotonic()
            if self._made is None or began >= self._due:
                self._made = self._make()
                self._due = began + max(_FRESH_S, _SHARE * (self._clock.monotonic() - began))
            return self._made


def verdict(problem: str) -> Response:
    """The answer of a probe: what is wrong, or nothing."""
    return Response(503 if problem else 200, f"{problem or 'ok'}\n".encode(), TEXT)


def answer(pages: Mapping[str, Callable[[], Response]], request: Request) -> Response:
    """Answer GET and HEAD with the page of its path."""
    page = pages.get(request.path)
    if page is None:
        return Response(404, b"not found\n", TEXT)
    if request.method not in {"GET", "HEAD"}:
        return Response(405, b"only GET is allowed here\n", TEXT)
    try:
        return page()
    except Exception:  # noqa: BLE001 - the edge of a request
        logs.event(_LOG, "request failed", level=logging.ERROR, exc_info=True, path=request.path)
        return Response(500, b"internal error\n", TEXT)


class PageServer:
    def __init__(self, address: str, port: int, settings: str) -> None:
        self.pages: Mapping[str, Callable[[], Response]] = {}  # to be set before `start`
        self._listener = http.listen(address, port, settings)
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="pages", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._told.set()
        self._thread.join()

    def _serve(self) -> None:
        server = HttpServer(
            application=wsgi(lambda request: answer(self.pages, request)),
            listener=self._listener,
            clock=SystemClock(),
            threads=_THREADS,
            most=SMALL,
            budget=ByteBudget(0),
            keep_alive_s=http.RECEIVE_S,
            connections=_AT_ONCE,
            crowded_s=0.0,  # neither many idle clients nor slow ones keep others out
        )
        server.serve(self._told.is_set, lambda: None)
        server.finish(lambda: None, grace_s=0.0)
