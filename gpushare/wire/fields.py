"""The one reader of decoded JSON and YAML: typed look-ups whose errors say where and what.

Every message has the shape `PATH: expected a string, found KIND`. Values other than numbers are not quoted: they may be
megabytes, or a secret. A field that is null is as one that is missing, and where it is not `needed` as an empty one.

All functions raise WireError. `path` is the parent's, empty at the top. What is `needed` must be there, a text also not
be empty.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gpushare.errors import WireError

JsonObject = dict[str, Any]
READER_VERSION: Final = 2
TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(")?|[\[\]{}]', re.DOTALL)
"""A bracket or a string, whose closing quote is group 1. Possessive: else a string costs a hundred times its size."""
QUOTE: Final = ord('"')
_MANAGED_FIELDS: Final = b'"managedFields"'
_VALUE: Final = re.compile(rb"\s*:\s*[\[{]")
_KINDS: Final[Mapping[type, str]] = {
    **{type(None): "nothing", bool: "true or false", dict: "an object"},
    **{int: "a number", float: "a number", list: "a list", tuple: "a list"},
}


def mapping(parent: Mapping[str, Any], key: str, path: str) -> JsonObject:
    value = parent.get(key)
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    raise unexpected("an object", value, at(path, key))


def needed_mapping(parent: Mapping[str, Any], key: str, path: str) -> JsonObject:
    value = parent.get(key)
    return value if isinstance(value, dict) else an_object(value, at(path, key))  # the path is made for an error only


def an_object(value: object, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise unexpected("an object", value, path)
    return value


def needed_array(parent: Mapping[str, Any], key: str, path: str) -> Sequence[Any]:
    value = parent.get(key)
    if not isinstance(value, list | tuple):
        raise unexpected("a list", value, at(path, key))
    return value


def objects(parent: Mapping[str, Any], key: str, path: str) -> Sequence[JsonObject]:
    return () if parent.get(key) is None else needed_objects(parent, key, path)


def needed_objects(parent: Mapping[str, Any], key: str, path: str) -> Sequence[JsonObject]:
    items = needed_array(parent, key, path)
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise unexpected("an object", item, f"{at(path, key)}[{i}]")
    return items


def strings(parent: Mapping[str, Any], key: str, path: str) -> Sequence[str]:
    """A field that is a list of strings. It may have thousands and be read on every call, so not one by one."""
    items = () if parent.get(key) is None else needed_array(parent, key, path)
    try:
        "".join(items)  # the quickest look at all of them
    except TypeError:
        i, item = next((i, item) for i, item in enumerate(items) if not isinstance(item, str))
        raise unexpected("a string", item, f"{at(path, key)}[{i}]") from None
    return items


def text(parent: Mapping[str, Any], key: str, path: str) -> str:
    value = parent.get(key)
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise unexpected("a string", value, at(path, key))


def needed(parent: Mapping[str, Any], key: str, path: str) -> str:
    value = parent.get(key)
    if isinstance(value, str) and value:
        return value
    raise unexpected("a string", value, at(path, key))


def integer(
    parent: Mapping[str, Any],
    key: str,
    path: str,
    *,
    least: int = 0,
    most: int | None = None,
    default: int | None = None,
) -> int:
    """A field that is a whole number in a range; without a default it must be there."""
    value = parent.get(key)
    value = default if value is None else value
    if not isinstance(value, bool) and isinstance(value, int) and least <= value and (most is None or value <= most):
        return value
    bounds = f", {least} or more" if most is None else f" from {least} to {most}"
    raise unexpected(f"a whole number{bounds}", value, at(path, key))


def optional_integer(parent: Mapping[str, Any], key: str, path: str, *, least: int = 0) -> int | None:
    return None if parent.get(key) is None else integer(parent, key, path, least=least)


def condition(parent: Mapping[str, Any], kind: str, path: str) -> JsonObject:
    """The condition of this type in an object's status; empty if there is none."""
    conditions = objects(mapping(parent, "status", path), "conditions", "status")
    return next((each for each in conditions if each.get("type") == kind), {})


def is_true(parent: Mapping[str, Any], kind: str, path: str) -> bool:
    return bool(condition(parent, kind, path).get("status") == "True")


def at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def unexpected(wanted: str, value: object, path: str) -> WireError:
    problem = mismatch(wanted, value)
    return WireError(f"{path}: {problem}" if path else problem)


def mismatch(wanted: str, value: object) -> str:
    """What is wrong with a value; for a number that is wanted but out of its range, the number itself."""
    if "number" in wanted and isinstance(value, int | float) and not (isinstance(value, bool) or abs(value) >= 2**64):
        return f"expected {wanted}, found {value}"
    return f"expected {wanted}, found {kind(value)}"


def kind(value: object) -> str:
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def load_versioned(text: str) -> JsonObject:
    """Parse a versioned JSON object, as annotations hold.

    It has a `version` and may have a `minReader`: a newer writer that only adds fields leaves that at 1, and this
    version goes on reading it (unknown fields are ignored). Raises WireError: no JSON object, no version, or written
    for newer readers only.
    """
    try:
        value = an_object(orjson.loads(text), "")
    except orjson.JSONDecodeError as error:
        raise WireError(f"not JSON ({error})") from error
    version = integer(value, "version", "")
    needed = integer(value, "minReader", "") if "minReader" in value else 1
    if version < 1 or needed > READER_VERSION:
        raise WireError(
            f"version {version} (readable from version {needed}), this program reads version {READER_VERSION};"
            " upgrade it"
        )
    return value


def parse_json(data: bytes) -> Any:
    """Decode what the API server sent, however deep `managedFields` nests.

    It is the only part of an object that the API server stores as its author nested it. A tenant could make it too deep
    for any parser and so hide from a webhook, or break everybody's watch, with one pod. Raises ValueError: not JSON, or
    too deep elsewhere.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(without_managed_fields(data))


def body(data: bytes) -> JsonObject:
    """The JSON object that is the body of a request, decoded as `parse_json` does."""
    if not data:
        raise WireError("the body: empty; expected JSON")
    try:
        return an_object(parse_json(data), "the body")
    except orjson.JSONDecodeError as error:
        raise WireError(f"the body: not JSON ({error})") from error


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


def dump_json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value).decode()
