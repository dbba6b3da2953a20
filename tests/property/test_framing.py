"""Where a request ends: as it is received, and as gunicorn reads it."""

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from gunicorn import http
from gunicorn.config import Config
from hypothesis import example, given
from hypothesis import strategies as st

from gpushare.runtime import http as lean
from gpushare.runtime.arrival import Arrival, Progress, Room

CONFIG = Config()
PEER = ("192.0.2.1", 1)
LINES = st.sampled_from(
    [
        b"Content-Length: 5",
        b"content-length:\t005 ",
        b"Content-Length: 00000000000000000000005",
        b"Content-Length: 0",
        b"Content-Length: +5",
        b"Content-Length: 5, 5",
        b"Content-Length : 5",
        b"Content-Length: 5_0",
        b"Content-Length:",
        b"Content_Length: 5",
        b" Content-Length: 5",
        b"X: y\nContent-Length: 5",
        b"Connection: close",
        b"Expect: 100-continue",
        b"X: y",
        b"",
    ]
)
ENDS = st.sampled_from([*[b"\r\n"] * 10, b"\n", b"\r"])
BODIES = st.sampled_from([b"", b"hello", b"hell", b"hello\r\n"])
START = st.sampled_from([b"GET /a HTTP/1.1\r\n", b"POST /b HTTP/1.1\r\n", b"POST /c HTTP/1.0\r\n", b"\r\n", b""])
REQUEST = st.builds(
    lambda start, lines, body: start + b"".join(line + end for line, end in lines) + b"\r\n" + body,
    START,
    st.lists(st.tuples(LINES, ENDS), max_size=3),
    BODIES,
)


def read(parser: Any) -> tuple[str, str, bytes] | None:
    """The next request with all of its body; None if there is none that can be answered."""
    with contextlib.suppress(Exception):
        request = next(parser)
        body = request.body.read()
        announced = [int(value) for name, value in request.headers if name == "CONTENT-LENGTH"]
        if [len(body)] == (announced or [0]):
            return request.method, request.uri, body
    return None


def as_gunicorn_reads(data: bytes) -> list[Any]:
    found, parser = [], http.get_parser(CONFIG, iter([data]), PEER)
    while (request := read(parser)) is not None:
        found.append(request)
    return found


def received(data: bytes, pieces: list[int], take: Callable[[Arrival, list[Any]], bool]) -> list[Any]:
    """Requests as they arrive in pieces; `take` adds the next one, and says whether the connection is kept."""
    found, arrival = list[Any](), Arrival(room=Room(0), most=1000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        while (progress := arrival.advance(ours, 0)) is not Progress.ENDED:
            if progress is Progress.WHOLE:
                if not take(arrival, found):
                    break
                arrival.answered()
            elif data:
                size = pieces.pop() if pieces else len(data)
                theirs.sendall(data[:size])
                data = data[size:]
            else:
                theirs.shutdown(socket.SHUT_WR)
    return found


def by_gunicorn(arrival: Arrival, found: list[Any]) -> bool:
    parser = http.get_parser(CONFIG, arrival.pieces(), PEER)
    if (request := read(parser)) is None:
        return False
    found.append(request)
    return not parser.mesg.should_close()


def by_the_lean_server(arrival: Arrival, found: list[Any]) -> bool:
    """By `gpushare.runtime.http`, up to the first request that it refuses."""
    head, body = arrival.taken()
    try:
        parsed = lean.parse(head)
    except lean.BadRequestError:
        return False
    if parsed.chunked:
        return False
    found.append((parsed.method, parsed.path, body.read(parsed.length)))
    return parsed.keep


ZEROS = b"POST /b HTTP/1.1\r\nContent-Length: 00000000000000000000005\r\n\r\nhello"


def test_gunicorn_reads_what_is_compared_with_it() -> None:
    """Otherwise two empty lists would be equal below."""
    assert as_gunicorn_reads(ZEROS + b"GET /a HTTP/1.1\r\n\r\n") == [("POST", "/b", b"hello"), ("GET", "/a", b"")]


@example([ZEROS], [])
@given(st.lists(REQUEST, min_size=1, max_size=3), st.lists(st.integers(1, 40), max_size=5))
def test_requests_are_those_that_gunicorn_reads(requests: list[bytes], pieces: list[int]) -> None:
    data = b"".join(requests)
    assert received(data, pieces, by_gunicorn) == as_gunicorn_reads(data)


@example([b"POST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"GET /a HTTP/1.1\r\n\r\n"], [3, 60])
@example([b"POST /b HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello"], [])
@example([b"GET /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhell", b"GET /a HTTP/1.1\r\n\r\n"], [])
@given(st.lists(REQUEST, min_size=1, max_size=3), st.lists(st.integers(1, 40), max_size=5))
def test_the_lean_server_takes_no_other_bytes_for_a_request(requests: list[bytes], pieces: list[int]) -> None:
    """It refuses more. What it does not refuse ends where it ends for others: no body is read as a request."""
    data = b"".join(requests)
    found = received(data, pieces, by_the_lean_server)
    assert found == as_gunicorn_reads(data)[: len(found)]


def test_the_lean_server_reads_ordinary_requests() -> None:
    """Otherwise an empty list would be the beginning of any."""
    data = b"POST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloGET /a?x HTTP/1.1\r\n\r\n"
    assert received(data, [], by_the_lean_server) == [("POST", "/b", b"hello"), ("GET", "/a", b"")]
