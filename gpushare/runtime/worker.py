"""gunicorn's threaded worker, in which a thread is taken only by a request that is there as a whole.

gunicorn reads with one thread for each connection, so that as many slow peers as there are threads stop a server, and
anyone in the cluster may connect. Here its main loop waits for all of them, with the means by which gunicorn itself
waits for idle connections. A thread may still have to wait for a peer that reads slowly, for a time that has a bound.
"""

import functools
import itertools
import logging
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from gunicorn import http
from gunicorn import sock as sockets
from gunicorn.glogging import Logger as GunicornLogger
from gunicorn.workers.gthread import ThreadWorker

from gpushare.runtime import serving
from gpushare.runtime.arrival import BUSY, RECEIVED, Arrival, Progress, Room
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.serving import Deadlines

Wsgi = Callable[..., Any]


class Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """No peer holds its main loop, nor a thread for long."""

    clock: Clock = SystemClock()
    most: int
    """Bytes of the longest body that the application reads."""
    room: int
    """Bytes for all requests above 64 KiB, from their headers to their answers."""
    nr_conns: int

    def __init__(self, *args: Any) -> None:
        """See ThreadWorker."""
        super().__init__(*args)
        self._deadlines = Deadlines(self.clock)
        self._room = Room(self.room)
        self._current = threading.local()
        self._queued = set[Any]()
        self._waiting = dict[Any, Progress]()
        self._looked = self.clock.monotonic()
        self.max_keepalived = self.worker_connections  # else who came first is kept, and all others are not

    def load_wsgi(self) -> None:
        """See ThreadWorker."""
        super().load_wsgi()
        self.wsgi: Wsgi = self.timed(self.wsgi)

    def timed(self, application: Wsgi) -> Wsgi:
        """An application that is told when its request came, and whose answer has a deadline."""

        def call(environ: dict[str, Any], start_response: Wsgi) -> Any:
            connection = self._current.connection
            environ[RECEIVED], environ[BUSY] = connection.arrival.began, connection.arrival.busy
            answer = application(environ, start_response)
            self._deadlines.answering(connection)
            return answer

        return call

    def notify(self) -> None:
        """See ThreadWorker: called at least once a second, by the main loop."""
        super().notify()
        self.look()

    def enqueue_req(self, conn: Any) -> None:
        """See ThreadWorker."""
        conn.received = self.clock.monotonic()
        if not hasattr(conn, "arrival"):
            conn.arrival, conn.opened, conn.left = Arrival(room=self._room, most=self.most), conn.received, None
            _narrow(conn)
        self._queued.add(conn)
        super().enqueue_req(conn)

    def handle(self, conn: Any) -> Any:
        """See ThreadWorker. What the connection waits for; True: the next request, False: nothing."""
        self._queued.discard(conn)
        if conn.left is not None:
            return _drain(conn)
        if not conn.initialized and (progress := self._secure(conn)) is not Progress.WHOLE:
            return progress
        if (progress := conn.arrival.advance(conn.sock, conn.received)) is Progress.WHOLE:
            self._current.connection = conn
            conn.parser = http.get_parser(self.cfg, conn.arrival.pieces(), conn.client)
            with self._deadlines.bound(conn):
                again = super().handle(conn)
            conn.arrival.answered()
            if conn.is_wide:
                _narrow(conn)
            if not again:
                conn.left = self.clock.monotonic()
                return _hang_up(conn)
            conn.sock.setblocking(False)
            conn.received = self.clock.monotonic()
            progress = conn.arrival.advance(conn.sock, conn.received)
        if conn.arrival.held and not conn.is_wide:
            _widen(conn)
        is_idle = progress is Progress.MORE and conn.parser and conn.arrival.began is None
        return True if is_idle else progress

    def handle_request(self, req: Any, conn: Any) -> Any:
        """See ThreadWorker, which tells a peer to go on. Its body is there, and nothing limits how long that takes."""
        req._expected_100_continue = False
        return super().handle_request(req, conn)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """See ThreadWorker, which waits in its main loop for peers to leave."""
        result = Progress.ENDED if fs.cancelled() or fs.exception() else fs.result()
        if self._sends_too_long(conn):
            result = Progress.ENDED
        if result is Progress.MORE:
            self.poller.register(conn.sock, selectors.EVENT_READ, functools.partial(self._readable, conn))
        if result in (Progress.MORE, Progress.ROOM):
            self._waiting[conn] = result
        elif result in (Progress.WHOLE, Progress.TURN):
            self.enqueue_req(conn)  # behind those who wait for a thread
        elif result is True:
            super().finish_request(conn, fs)
        else:
            self._end(conn)
        self._use_room()

    def look(self) -> None:
        """End the connections that are late."""
        now = self.clock.monotonic()
        if now < self._looked + serving.LOOK_S:
            return
        self._looked = now
        self._deadlines.enforce(hurried=bool(self._queued))
        crowded = self.nr_conns >= self.worker_connections
        if crowded:
            self._keep_fewer()
        short = Progress.ROOM in self._waiting.values()
        for conn, progress in list(self._waiting.items()):
            since, limit_s = self._limit(conn)
            if progress is not Progress.ROOM and now >= since + (min(serving.HURRY_S, limit_s) if crowded else limit_s):
                self._stop_waiting(conn)
                self._end(conn)
            elif (short and conn.arrival.held and now >= since + serving.HURRY_S) or (
                progress is Progress.ROOM and now >= since + (serving.HURRY_S if crowded else serving.ROOM_S)
            ):
                self._stop_waiting(conn)
                conn.arrival.give_up_room()
                self.enqueue_req(conn)
        self._use_room()

    def _keep_fewer(self) -> None:
        """End those of the kept connections that asked longest ago, until they leave half of all places to others."""
        more = max(0, len(self.keepalived_conns) - self.worker_connections // 2)
        for conn in itertools.islice(self.keepalived_conns, more):
            conn.timeout = 0.0
        self.murder_keepalived()

    def _use_room(self) -> None:
        needing = [conn for conn, progress in self._waiting.items() if progress is Progress.ROOM]
        if needing and self._room.freed:
            self._room.freed = False
            for conn in needing:
                self._stop_waiting(conn)
                self.enqueue_req(conn)

    def _sends_too_long(self, conn: Any) -> bool:
        """Whether what is dropped has no end. Such a peer may always be read, and the main loop never see it wait."""
        arrival: Arrival = conn.arrival
        began = arrival.began or 0.0
        return arrival.is_dropping and self.clock.monotonic() >= began + serving.RECEIVE_S

    def _limit(self, conn: Any) -> tuple[float, float]:
        """Since when a connection has been waiting for its peer, and how long it may, in seconds."""
        if conn.left is not None:
            return conn.left, serving.LEAVE_S
        if conn.arrival.began is not None:
            return conn.arrival.began, serving.RECEIVE_S
        if not conn.initialized:
            return conn.opened, serving.RECEIVE_S
        return conn.received, self.cfg.keepalive if self.alive else 0.0

    def _readable(self, conn: Any, _socket: object) -> None:
        self._stop_waiting(conn)
        self.enqueue_req(conn)

    def _stop_waiting(self, conn: Any) -> None:
        if self._waiting.pop(conn) is Progress.MORE:
            self.poller.unregister(conn.sock)

    def _end(self, conn: Any) -> None:
        conn.arrival.close()
        self.nr_conns -= 1
        conn.close()

    def _secure(self, conn: Any) -> Progress:
        try:
            if self.cfg.is_ssl:
                if not isinstance(conn.sock, ssl.SSLSocket):
                    conn.sock = sockets.ssl_wrap_socket(conn.sock, self.cfg)
                conn.sock.do_handshake()
        except ssl.SSLWantReadError:
            return Progress.MORE
        except OSError:
            return Progress.ENDED
        conn.initialized = True
        return Progress.WHOLE


def _narrow(conn: Any) -> None:
    serving.narrow(conn.sock)
    conn.is_wide = False


def _widen(conn: Any) -> None:
    serving.widen(conn.sock)
    conn.is_wide = True


def _hang_up(conn: Any) -> Progress:
    """Say that no more comes, and wait for the peer to say the same.

    A connection that is closed while bytes are unread is reset, and the peer may lose the answer.
    """
    conn.to_drop = serving.MOST_AFTER_END
    try:
        conn.sock.setblocking(False)
        conn.sock.shutdown(socket.SHUT_WR)  # from here on without TLS
    except OSError:
        return Progress.ENDED  # the peer has left
    return _drain(conn)


def _drain(conn: Any) -> Progress:
    try:
        while conn.to_drop > 0 and (data := conn.sock.recv(4096)):
            conn.to_drop -= len(data)
    except BlockingIOError:
        return Progress.MORE
    except OSError:
        pass
    return Progress.ENDED


class Logger(GunicornLogger):  # type: ignore[misc]  # gunicorn has no types
    """Hands everything to the process's own logging."""

    def setup(self, cfg: Any) -> None:
        """See Logger."""
        self.cfg = cfg
        self._access_log_enabled = False
        # Its life cycle lines at INFO say nothing about pods.
        self.error_log.setLevel(logging.WARNING)
        self.error_log.propagate = True
        self.access_log.setLevel(logging.CRITICAL)
