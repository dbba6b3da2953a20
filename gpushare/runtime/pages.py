"""A few pages over HTTP, such as metrics and the answers of probes, on a port of their own."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from gpushare.runtime import http, logs
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.http import HttpServer, Request, Response
from gpushare.runtime.intake import SMALL, ByteBudget

_LOG: Final = logging.getLogger(__name__)
_AT_ONCE: Final = 64  # connections
_THREADS: Final = 8
_FRESH_S: Final = 1.0
_SHARE: Final = 10.0
"""A page is kept for so many times as long as it took to make: that of 5,000 nodes takes half a second."""


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
    return Response(503 if problem else 200, f"{problem or 'ok'}\n".encode(), http.TEXT)


def answer(pages: Mapping[str, Callable[[], Response]], request: Request) -> Response:
    """Answer GET and HEAD with the page of its path."""
    page = pages.get(request.path)
    if page is None:
        return Response(404, b"not found\n", http.TEXT)
    if request.method not in {"GET", "HEAD"}:
        return Response(405, b"only GET is allowed here\n", http.TEXT)
    try:
        return page()
    except Exception:  # noqa: BLE001 - the edge of a request
        logs.event(_LOG, "request failed", level=logging.ERROR, exc_info=True, path=request.path)
        return Response(500, b"internal error\n", http.TEXT)


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
            application=http.wsgi(lambda request: answer(self.pages, request)),
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
