"""What is a request, and what is none."""

import pytest

from gpushare.runtime import http
from gpushare.runtime.http import BadRequestError, Head, Response


def head(*lines: bytes) -> Head:
    return http.parse(b"\r\n".join([b"POST /a?b=c HTTP/1.1", *lines]))


def test_a_request_is_its_method_path_and_length() -> None:
    found = head(b"Host: x", b"content-LENGTH:  12 ", b"Accept-Encoding: gzip")
    assert found == Head(method="POST", path="/a", length=12, chunked=False, keep=True)


def test_without_fields_it_has_no_body() -> None:
    assert http.parse(b"GET / HTTP/1.1") == Head(method="GET", path="/", length=0, chunked=False, keep=True)


@pytest.mark.parametrize(
    ("line", "fields", "keep"),
    [
        (b"GET / HTTP/1.1", [], True),
        (b"GET / HTTP/1.1", [b"Connection: Close"], False),
        (b"GET / HTTP/1.1", [b"Connection: upgrade, close"], False),
        (b"GET / HTTP/1.1", [b"X-Connection: close"], True),
        (b"GET / HTTP/1.0", [], False),
        (b"GET / HTTP/1.0", [b"connection:keep-alive"], True),
    ],
)
def test_a_connection_is_kept_as_its_peer_says(line: bytes, fields: list[bytes], keep: bool) -> None:
    assert http.parse(b"\r\n".join([line, *fields])).keep is keep


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 5", b"Content-Length: 6"],
        [b"Content-Length: 5", b"Content-Length: 5"],
        [b"Content-Length: -5"],
        [b"Content-Length: 5, 5"],
        [b"Content-Length:"],
        [b"Content-Length: 1" + b"0" * 18],
        [b"Content-Length : 5"],
        [b" Host: x"],
        [b"Host"],
        [b"Host: x\nContent-Length: 5\x00"],
        [b""],
    ],
)
def test_fields_that_could_be_read_in_two_ways_are_refused(lines: list[bytes]) -> None:
    with pytest.raises(BadRequestError):
        head(*lines)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET /",
        b"ET / HTTP/1.1",
        b"GET  / HTTP/1.1",
        b"get / HTTP/1.1",
        b"GET / HTTP/2.0",
        b"GET /\xff HTTP/1.1",
        b"\x16\x03",
    ],
)
def test_what_does_not_begin_as_a_request_is_none(line: bytes) -> None:
    with pytest.raises(BadRequestError, match="METHOD PATH"):
        http.parse(line)


def test_an_answer_says_how_long_it_is() -> None:
    assert http.encode(Response(503, b"no"), keep=False) == (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        b"Connection: close\r\n\r\n"
    )
