"""A server with a thread for each connection, where reading and parsing a request is all that it costs.

Peers that are slow hold a thread that waits, but none of the turns in which requests are answered. The main loop ends
what is late, by shutting its socket down, so that no thread looks at the clock for itself.
"""

import contextlib
import errno
import logging
import select
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare.runtime import http, logs, serving
from gpushare.runtime.arrival import Arrival, Progress, Room
from gpushare.runtime.clock import Clock
from gpushare.runtime.conversation import Conversation, Waits
from gpushare.runtime.http import BadRequestError, Request, Response
from gpushare.runtime.serving import Deadlines
from gpushare.runtime.threads import Threads
from gpushare.runtime.turns import Turns

_LOG: Final = logging.getLogger(__name__)
_ROOM_MS: Final = 20  # between looks at whether room was given back
_GIVE_UP_MS: Final = 200  # how late a thread that holds room notices that others need it
_BACKLOG_FULL: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

Handler = Callable[[Request], Response]


@dataclass(kw_only=True, eq=False)
class HttpServer:
    """Serves until it is told to stop."""

    handler: Handler
    listeners: Sequence[socket.socket]
    clock: Clock
    turns: int
    """Requests that are answered at the same time."""
    most: int
    """Bytes of the longest body that the handler reads."""
    room: int
    """Bytes for all requests above 64 KiB, from their headers to their answers."""
    keep_alive_s: float
    connections: int = serving.CONNECTIONS
    tick_s: float = serving.LOOK_S
    """How late the main loop may notice that it is to stop, or that somebody is late."""
    _threads: "Threads[Conversation]" = field(init=False)
    _turns: Turns = field(init=False)
    _room: Room = field(init=False)
    _deadlines: Deadlines = field(init=False)
    _open: dict[Conversation, None] = field(init=False, default_factory=dict)
    """In the order in which they asked last. Changed under the lock."""
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _looked: float = field(init=False, default=float("-inf"))
    _stopping: bool = field(init=False, default=False)
    _never: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._threads = Threads(self._converse)
        self._turns, self._room, self._deadlines = Turns(self.turns), Room(self.room), Deadlines(self.clock)

    def serve(self, told_to_stop: Callable[[], bool], beat: Callable[[], None]) -> None:
        """Accept and look after connections until told to stop; `beat` is called at least once a second."""
        poller = select.poll()
        by_number = {listener.fileno(): listener for listener in self.listeners}
        for listener in self.listeners:
            listener.setblocking(False)
            poller.register(listener, select.POLLIN)
        while not told_to_stop():
            beat()
            self._look()
            if len(self._open) >= self.connections:
                self._never.wait(self.tick_s / 4)
                continue
            for number, _ in poller.poll(self.tick_s * 1000):
                self._accept(by_number[number])

    def finish(self, beat: Callable[[], None], *, grace_s: float) -> None:
        """Answer what was begun, for so many seconds at most, and close."""
        until = self.clock.monotonic() + grace_s
        self._stopping = True
        for listener in self.listeners:
            listener.close()
        while self._open and self.clock.monotonic() < until:
            beat()
            self._look()
            self._never.wait(self.tick_s / 10)
        for conversation in list(self._open):
            conversation.end()
        self._threads.end()

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in _BACKLOG_FULL:
                logs.event(_LOG, "connection not accepted", level=logging.WARNING, error=str(error))
                self._never.wait(self.tick_s)
            return  # the peer has left
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serving.narrow(sock)
        found = Conversation(sock, Arrival(room=self._room, most=self.most), self.clock.monotonic())
        with self._lock:
            self._open[found] = None
        self._threads.give(found)

    # A connection's thread.

    def _converse(self, conversation: Conversation) -> None:
        try:
            self._until_end(conversation)
        except OSError:
            pass  # the peer has left
        except Exception:  # noqa: BLE001 - the top of a thread
            logs.event(_LOG, "connection failed", level=logging.ERROR, exc_info=True)
        finally:
            conversation.arrival.close()
            with self._lock:
                del self._open[conversation]
            conversation.sock.close()

    def _until_end(self, conversation: Conversation) -> None:
        readable, failing = select.poll(), select.poll()
        readable.register(conversation.sock, select.POLLIN)
        failing.register(conversation.sock, 0)
        readable.poll()
        while (progress := self._advance(conversation)) is not Progress.ENDED:
            match progress:
                case Progress.MORE:
                    conversation.waits = Waits.PEER
                    readable.poll(_GIVE_UP_MS if conversation.arrival.held else None)
                case Progress.ROOM:
                    conversation.waits = Waits.ROOM
                    failing.poll(_ROOM_MS)
                case Progress.WHOLE:
                    conversation.waits = Waits.NOTHING
                    if not self._answer(conversation):
                        self._hang_up(conversation, readable)
                        return
                    if conversation.arrival.began is None:
                        readable.poll()

    def _advance(self, conversation: Conversation) -> Progress:
        """Read what there is, with as much in the kernel as the room that it holds allows."""
        arrival = conversation.arrival
        if conversation.gives_up and (arrival.held or conversation.waits is Waits.ROOM):
            arrival.give_up_room()
        conversation.gives_up = False
        progress = arrival.advance(conversation.sock, self.clock.monotonic())
        conversation.fit()
        return progress

    def _answer(self, conversation: Conversation) -> bool:
        """Answer the request that is there. Whether more may follow."""
        arrival = conversation.arrival
        with self._turns.one(), self._deadlines.bound(conversation):
            head, body = arrival.taken()
            try:
                parsed = http.parse(head)
            except BadRequestError as error:
                bad = _bad(error)
                self._send(conversation, http.encode(bad, keep=False), bad.body)
                return False
            received = self.clock.monotonic() if arrival.began is None else arrival.began
            response = self.handler(Request(head=parsed, body=body, received=received, busy=arrival.busy))
            self._deadlines.answering(conversation)
            keep = parsed.keep and not (parsed.chunked or response.close or self._stopping)
            body_sent = b"" if parsed.method == "HEAD" else response.body
            self._send(conversation, http.encode(response, keep=keep), body_sent)
        arrival.answered()
        conversation.fit()
        if keep:
            conversation.since = self.clock.monotonic()
            with self._lock:
                self._open[conversation] = self._open.pop(conversation)
            conversation.kept, conversation.waits = True, Waits.PEER
        return keep

    def _send(self, conversation: Conversation, head: bytes, body: bytes) -> None:
        sock = conversation.sock
        sent = sock.sendmsg((head, body))  # large bodies are not copied
        if sent == len(head) + len(body):
            return
        rest = memoryview(body)[sent - len(head) :] if sent >= len(head) else memoryview(head[sent:] + body)
        writable = select.poll()
        writable.register(sock, select.POLLOUT)
        while rest:
            writable.poll()
            with contextlib.suppress(BlockingIOError):
                rest = rest[sock.send(rest) :]

    def _hang_up(self, conversation: Conversation, readable: select.poll) -> None:
        """Say that no more comes, and wait for the peer to say the same.

        A connection that is closed while bytes are unread is reset, and the peer may lose the answer.
        """
        conversation.since, conversation.waits = self.clock.monotonic(), Waits.END
        conversation.arrival.close()
        conversation.sock.shutdown(socket.SHUT_WR)
        left = serving.MOST_AFTER_END
        while left > 0:
            readable.poll()
            with contextlib.suppress(BlockingIOError):
                data = conversation.sock.recv(4096)
                if not data:
                    return
                left -= len(data)

    # The main loop.

    def _look(self) -> None:
        """End the connections that are late."""
        now = self.clock.monotonic()
        if not self._stopping and now < self._looked + serving.LOOK_S:
            return
        self._deadlines.enforce(hurried=self._turns.awaited)
        with self._lock:
            found = list(self._open)
        crowded = len(found) >= self.connections
        if crowded:
            self._keep_fewer(found)
        short = any(one.waits is Waits.ROOM for one in found)
        for one in found:
            self._look_at(one, now, crowded=crowded, short=short)
        self._looked = now

    def _look_at(self, one: Conversation, now: float, *, crowded: bool, short: bool) -> None:
        if one.waits is Waits.NOTHING:
            return
        since, limit_s = self._limit(one)
        is_idle = one.kept and one.waits is Waits.PEER and one.arrival.began is None
        if one.waits is Waits.ROOM:
            one.gives_up = now >= since + (serving.HURRY_S if crowded else serving.ROOM_S)
        elif now >= since + (min(serving.HURRY_S, limit_s) if crowded and not is_idle else limit_s):
            one.end()
        elif short and one.arrival.held and now >= since + serving.HURRY_S:
            one.gives_up = True

    def _keep_fewer(self, found: Sequence[Conversation]) -> None:
        """End those of the kept connections that asked longest ago, until they leave half of all places to others."""
        idle = [one for one in found if one.kept and one.waits is Waits.PEER and one.arrival.began is None]
        for one in idle[: max(0, len(idle) - self.connections // 2)]:
            one.end()

    def _limit(self, one: Conversation) -> tuple[float, float]:
        """Since when a connection has been waiting, and how long it may, in seconds."""
        if one.waits is Waits.END:
            return one.since, serving.LEAVE_S
        if (began := one.arrival.began) is not None:
            return began, serving.RECEIVE_S
        return one.since, 0.0 if self._stopping else self.keep_alive_s


def _bad(error: BadRequestError) -> Response:
    return Response(400, f"{error}\n".encode(), http.TEXT)
