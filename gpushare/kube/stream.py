"""Lists and watches, read from a stream of bytes object by object. Pure.

Tenants decide how large objects are: of 1.5 MiB in etcd they can make 9 MiB of JSON and 75 MiB of parsed values, and a
page has hundreds of objects. So no more than one object is ever in memory unreduced, whatever the answer has.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import orjson

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Page
from gpushare.wire import fields

LARGEST: Final = 16 * 2**20  # bytes of an object in JSON. What etcd stores is smaller, whatever it holds.
_LIST: Final = re.compile(rb'"items"\s*:\s*\[')
_START: Final = re.compile(rb'\{\s*"[^"\\]{1,64}"\s*:')
_MARGIN: Final = 128  # bytes; more than either of these patterns takes
T = TypeVar("T")


def page(what: str, chunks: Iterable[bytes], keep: Callable[[JsonObject], T]) -> Page[T]:
    """A page of a list from the body of an answer; `keep` reduces each object at once, `what` is for messages.

    Raises ServerFaultError: it is none.
    """
    objects = Objects(chunks)
    try:
        # By map, which lets go of an object before it asks for the next one.
        kept = list(map(keep, objects))
    except ValueError as error:
        raise kube.ServerFaultError(f"{what}: answer is not a list ({error})") from error
    metadata = objects.envelope.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(version, str) or not version:
        raise kube.ServerFaultError(f"{what}: answer is not a list (no resourceVersion); is there a proxy in between?")
    return Page(items=kept, version=version, more=str(metadata.get("continue") or ""))


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream, without empty ones; an unfinished last one is left out.

    Raises ValueError: a line is larger than any object.
    """
    rest = bytearray()
    for chunk in chunks:
        sought = len(rest)
        rest += chunk
        while (end := rest.find(b"\n", sought)) >= 0:
            line = bytes(rest[:end])
            del rest[: end + 1]
            sought = 0
            if line:
                yield line
        if len(rest) > LARGEST:
            raise ValueError(f"a line is larger than {LARGEST} bytes")


class Objects:
    """The objects of a list in JSON. To be iterated over once; raises a ValueError for what is no list."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.envelope: JsonObject = {}  # the list without its items; complete after the last object
        self._chunks = iter(chunks)
        self._buffer = bytearray()
        self._separator = b""

    def __iter__(self) -> Iterator[JsonObject]:
        head = self._head()
        if head is None:  # `items` is missing or null
            self.envelope = _an_object(fields.parse_json(bytes(self._buffer)), "the answer")
            if self.envelope.get("items") is not None:
                raise ValueError("items is not a list")
            return
        byte = self._peek()
        while byte != b"]":
            yield self._object()
            byte = self._peek()
            if byte == b",":
                del self._buffer[:1]
                self._peek()
            elif byte != b"]":
                raise ValueError("an object is followed by neither a comma nor the end of the list")
        while self._more():
            pass
        self.envelope = _an_object(orjson.loads(head + self._buffer), "the answer")

    def _head(self) -> bytes | None:
        """What stands before the first object."""
        sought = 0
        while (begin := _LIST.search(self._buffer, sought)) is None:
            sought = max(0, len(self._buffer) - _MARGIN)
            if not self._more():
                return None
        head = bytes(self._buffer[: begin.end()])
        del self._buffer[: begin.end()]
        return head

    def _object(self) -> JsonObject:
        """The next one. Where it ends is first guessed: where the next one seems to begin."""
        separator, sought = self._separator or self._learn(), 0
        while (at := self._buffer.find(separator, sought)) < 0 and len(self._buffer) < LARGEST:
            sought = max(0, len(self._buffer) - len(separator))
            if not self._more():
                break
        if at >= 0:
            try:
                return self._taken(at + 1, orjson.loads)
            except orjson.JSONDecodeError:
                pass  # the same bytes stand inside of the object, or it is too deep; a value has one end only
        return self._taken(self._end(), fields.parse_json)

    def _taken(self, end: int, parse: Callable[[bytes], Any]) -> JsonObject:
        value: JsonObject = parse(bytes(self._buffer[:end]))
        del self._buffer[:end]
        return value

    def _learn(self) -> bytes:
        """What stands between two objects, if they begin alike."""
        while len(self._buffer) < _MARGIN and self._more():
            pass
        start = _START.match(self._buffer)
        self._separator = b"}," + (start[0] if start else b"{")
        return self._separator

    def _end(self) -> int:
        """Where the value at the beginning ends, found bracket by bracket."""
        if self._peek() != b"{":
            raise ValueError("an item is not an object")
        depth = at = 0
        while True:
            for token in fields.TOKEN.finditer(self._buffer, at):
                kind = self._buffer[token.start()]
                if kind == fields.QUOTE and token[1] is None:
                    break  # the string goes on in what was not read yet
                at = token.end()
                depth += (kind in b"[{") - (kind in b"]}")
                if depth == 0 and kind != fields.QUOTE:
                    return at
            wanted = 2 * len(self._buffer) - at  # so many that no long string is looked at again and again
            if not self._more():
                raise ValueError("it ends in the middle of an object")
            while len(self._buffer) < wanted and self._more():
                pass

    def _peek(self) -> bytes:
        """The next byte that is not white space."""
        while True:
            blank = len(self._buffer) - len(self._buffer.lstrip())
            del self._buffer[:blank]
            if self._buffer:
                return bytes(self._buffer[:1])
            if not self._more():
                raise ValueError("it ends in the middle of the list")

    def _more(self) -> bool:
        """Read on. Whether there was more."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._buffer += chunk
        if len(self._buffer) - len(chunk) > LARGEST:
            raise ValueError(f"an object is larger than {LARGEST} bytes")
        return True


def _an_object(value: object, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")  # noqa: TRY004 - as for broken JSON
    return value
