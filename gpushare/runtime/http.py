"""An HTTP server inside a process: waitress, with TLS, and with bounds on what its peers may take.

A request takes a thread when it is there as a whole, so slow peers hold memory, and a main loop ends what is late.
"""

import contextlib
import functools
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from waitress import create_server, wasyncore
from waitress.buffers import OverflowableBuffer
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, TransferEncodingNotImplemented
from waitress.receiver import FixedStreamReceiver
from waitress.task import ThreadedTaskDispatcher, WSGITask

from gpushare.errors import SettingsError
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.runtime.intake import HEAD, SMALL, ByteBudget

_LOG: Final = logging.getLogger(__name__)
CONNECTIONS: Final = 800
"""Others wait in the kernel. With four files for each thread they stay below the usual limit of 1024 open files."""
RECEIVE_S: Final = 10.0  # API servers and kube-scheduler send in milliseconds
REQUEST_S: Final = 60.0  # far longer than they wait, also for what has to be computed
SEND_S: Final = 5.0
LEAVE_S: Final = 2.0
BUDGET_S: Final = 2.0
"""How long after its beginning a large request may wait for memory. Then its sender is told that it may come again."""
CROWDED_S: Final = 1.0  # what remains of these times for a peer whose place, thread or memory others need
LOOK_S: Final = 0.2
_KERNEL: Final = 64 * 1024
"""That the kernel holds of what one connection has received, and of what it has to send. It takes twice as much for
itself, counts it as the container's memory, and without a bound lets fast peers have megabytes."""
_RECORDS: Final = 16  # of TLS, 16 KiB each, that are read in one turn
_BYTES_AFTER_END: Final = 65536  # that are read after the answer, beside what is left of an ordinary body
_PIECE: Final = 256 * 1024
_UNSENT: Final = 64 * 1024
"""Bytes of an answer that wait for their peer without a thread; a longer one holds its thread, as a bound for all."""
_HEADERS: Final = 16 * 1024
_BACKLOG: Final = 2048
RECEIVED: Final = "gpushare.received"
"""In the WSGI environment: monotonic time at which the first bytes of a request were read."""
BUSY: Final = "gpushare.busy"
"""In the WSGI environment: whether others have taken all memory, so that only the beginning of the body is there."""
CLOSE: Final = "gpushare.close"  # a function: no further request is wanted on this connection

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def listen(address: str, port: int, settings: str) -> socket.socket:
    """Open a socket to serve at; `::` is every address, IPv4 as well. No thread is started.

    Raises SettingsError: the address cannot be used; the message begins with these flags and values that say so.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    dual = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error  # its own words repeat the address
        raise SettingsError(f"{settings}: {why}") from error


@dataclass(kw_only=True, eq=False)
class HttpServer:
    """Serves until it is told to stop. To be made in the process that serves: it starts threads."""

    application: Wsgi
    listener: socket.socket
    clock: Clock
    threads: int  # requests that are answered at the same time, beside those that wait
    waiting: frozenset[str] = frozenset()
    """Paths of requests that wait for another server. They have threads of their own, and nothing else waits behind."""
    waiting_threads: int = 0
    most: int  # bytes of the longest body that is read. Of a longer one the application gets the beginning.
    budget: ByteBudget
    keep_alive_s: float
    tls: Callable[[], ssl.SSLContext] | None = None  # for the next connection. May raise OSError.
    connections: int = CONNECTIONS
    crowded_s: float = CROWDED_S
    send_s: float = SEND_S
    tick_s: float = LOOK_S  # how late the main loop may notice that it is to stop, or that somebody is late
    stopping: bool = field(init=False, default=False)
    _sockets: dict[int, Any] = field(init=False, default_factory=dict)
    _server: Any = field(init=False)
    _waiting: Any = field(init=False)
    _looked: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        logging.getLogger("waitress").setLevel(logging.ERROR)  # else it warns of ordinary queues, and tells who leaves
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # connections inherit them
            self.listener.setsockopt(socket.SOL_SOCKET, buffer, _KERNEL)
        self._server = create_server(
            self.application,
            map=self._sockets,
            sockets=[self.listener],
            threads=self.threads,
            connection_limit=self.connections + 2,  # it counts the listener and its own pipe
            recv_bytes=_PIECE,
            inbuf_overflow=2**63,  # nothing goes to temporary files: the file system is read-only
            outbuf_overflow=2**63,
            outbuf_high_watermark=_UNSENT,
            max_request_header_size=_HEADERS,
            max_request_body_size=2**63,  # see `_Parser`
            channel_timeout=2**31,  # by the wall clock; see `_look`
            asyncore_use_poll=True,
            backlog=_BACKLOG,
            ident="",
            clear_untrusted_proxy_headers=False,
            log_socket_errors=False,
        )
        self._server.channel_class, self._server.accept = self._connect, self._accept
        self._waiting = ThreadedTaskDispatcher()
        self._waiting.set_thread_count(self.waiting_threads)

    def serve(self, told_to_stop: Callable[[], bool], beat: Callable[[], None]) -> None:
        """Accept and look after connections until told to stop; `beat` is called at least once a second."""
        while not told_to_stop():
            beat()
            self._turn(self.tick_s)

    def finish(self, beat: Callable[[], None], *, grace_s: float) -> None:
        """Answer what was begun, for so many seconds at most, and close."""
        until = self.clock.monotonic() + grace_s
        self.stopping = True
        wasyncore.dispatcher.close(self._server)  # who connects now is refused, and need not wait for the end
        while self._server.active_channels and self.clock.monotonic() < until:
            beat()
            self._turn(self.tick_s / 10)
        for channel in list(self._server.active_channels.values()):
            channel.end()
        for threads in (self._server.task_dispatcher, self._waiting):
            threads.shutdown(timeout=1)
        wasyncore.close_all(self._sockets)

    def answer(self, channel: "_Channel", path: str) -> None:
        """As soon as a thread is free."""
        (self._waiting if path in self.waiting else self._server.task_dispatcher).add_task(channel)

    def _accept(self) -> Any:
        try:
            return wasyncore.dispatcher.accept(self._server)
        except OSError as error:  # no files or no memory are left; the kernel would call again at once
            logs.event(_LOG, "connection not accepted", level=logging.WARNING, error=str(error))
            self._server.accepting = False  # until `_look`
            return None

    def _connect(self, server: Any, sock: socket.socket, *args: Any, **more: Any) -> None:
        """What waitress makes a channel by. Nothing may be raised: it would close the listener."""
        if self.tls is None:
            _Channel(self, server, sock, *args, **more)
            return
        try:
            secure = self.tls().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:  # there is no certificate, or the peer has left
            sock.close()
        else:
            _TlsChannel(self, server, secure, *args, **more)

    def _turn(self, timeout_s: float) -> None:
        self._look()
        wasyncore.loop(timeout=timeout_s, use_poll=True, map=self._sockets, count=1)

    def _look(self) -> None:
        now, crowded = self.clock.monotonic(), len(self._server.active_channels) >= self.connections
        if now < self._looked + LOOK_S and not (crowded or self.stopping):
            return
        self._server.accepting = not self.stopping
        channels = list(self._server.active_channels.values())
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
            since, limit_s = channel.unsent_since, CROWDED_S if self._server.task_dispatcher.queue else self.send_s
        elif running:
            since, limit_s = running[0].began, REQUEST_S
        elif request is None:
            since, limit_s = channel.since, RECEIVE_S if channel.shakes_hands else self.keep_alive_s
            limit_s, crowded = 0.0 if self.stopping else limit_s, crowded and not channel.answered
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


class _Parser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """A request as it arrives. A large one waits for memory after its headers; too large a one ends after its head."""

    def __init__(self, server: HttpServer, adjustments: Any) -> None:
        super().__init__(adjustments)
        self.began, self.path = server.clock.monotonic(), ""
        self.held = 0
        self.awaits = self.busy = self.cut = False
        self._budget, self._most = server.budget, server.most

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        # An answer to it would have no deadline, and what is refused would be read as if it were not.
        self.expect_continue = False
        if self.chunked or "TRANSFER_ENCODING" in self.headers:
            raise TransferEncodingNotImplemented("Transfer-Encoding is not read; send a Content-Length")
        if self.content_length > self._most:
            self._cut()
        elif self.content_length > SMALL:
            self.awaits = True
            self.take()

    def take(self) -> bool:
        """Whether there is memory for its body."""
        if self._budget.take(self.content_length):
            self.held, self.awaits = self.content_length, False
        return not self.awaits

    def refuse(self) -> bool:
        """Wait for the beginning only, by which the sender is answered. Whether it is there."""
        self.awaits, self.busy = False, True
        self._cut()
        return bool(self.completed)

    def close(self) -> None:
        super().close()
        held, self.held = self.held, 0
        self._budget.give_back(held)

    def _cut(self) -> None:
        beginning = self.get_body_stream().read(HEAD)
        self.close()
        self.cut, self.body_rcv = True, FixedStreamReceiver(HEAD, OverflowableBuffer(2**63))
        self.body_rcv.received(beginning)
        self.completed = self.body_rcv.completed


class _Task(WSGITask):  # type: ignore[misc]  # waitress has no types
    wrote_header: bool

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ |= {RECEIVED: self.request.began, BUSY: self.request.busy, CLOSE: self.set_close_on_finish}
        if self.request.cut:  # clients that fail to send may report that, and not what they were told
            self.channel.to_drop += min(self.request.content_length, self.channel.ours.most)
        if self.request.cut or self.channel.ours.stopping:
            self.set_close_on_finish()
        return environ

    def write(self, data: bytes) -> None:
        if not self.wrote_header and self.content_length == len(data) <= _UNSENT:  # one packet wakes the peer once
            self.channel.write_soon(self.build_response_header() + data)  # which says so where the connection ends
            self.wrote_header, self.content_bytes_written = True, len(data)
            return
        for start in range(0, len(data) or 1, _PIECE):
            super().write(data[start : start + _PIECE])

    def service(self) -> None:
        super().service()
        channel = self.channel
        channel.since, channel.answered, channel.unsent_since = channel.ours.clock.monotonic(), True, None


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """One connection. Says that no more comes before it closes, and waits for the peer to say the same.

    A connection that is closed while bytes are unread is reset, and the peer may lose the answer.
    """

    task_class = _Task
    shakes_hands = False

    def __init__(self, ours: HttpServer, *args: Any, **more: Any) -> None:
        self.ours = ours
        self.since = ours.clock.monotonic()  # when it was opened, or last answered
        self.answered = False
        self.unsent_since: float | None = None
        self.left: float | None = None
        self.request: _Parser | None = None
        self._behind = b""  # that came with the request before it: one is parsed when the one before was answered
        self.to_drop = _BYTES_AFTER_END
        self.parser_class = functools.partial(_Parser, ours)
        super().__init__(*args, **more)

    def refuse(self, request: _Parser) -> None:
        """Answer the request that has not come as a whole, as soon as its beginning is there."""
        if request.refuse():
            with self.requests_lock:
                self._ask(request)

    def end(self) -> None:
        self.left = self.ours.clock.monotonic()
        self.handle_close()

    def writable(self) -> bool:
        """Unlike waitress's, not while a thread answers, which sends by itself: the main loop would run in circles."""
        return bool(super().writable() and (self.will_close or not self.requests or self.total_outbufs_len > _UNSENT))

    def readable(self) -> bool:
        if self._behind and super().readable():
            self.received(self._behind)
        return bool(super().readable() and not (self._behind or (self.request and self.request.awaits)))

    def received(self, data: bytes) -> bool:
        """Unlike waitress's, parses one request at most: thousands fit into a piece, and take megabytes."""
        if self.left is not None:
            self.to_drop -= len(data)
            if self.to_drop < 0:
                self.handle_close()
            return False
        with self.requests_lock:
            if self.will_close or self.close_when_flushed:
                return False
            while data and not self.requests:
                self.request = self.request or self.parser_class(self.adj)
                data = data[self.request.received(data) :]
                if self.request.completed:
                    self._ask(self.request)
        self._behind = data
        return True

    def _ask(self, request: _Parser) -> None:
        """To be called under the lock."""
        self.request = None
        if not request.empty:
            self.requests.append(request)
            self.ours.answer(self, request.path)

    def handle_close(self) -> None:
        if self.request is not None:
            self.request.close()
            self.request = None
        self._behind = b""
        self.shakes_hands = False
        if self.left is None and not self.requests:
            self.left = self.ours.clock.monotonic()
            with contextlib.suppress(OSError):  # the peer has left
                self.socket.shutdown(socket.SHUT_WR)  # from here on without TLS
                self.will_close = self.close_when_flushed = False
                return
        super().handle_close()


class _TlsChannel(_Channel):
    """The main loop reads only while no thread writes, so a connection's TLS is never used by two threads."""

    shakes_hands = True

    def handle_read(self) -> None:
        try:
            if self.shakes_hands:
                self.socket.do_handshake()
                self.shakes_hands, self.since = False, self.ours.clock.monotonic()
            for _ in range(_RECORDS):  # a poll tells of none that has come, but of the next
                if not (self.connected and self.readable()):  # what was received may end it
                    return
                data = self.socket.recv(_PIECE)
                if not data:
                    break
                self.received(data)
            else:
                return
        except (ssl.SSLWantReadError, BlockingIOError):
            return
        except OSError:
            pass
        self.handle_close()

    def send(self, data: bytes, do_close: bool = True) -> int:
        try:
            return int(super().send(data, do_close))
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
