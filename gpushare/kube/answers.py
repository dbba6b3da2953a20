"""Bodies of the API server's answers -> objects and errors. Pure."""

from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

import orjson

from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Reply
from gpushare.wire import fields, json

_NOT_REACHED: Final = "error trying to reach service"  # of older API servers' proxies, in plain text


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, read whole."""

    what: str
    """The request, for messages."""
    status: int
    data: bytes
    date: str | None
    """The header."""


def an_object(answer: Answer) -> JsonObject:
    """The object in an answer.

    Raises:
        KubeError: the server did not agree, or there is none.
    """
    if not 200 <= answer.status < 300:
        raise error(answer.status, answer.data)
    try:
        return fields.an_object(json.parse(answer.data), "")
    except (ValueError, WireError) as problem:
        raise kube.ServerFaultError(f"{answer.what}: unreadable answer ({problem})") from problem


def reply(answer: Answer) -> Reply:
    """What an endpoint said.

    Raises:
        KubeError: the API server itself said no, or could not reach the endpoint.
    """
    status = _status(answer.data)
    if status is not None and status.get("status") == "Failure":
        raise error(answer.status, answer.data)
    said = Reply(status=answer.status, text=answer.data.decode("utf-8", "replace"), at=_moment(answer.date))
    if said.status >= 500 and said.text.lower().startswith(_NOT_REACHED):
        raise kube.error_of(said.status, said.brief)
    return said


def error(code: int, body: bytes) -> kube.KubeError:
    """The error for an answer; only the message of a `kind: Status` is kept, so that no data reaches a log."""
    status = _status(body)
    problem = kube.error_of(code, f"HTTP {code}" if status is None else str(status.get("message", ""))[:1024])
    metadata = status.get("metadata") if status else None
    if isinstance(problem, kube.GoneError) and isinstance(metadata, dict):
        problem.more = str(metadata.get("continue") or "")
    return problem


def _status(body: bytes) -> JsonObject | None:
    """The API server's own `kind: Status`, if an answer is one."""
    if not body.startswith(b"{"):
        return None
    try:
        value: JsonObject = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if value.get("kind") == "Status" else None


def _moment(header: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(header) if header else None
    except ValueError:
        return None
