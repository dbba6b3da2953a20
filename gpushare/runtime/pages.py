"""A few pages over HTTP, such as metrics and the answers of probes, on a port of their own."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, cast

from gpushare.errors import SettingsError
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
_AT_ONCE: Final = 64  # connections
_TIMEOUT_S: Final = 5.0
_FRESH_S: Final = 1.0
_SHARE: Final = 10.0
"""A page is kept for so many times as long as it took to make: that of 5,000 nodes takes half a second."""
_LONGEST: Final = 16 * 1024
"""Bytes of a request that are read: the library alone would keep 6 MiB of headers of each connection."""
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    body: bytes
    content_type: str = TEXT


class Kept:
    """A page that is made once a second at most, and takes a tenth of a processor at most, however many ask."""

    def __init__(self, make: Callable[[], Page], clock: Clock) -> None:
        self._make, self._clock = make, clock
        self._lock = threading.Lock()
        self._made: Page | None = None
        self._due = float("-inf")

    def __call__(self) -> Page:
        """The page of this moment, or of a little while ago."""
        with self._lock:
            began = self._clock.monotonic()
            if self._made is None or began >= self._due:
                self._made = self._make()
                self._due = began + max(_FRESH_S, _SHARE * (self._clock.monotonic() - began))
            return self._made


def verdict(problem: str) -> Page:
    """The answer of a probe: what is wrong, or nothing."""
    return Page(503 if problem else 200, f"{problem or 'ok'}\n".encode())


class PageServer:
    """Answers GET for a few paths."""

    def __init__(self, address: str, port: int, settings: str) -> None:
        """Open the socket.

        Args:
            address: of the machine; `::` for all of them, IPv4 as well.
            port: TCP port.
            settings: flags and values that say so, for the message.

        Raises:
            SettingsError: the address cannot be used.
        """
        self.pages: Mapping[str, Callable[[], Page]] = {}
        """To be set before `start`."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT_S

            def setup(self) -> None:
                super().setup()
                self.rfile = cast(Any, _Bounded(self.rfile, _LONGEST))

            def do_GET(self) -> None:
                answer = server.answer(self.path)
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                """Requests are not logged."""

        try:
            self._server = _Server(address, port, Handler)
        except OSError as error:
            raise SettingsError(f"{settings}: {error.strerror or error}") from error

    def start(self) -> None:
        """Answer in the background, in this process."""
        threading.Thread(target=self._server.serve_forever, name="pages", daemon=True).start()

    def stop(self) -> None:
        """Close the socket."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> Page:
        """One page."""
        page = self.pages.get(path)
        if page is None:
            return Page(404, b"not found\n")
        try:
            return page()
        except Exception:  # noqa: BLE001 - the edge of a request
            logs.event(_LOG, "request failed", level=logging.ERROR, exc_info=True, path=path)
            return Page(500, b"internal error\n")


class _Bounded:
    """The first bytes of a stream; what is cut off is as if the client had not sent it."""

    def __init__(self, stream: BufferedIOBase, most: int) -> None:
        self._stream, self._left = stream, most

    def readline(self, size: int) -> bytes:
        line = self._stream.readline(min(size, self._left))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._stream.close()


class _Server(ThreadingMixIn, TCPServer):
    """Keeps the newest connections, so that neither many idle clients nor slow ones keep others out."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._open: dict[socket.socket, None] = {}  # in the order of arrival
        self._lock = threading.Lock()
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > _AT_ONCE else None
        if oldest is not None:
            self._forget(oldest)
            with contextlib.suppress(OSError):  # it has just ended
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end and returns
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._forget(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no event."""

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)
