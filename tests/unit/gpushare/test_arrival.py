"""What of a request is waited for, and what is held of it meanwhile."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.runtime.arrival import Arrival, Progress, Room

LARGE = 100_000


def request(length: int, *, sent: int | None = None, name: bytes = b"Content-Length") -> bytes:
    body = b"x" * (length if sent is None else sent)
    return b"POST / HTTP/1.1\r\nHost: x\r\n" + name + b": %d\r\n\r\n" % length + body


class Connection:
    """Both ends, and what has arrived at one of them."""

    def __init__(self, room: int) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.setblocking(False)
        self.room = Room(room)
        self.arrival = Arrival(room=self.room, most=10 * LARGE)

    def send(self, data: bytes, now: float = 0.0) -> Progress:
        """Byte by byte would be too slow; as much as goes at once."""
        progress = self.arrival.advance(self.ours, now)
        while data:
            data = data[self.theirs.send(data) :]
            progress = self.arrival.advance(self.ours, now)
        return progress

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection(room=3 * LARGE)
    yield made
    made.close()


def whole(arrival: Arrival) -> bytes:
    return b"".join(arrival.pieces())


@pytest.mark.parametrize("length", [0, 1, 65536, LARGE, 2 * LARGE])
@pytest.mark.parametrize("name", [b"Content-Length", b"content-length"])
def test_a_request_comes_whole_or_not_at_all(connection: Connection, length: int, name: bytes) -> None:
    sent = request(length, name=name)
    assert connection.send(sent[:-1]) is Progress.MORE
    assert connection.send(sent[-1:]) is Progress.WHOLE
    assert whole(connection.arrival) == sent
    assert not connection.arrival.busy


def test_a_request_without_a_body_ends_with_its_headers(connection: Connection) -> None:
    for sent in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
    ):
        assert connection.send(sent) is Progress.WHOLE
        assert whole(connection.arrival) == sent
        connection.arrival.answered()


@pytest.mark.parametrize("zeros", [1, 17, 18, 4000])
def test_a_length_with_zeros_before_it_is_the_same_length(connection: Connection, zeros: int) -> None:
    """gunicorn takes it so. What is left of a body would be read as the next request."""
    sent = b"POST / HTTP/1.1\r\nContent-Length: " + b"0" * zeros + b"5\r\n\r\nhello"
    assert connection.send(sent[:-1]) is Progress.MORE
    assert connection.send(sent[-1:] + request(3)) is Progress.WHOLE
    assert whole(connection.arrival) == sent
    connection.arrival.answered()
    assert connection.send(b"") is Progress.WHOLE
    assert whole(connection.arrival) == request(3)


def test_its_time_begins_with_its_first_byte(connection: Connection) -> None:
    began = list[float | None]()
    for moment, data in enumerate((b"", b"POST", request(3)[4:], b"", request(3)), start=1):
        if connection.send(data, now=moment) is Progress.WHOLE:
            began.append(connection.arrival.began)
            connection.arrival.answered()
            assert connection.arrival.began is None
    assert began == [2, 5]


def test_the_time_of_what_is_dropped_ends_with_it(connection: Connection) -> None:
    """The next request is as old as its own first byte."""
    length = 10 * LARGE + 1
    for rest, began in ((b"", None), (b"POST", 3)):
        connection.send(request(length, sent=5000), now=1)
        connection.arrival.answered()
        connection.send(b"x" * 1000, now=2)
        assert connection.arrival.began == 1
        assert connection.send(b"x" * (length - 6000) + rest, now=3) is Progress.MORE
        assert connection.arrival.began == began


def test_a_request_that_came_with_the_one_before_is_as_old_as_what_came_last(connection: Connection) -> None:
    connection.send(request(5)[:-1], now=1)
    assert connection.send(request(5)[-1:] + b"POST", now=2) is Progress.WHOLE
    assert connection.arrival.began == 1
    connection.arrival.answered()
    assert connection.arrival.began == 2
    connection.send(request(5)[4:], now=3)
    assert connection.arrival.began == 2


class Endless:
    """A socket on which something is there all the time."""

    def __init__(self, data: bytes, piece: int, most_reads: int) -> None:
        self._data, self._piece, self._most_reads = data, piece, most_reads
        self.reads = 0

    def recv(self, size: int) -> bytes:
        self.reads += 1
        assert self.reads <= self._most_reads
        data, self._data = self._data[:size], self._data[size:]
        return data or b"x" * min(size, self._piece)


@pytest.mark.parametrize("piece", [1, 2**14, 2**20])
def test_a_peer_that_sends_all_the_time_gets_its_turn_and_no_more(piece: int) -> None:
    """Otherwise each such peer would have a thread for ever."""
    arrival = Arrival(room=Room(0), most=LARGE)
    sock: Any = Endless(request(10**17, sent=4096), piece, 200)
    assert arrival.advance(sock, 1) is Progress.WHOLE
    arrival.answered()
    for _ in range(3):
        sock.reads = 0
        assert arrival.advance(sock, 2) is Progress.TURN
        assert sock.reads > 0
        assert arrival.began == 1


def test_a_request_in_small_pieces_takes_turns_with_others() -> None:
    arrival = Arrival(room=Room(2 * LARGE), most=LARGE)
    sock: Any = Endless(request(LARGE, sent=0), 1, 10_000)
    assert arrival.advance(sock, 1) is Progress.TURN
    assert arrival.began == 1


@pytest.mark.parametrize("extra", [0, LARGE])
def test_of_too_long_a_body_only_the_beginning_is_waited_for(connection: Connection, extra: int) -> None:
    """By which its sender is answered; the rest is dropped, and the connection goes on."""
    length = 10 * LARGE + 1
    assert connection.send(request(length, sent=4095), now=1) is Progress.MORE
    assert connection.send(b"x" * (1 + extra)) is Progress.WHOLE
    assert whole(connection.arrival) == request(length, sent=4096)
    assert connection.arrival.held == 0
    connection.arrival.answered()
    assert connection.arrival.began == 1
    assert connection.send(b"x" * (length - 4096 - extra) + request(3)) is Progress.WHOLE
    assert whole(connection.arrival) == request(3)


def test_of_what_is_dropped_nothing_is_kept(connection: Connection) -> None:
    length = 10 * LARGE + 1
    connection.send(request(length, sent=4096 + LARGE))
    connection.arrival.answered()
    for _ in range(5):
        assert connection.send(b"x" * LARGE) is Progress.MORE
        assert connection.arrival._data == b""


def test_headers_without_an_end_end_the_connection(connection: Connection) -> None:
    assert connection.send(b"GET / HTTP/1.1\r\nA: " + b"x" * 32_000) is Progress.MORE
    assert connection.send(b"x" * 1000) is Progress.ENDED


def test_a_large_request_waits_for_room_before_its_body_is_read(connection: Connection) -> None:
    assert connection.room.take(2 * LARGE + 1)
    assert connection.send(request(LARGE, sent=10)) is Progress.ROOM
    assert connection.arrival.advance(connection.ours, 0) is Progress.ROOM
    connection.room.give_back(2 * LARGE + 1)
    assert connection.send(b"x" * (LARGE - 10)) is Progress.WHOLE
    assert connection.arrival.held == len(request(LARGE))
    connection.arrival.answered()
    assert connection.room.take(3 * LARGE)


def test_a_slow_request_gives_its_room_and_its_bytes_up(connection: Connection) -> None:
    assert connection.send(request(LARGE, sent=70_000)) is Progress.MORE
    connection.arrival.give_up_room()
    assert connection.room.take(3 * LARGE)
    assert connection.arrival.advance(connection.ours, 0) is Progress.WHOLE
    assert len(connection.arrival._data) == len(request(LARGE, sent=4096)) == len(whole(connection.arrival))
    connection.arrival.answered()
    assert connection.send(b"x" * (LARGE - 70_000) + request(3)) is Progress.WHOLE
    assert whole(connection.arrival) == request(3)


def test_without_room_the_beginning_is_all_that_is_waited_for(connection: Connection) -> None:
    """Its sender is told so; the connection goes on, and the next request is another one."""
    assert connection.room.take(3 * LARGE)
    assert connection.send(request(LARGE, sent=10)) is Progress.ROOM
    connection.arrival.give_up_room()
    assert connection.send(b"") is Progress.MORE
    assert connection.send(b"x" * 5000) is Progress.WHOLE
    assert (connection.arrival.busy, whole(connection.arrival)) == (True, request(LARGE, sent=4096))
    connection.arrival.answered()
    assert connection.send(b"x" * (LARGE - 5010) + request(3)) is Progress.WHOLE
    assert (connection.arrival.busy, whole(connection.arrival)) == (False, request(3))


def test_a_small_request_needs_no_room(connection: Connection) -> None:
    assert connection.room.take(3 * LARGE)
    assert connection.send(request(65_536)) is Progress.WHOLE
