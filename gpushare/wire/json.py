"""JSON in and out: of the API server, and of the versioned formats in annotations. Pure.

A format has a `version` and may have a `minReader`: a newer writer that only adds fields leaves `minReader` at 1, and
this version goes on reading it (unknown fields are ignored).
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gpushare.errors import WireError
from gpushare.wire import fields
from gpushare.wire.fields import JsonObject

READER_VERSION: Final = 2


def load(text: str) -> JsonObject:
    """Parse a versioned JSON object.

    Raises:
        WireError: no JSON object, no version, or written for newer readers only.
    """
    try:
        value = fields.an_object(orjson.loads(text), "")
    except orjson.JSONDecodeError as error:
        raise WireError(f"not JSON ({error})") from error
    version = fields.integer(value, "version", "")
    needed = fields.integer(value, "minReader", "") if "minReader" in value else 1
    if version < 1 or needed > READER_VERSION:
        raise WireError(
            f"version {version} (readable from version {needed}), this program reads version {READER_VERSION};"
            " upgrade it"
        )
    return value


TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(")?|[\[\]{}]', re.DOTALL)
"""A bracket or a string, whose closing quote is group 1. Possessive: else a string costs a hundred times its size."""
QUOTE: Final = ord('"')
_MANAGED_FIELDS: Final = b'"managedFields"'


def parse(data: bytes) -> Any:
    """Decode what the API server sent, however deep `managedFields` nests.

    It is the only part of an object that the API server stores as its author nested it. A tenant could make it too
    deep for any parser and so hide from a webhook, or break everybody's watch, with one pod.

    Raises:
        ValueError: not JSON, or too deep elsewhere.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(without_managed_fields(data))


def without_managed_fields(data: bytes) -> bytes:
    """The same JSON with every `managedFields` null. Looks at each byte once and never recurs."""
    kept: list[bytes] = []
    start = depth = 0
    skipping = False
    for token in TOKEN.finditer(data):
        text = token[0]
        if skipping:
            depth += (text in b"[{") - (text in b"]}")
            if depth == 0:
                kept.append(b"null")
                start, skipping = token.end(), False
        elif text == _MANAGED_FIELDS and (value := _VALUE.match(data, token.end())):
            kept.append(data[start : value.end() - 1])
            skipping = True
    return b"".join(kept) + (b"" if skipping else data[start:])


_VALUE: Final = re.compile(rb"\s*:\s*[\[{]")


def dump(value: Mapping[str, Any]) -> str:
    """Compact JSON."""
    return orjson.dumps(value).decode()
