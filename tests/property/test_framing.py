"""Where a request ends: as waitress reads it, and as gunicorn does."""

import contextlib
from typing import Any

from gunicorn import http
from gunicorn.config import Config
from hypothesis import example, given
from hypothesis import strategies as st
from waitress.adjustments import Adjustments
from waitress.parser import HTTPRequestParser

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


def as_waitress_reads(data: bytes, pieces: list[int]) -> list[Any]:
    """Requests as they arrive in pieces, up to the first that it refuses, or after which the connection ends."""
    found, parser = list[Any](), HTTPRequestParser(Adjustments())
    while data:
        size = pieces.pop() if pieces else len(data)
        piece, data = data[:size], data[size:]
        while piece:
            piece = piece[parser.received(piece) :]
            if not parser.completed:
                continue
            if parser.error:
                return found
            if not parser.empty:
                found.append((parser.command, parser.path, parser.get_body_stream().read()))
                if parser.connection_close:
                    return found
            parser = HTTPRequestParser(Adjustments())
    return found


ZEROS = b"POST /b HTTP/1.1\r\nContent-Length: 00000000000000000000005\r\n\r\nhello"


def test_gunicorn_reads_what_is_compared_with_it() -> None:
    """Otherwise two empty lists would be equal below."""
    assert as_gunicorn_reads(ZEROS + b"GET /a HTTP/1.1\r\n\r\n") == [("POST", "/b", b"hello"), ("GET", "/a", b"")]


@example([b"POST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"GET /a HTTP/1.1\r\n\r\n"], [3, 60])
@example([b"POST /b HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello"], [])
@example([b"GET /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhell", b"GET /a HTTP/1.1\r\n\r\n"], [])
@given(st.lists(REQUEST, min_size=1, max_size=3), st.lists(st.integers(1, 40), max_size=5))
def test_waitress_takes_no_other_bytes_for_a_request(requests: list[bytes], pieces: list[int]) -> None:
    """Either may refuse what the other takes. What both take ends at the same byte: no body is read as a request."""
    data = b"".join(requests)
    assert all(
        ours == theirs for ours, theirs in zip(as_waitress_reads(data, pieces), as_gunicorn_reads(data), strict=False)
    )


def test_waitress_reads_ordinary_requests() -> None:
    """Otherwise an empty list would be the beginning of any."""
    data = b"POST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloGET /a?x HTTP/1.1\r\n\r\n"
    assert as_waitress_reads(data, []) == [("POST", "/b", b"hello"), ("GET", "/a", b"")]
