"""An HTTP server inside a process: waitress, with bounds on what its peers may take. The door to waitress.

A request takes a thread when it is there as a whole, so slow peers hold memory, and a main loop ends what is late.
"""

import contextlib
import functools
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from waitress import create_server, wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, TransferEncodingNotImplemented
from waitress.task import WSGITask
from waitress.utilities import Error

from gpushare.errors import SettingsError
from gpushare.runtime.clock import Clock
from gpushare.runtime.intake import SMALL, Stream

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
CONNECTIONS: Final = 800
"""Others wait in the kernel. With four files for each thread they stay below the usual limit of 1024 open files."""
RECEIVE_S: Final = 10.0  # API servers and kube-scheduler send in milliseconds
REQUEST_S: Final = 60.0  # far longer than they wait, also for what has to be computed
SEND_S: Final = 5.0
LEAVE_S: Final = 2.0
BUDGET_S: Final = 2.0
"""How long after its beginning a large request may wait for memory. Then its sender is told that it may come again."""
CROWDED_S: Final = 1.0
"""What remains of these times for a peer whose place, thread or memory others need."""
LOOK_S: Final = 0.2
KERNEL_BYTES: Final = 64 * 1024
"""That the kernel holds of what one connection has received, and of what it has to send. It takes twice as much for
itself, counts it as the container's memory, and without a bound lets fast peers have megabytes."""
_BYTES_AFTER_END: Final = 65536  # that are read after the answer
_PIECE: Final = 64 * 1024
_UNSENT: Final = 128 * 1024
"""Bytes of an answer that wait for their peer without a thread; a longer one holds its thread, as a bound for all."""
_HEADERS: Final = 16 * 1024
_BACKLOG: Final = 2048
_RECEIVED, _CLOSE = "gpushare.received", "gpushare.close"  # in the WSGI environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that is there."""

    method: str
    path: str
    """As it was sent, without a query."""
    length: int
    """Bytes of the body."""
    body: Stream
    received: float
    """Monotonic time at which its first bytes were read."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    body: bytes
    content_type: str = JSON
    close: bool = False
    """No further request is wanted on this connection."""


Handler = Callable[[Request], Response]


class ByteBudget:
    """Bytes that all large requests of a server share, from their headers to their answers. Safe for many threads."""

    def __init__(self, size: int) -> None:
        self.left = size
        self._lock = threading.Lock()

    def take(self, amount: int) -> bool:
        """Whether there was so much."""
        with self._lock:
            if taken := amount <= self.left:
                self.left -= amount
            return taken

    def give_back(self, amount: int) -> None:
        """What was taken."""
        with self._lock:
            self.left += amount


def listen(address: str, port: int, settings: str) -> socket.socket:
    """Open a socket whose connections have small buffers in the kernel. No thread is started.

    Args:
        address: of the machine; `::` for all of them, IPv4 as well.
        port: TCP port.
        settings: flags and values that say so, for the message.

    Raises:
        SettingsError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # connections inherit them
            listener.setsockopt(socket.SOL_SOCKET, buffer, KERNEL_BYTES)
        if family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(f"{settings}: {error.strerror or error}") from error
    return listener


@dataclass(kw_only=True, eq=False)
class HttpServer:
    """Serves until it is told to stop. To be made in the process that serves: it starts threads."""

    handler: Handler
    listener: socket.socket
    clock: Clock
    threads: int
    """Requests that are answered at the same time."""
    most: int
    """Bytes of the longest body that is read."""
    budget: ByteBudget
    keep_alive_s: float
    connections: int = CONNECTIONS
    crowded_s: float = CROWDED_S
    tick_s: float = LOOK_S
    """How late the main loop may notice that it is to stop, or that somebody is late."""
    _sockets: dict[int, Any] = field(init=False, default_factory=dict)
    _server: Any = field(init=False)
    _looked: float = field(init=False, default=float("-inf"))
    _stopping: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        logging.getLogger("waitress").setLevel(logging.ERROR)  # else it warns of ordinary queues, and tells who leaves
        self._server = create_server(
            self._application,
            map=self._sockets,
            sockets=[self.listener],
            threads=self.threads,
            connection_limit=self.connections + 2,  # it counts the listener and its own pipe
            recv_bytes=_PIECE,
            inbuf_overflow=2 * self.most,  # nothing goes to temporary files: the file system is read-only
            outbuf_high_watermark=_UNSENT,
            max_request_header_size=_HEADERS,
            max_request_body_size=self.most + 1,  # the first length that it refuses
            channel_timeout=2**31,  # by the wall clock; see `_look`
            asyncore_use_poll=True,
            backlog=_BACKLOG,
            ident="",
            clear_untrusted_proxy_headers=False,
            log_socket_errors=False,
        )
        self._server.channel_class = functools.partial(_Channel, self)

    def serve(self, told_to_stop: Callable[[], bool], beat: Callable[[], None]) -> None:
        """Accept and look after connections until told to stop; `beat` is called at least once a second."""
        while not told_to_stop():
            beat()
            self._turn(self.tick_s)

    def finish(self, beat: Callable[[], None], *, grace_s: float) -> None:
        """Answer what was begun, for so many seconds at most, and close."""
        until = self.clock.monotonic() + grace_s
        self._stopping, self._server.accepting = True, False
        while self._server.active_channels and self.clock.monotonic() < until:
            beat()
            self._turn(self.tick_s / 10)
        for channel in list(self._server.active_channels.values()):
            channel.end()
        self._server.task_dispatcher.shutdown(timeout=1)
        wasyncore.close_all(self._sockets)

    def _turn(self, timeout_s: float) -> None:
        self._look()
        wasyncore.loop(timeout=timeout_s, use_poll=True, map=self._sockets, count=1)

    def _application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(
            method=environ["REQUEST_METHOD"],
            path=environ["REQUEST_URI"].partition("?")[0],
            length=int(environ.get("CONTENT_LENGTH") or 0),
            body=environ["wsgi.input"],
            received=environ[_RECEIVED],
        )
        response = self.handler(request)
        body = response.body
        headers = [("Content-Type", response.content_type), ("Content-Length", str(len(body)))]
        start_response(f"{response.status} {HTTPStatus(response.status).phrase}", headers)
        if response.close or self._stopping:
            environ[_CLOSE]()
        if request.method == "HEAD":
            return ()
        return (body[start : start + _PIECE] for start in range(0, len(body), _PIECE))

    def _look(self) -> None:
        """End the connections that are late."""
        now, channels = self.clock.monotonic(), list(self._server.active_channels.values())
        crowded = len(channels) >= self.connections
        if now < self._looked + LOOK_S and not (crowded or self._stopping):
            return
        if crowded:
            self._keep_fewer(channels)
        short = [each for each in channels if each.request and each.request.awaits and not each.request.take()]
        for channel in channels:
            self._look_at(channel, now, crowded=crowded, short=bool(short))
        self._looked = now

    def _look_at(self, channel: "_Channel", now: float, *, crowded: bool, short: bool) -> None:
        request, running = channel.request, [*channel.requests]
        if not channel.total_outbufs_len:
            channel.unsent_since = None
        elif channel.unsent_since is None:
            channel.unsent_since = now
        if channel.left is not None:
            since, limit_s = channel.left, LEAVE_S
        elif channel.unsent_since is not None:
            since, limit_s = channel.unsent_since, CROWDED_S if self._server.task_dispatcher.queue else SEND_S
        elif running:
            since, limit_s = running[0].began, REQUEST_S
        elif request is None:
            since, limit_s = channel.since, 0.0 if self._stopping else self.keep_alive_s
            crowded = crowded and not channel.answered
        elif request.awaits or (short and request.held):
            if now >= request.began + (BUDGET_S if request.awaits and not crowded else CROWDED_S):
                channel.refuse(request)
            return
        else:
            since, limit_s = request.began, RECEIVE_S
        if now >= since + (min(self.crowded_s, limit_s) if crowded and not running else limit_s):
            channel.end()

    def _keep_fewer(self, channels: Iterable["_Channel"]) -> None:
        """End those of the kept connections that asked longest ago, until they leave half of all places to others."""
        idle = [one for one in channels if one.answered and one.left is None and not (one.request or one.requests)]
        for one in sorted(idle, key=lambda one: one.since)[: max(0, len(idle) - self.connections // 2)]:
            one.end()


class _BusyError(Error):  # type: ignore[misc]  # waitress has no types
    code = HTTPStatus.SERVICE_UNAVAILABLE.value
    reason = HTTPStatus.SERVICE_UNAVAILABLE.phrase


class _Parser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """A request as it arrives. A large one waits for memory after its headers."""

    def __init__(self, server: HttpServer, adjustments: Any) -> None:
        super().__init__(adjustments)
        self.began = server.clock.monotonic()
        self.held = 0
        self.awaits = False
        self._server = server

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        # An answer to it would have no deadline, and what is refused would be read as if it were not.
        self.expect_continue = False
        if self.chunked or "TRANSFER_ENCODING" in self.headers:
            raise TransferEncodingNotImplemented("Transfer-Encoding is not read; send a Content-Length")
        self.awaits = SMALL < self.content_length <= self._server.most
        if self.awaits:
            self.take()

    def take(self) -> bool:
        """Whether there is memory for its body."""
        if self._server.budget.take(self.content_length):
            self.held, self.awaits = self.content_length, False
        return not self.awaits

    def close(self) -> None:
        super().close()
        held, self.held = self.held, 0
        self._server.budget.give_back(held)


class _Task(WSGITask):  # type: ignore[misc]  # waitress has no types
    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ[_RECEIVED], environ[_CLOSE] = self.request.began, self.set_close_on_finish
        return environ

    def service(self) -> None:
        super().service()
        self.channel.note_answer()


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """One connection. Says that no more comes before it closes, and waits for the peer to say the same.

    A connection that is closed while bytes are unread is reset, and the peer may lose the answer.
    """

    task_class = _Task

    def __init__(self, ours: HttpServer, *args: Any, **more: Any) -> None:
        self.since = ours.clock.monotonic()
        """When it was opened, or last answered."""
        self.answered = False
        self.unsent_since: float | None = None
        self.left: float | None = None
        self.request: _Parser | None = None
        self._ours, self._dropped = ours, 0
        self.parser_class = functools.partial(_Parser, ours)
        super().__init__(*args, **more)

    def note_answer(self) -> None:
        self.since, self.answered, self.unsent_since = self._ours.clock.monotonic(), True, None

    def refuse(self, request: _Parser) -> None:
        """Answer the request that has not come as a whole: there is no memory for it."""
        with self.requests_lock:
            self.request = None
            request.close()
            request.error, request.completed = _BusyError("other large requests are being answered; try again"), True
            self.requests.append(request)
        self.server.add_task(self)

    def end(self) -> None:
        """Close at once."""
        self.left = self._ours.clock.monotonic()
        self.handle_close()

    def readable(self) -> bool:
        return bool(super().readable() and not (self.request and self.request.awaits))

    def received(self, data: bytes) -> bool:
        if self.left is None:
            return bool(super().received(data))
        self._dropped += len(data)
        if self._dropped > _BYTES_AFTER_END:
            self.handle_close()
        return False

    def handle_close(self) -> None:
        if self.request is not None:
            self.request.close()
            self.request = None
        if self.left is None:
            self.left = self._ours.clock.monotonic()
            with contextlib.suppress(OSError):  # the peer has left
                self.socket.shutdown(socket.SHUT_WR)
                self.will_close = self.close_when_flushed = False
                return
        super().handle_close()
