"""HTTP/1.1 requests and answers as bytes, as far as a server of a few paths needs them. Pure."""

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from gpushare.runtime.intake import Stream

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
_LINE: Final = re.compile(rb"([A-Z]{3,20}) ([!-~]{1,2048}) HTTP/1\.([01])")
_FIELDS: Final = re.compile(rb"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]++:[^\r\n\0]*+)*+")
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*+([^\r\n]*+)", re.IGNORECASE)
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_CONNECTION: Final = re.compile(rb"\r\nconnection:([^\r\n]*+)", re.IGNORECASE)
_TRANSFER: Final = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_STATUS: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class BadRequestError(Exception):
    """What was sent is no request. Says why."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body."""

    method: str
    path: str
    """Without a query."""
    length: int
    """Bytes of the body."""
    chunked: bool
    """It has a body whose length is not told, which is not read."""
    keep: bool
    """The peer keeps its connection for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that is there."""

    head: Head
    body: Stream
    """What there is of it."""
    received: float
    """Monotonic time at which its first bytes were there to be read."""
    busy: bool = False
    """Others have taken all room, so that only the beginning of its body is there."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    body: bytes
    content_type: str = JSON
    close: bool = False
    """No further request is wanted on this connection."""


def parse(head: bytes) -> Head:
    """A request's line and fields, without the empty line that ends them.

    Raises:
        BadRequestError: they are none.
    """
    end = head.find(b"\r\n")
    end = len(head) if end < 0 else end
    line = _LINE.fullmatch(head, 0, end)
    if line is None:
        raise BadRequestError("the first line is not METHOD PATH HTTP/1.1")
    if _FIELDS.fullmatch(head, end) is None:
        raise BadRequestError("a line of the header is not NAME: VALUE")
    lengths = _LENGTH.findall(head, end)
    length = lengths.pop().rstrip() if lengths else b"0"
    if lengths or _DIGITS.fullmatch(length) is None:
        raise BadRequestError("Content-Length is not one number")
    options = {option.strip() for found in _CONNECTION.findall(head, end) for option in found.lower().split(b",")}
    return Head(
        method=line[1].decode(),
        path=line[2].partition(b"?")[0].decode(),
        length=int(length),
        chunked=_TRANSFER.search(head, end) is not None,
        keep=b"close" not in options and (line[3] == b"1" or b"keep-alive" in options),
    )


def encode(response: Response, *, keep: bool) -> bytes:
    """What is sent of an answer before its body."""
    return (
        f"{_STATUS[response.status]}Content-Type: {response.content_type}\r\nContent-Length: {len(response.body)}\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    ).encode()
