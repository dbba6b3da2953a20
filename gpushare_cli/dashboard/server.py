"""Serves the page on the loopback address, and streams what changes to it. The only importer of http.server."""

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Final

from gpushare_cli.dashboard import routes
from gpushare_cli.dashboard.feed import Feed
from gpushare_cli.dashboard.routes import Answer, Asset, Request, Site, Stream

LOOPBACK: Final = "127.0.0.1"
_MEDIA: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_RECEIVE_S: Final = 20.0
_SEND_S: Final = 20.0
_ALIVE_S: Final = 10.0
"""After which a stream without changes says that it is there."""
_SPACING_S: Final = 0.25
_BATCH: Final = 65536
"""Bytes that a reader must take within the time for sending."""
_STREAMS: Final = 32
_CONNECTIONS: Final = 128


def assets() -> Mapping[str, Asset]:
    """The files of the page, by path."""
    found: dict[str, Asset] = {}
    for file in resources.files("gpushare_cli.dashboard").joinpath("page").iterdir():
        media = _MEDIA.get(file.name.rpartition(".")[2])
        if media is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = Asset(media=media, body=file.read_bytes())
    return found


@dataclass(kw_only=True, eq=False)
class Served:
    """What all connections share."""

    site: Site
    feed: Feed
    stop: threading.Event
    streams: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(_STREAMS))


class Server(ThreadingHTTPServer):
    """Listens on a port of the loopback address; with a thread for each connection."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, port: int, served: Served) -> None:
        """Takes the port, 0 for one that is free."""
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        self.served = served
        super().__init__((LOOPBACK, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, if there is a place for one more."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has left is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _RECEIVE_S
    server: Server

    def log_message(self, *_: object) -> None:
        """Addresses have the key."""

    def version_string(self) -> str:
        """No versions for the curious."""
        return "gpushare"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # of any method: the site says which are allowed
            return self._serve
        raise AttributeError(name)

    def send_error(self, code: int, *_: object) -> None:
        """For what is no HTTP; as plain text, with nothing of the request in it."""
        self.close_connection = True
        self._send(Answer(status=HTTPStatus(code), body=b"bad request\n"))

    def _serve(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Request(method=self.command, target=self.path, headers=headers)
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            self.close_connection = True  # bodies are not read
        match self.server.served.site.answer(request):
            case Stream(since=since):
                self._stream(since)
            case Answer() as answer:
                self._send(answer)

    def _send(self, answer: Answer) -> None:
        self._head(answer.status, {"Content-Type": answer.media, "Content-Length": str(len(answer.body))}, answer)
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _head(self, status: HTTPStatus, headers: Mapping[str, str], answer: Answer | None = None) -> None:
        self.send_response(status)
        for name, value in {**routes.HEADERS, **headers, **(answer.headers if answer else {})}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _stream(self, since: int) -> None:
        self.close_connection = True
        served = self.server.served
        if not served.streams.acquire(blocking=False):
            busy = f"no more than {_STREAMS} pages at a time; close one\n".encode()
            self._send(Answer(status=HTTPStatus.SERVICE_UNAVAILABLE, body=busy))
            return
        try:
            self.connection.settimeout(_SEND_S)
            self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream"})
            if self.command != "HEAD":
                for part in _parts(served, since):
                    self.wfile.write(part)
        finally:
            served.streams.release()


def _parts(served: Served, since: int) -> Iterator[bytes]:
    """Events of a stream: what has changed since a version, then every change."""
    yield b"retry: 1000\n\n"
    version = since
    while not served.stop.is_set():
        latest = served.feed.wait(version, _ALIVE_S)
        if latest == version:
            yield b": still here\n\n"
            continue
        # A version beyond the latest is none of ours.
        version, pieces = served.feed.since(version if version < latest else 0)
        yield b"id: %s.%d\ndata: " % (served.site.run.encode(), version)
        yield from _batches(pieces)
        yield b"\n\n"
        served.stop.wait(_SPACING_S)


def _batches(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces together: each batch has the whole time for sending, so a slow network gets a large picture too."""
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= _BATCH:
            yield b"".join(batch)
            batch, size = [], 0
    yield b"".join(batch)


@contextlib.contextmanager
def serving(port: int, served: Served) -> Iterator[Server]:
    """Serve until the end of the block.

    Raises:
        OSError: the port is taken.
    """
    server = Server(port, served)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="http", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.served.stop.set()
        server.shutdown()
        with contextlib.suppress(OSError):
            server.socket.shutdown(socket.SHUT_RDWR)
        server.server_close()
        thread.join()
