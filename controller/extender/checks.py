"""Checks of what comes in, before anybody else looks at it. Pure; what is wrong is said with its path.

Go reads the keys of its own structures in any case; those of maps and of Kubernetes' objects are exact.
"""

from typing import Any, Final

import orjson

from gpushare.errors import WireError
from gpushare.kube.api import JsonObject
from gpushare.wire import json

MAX_INT32: Final = 2**31 - 1


def load(body: bytes) -> JsonObject:
    """The body as an object with keys in lower case.

    Raises:
        WireError: it is none. So do all functions here.
    """
    if not body:
        raise WireError("the body: empty; expected JSON")
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(f"the body: not JSON (line {error.lineno}, column {error.colno})") from error
    return lower(an_object(value, "the body"))


def lower(value: JsonObject) -> JsonObject:
    """The same with keys in lower case."""
    return {key.lower(): item for key, item in value.items()}


def an_object(value: object, path: str) -> JsonObject:
    """An object."""
    if not isinstance(value, dict):
        raise WireError(f"{path}: expected an object, found {json.kind(value)}")
    return value


def optional(parent: JsonObject, key: str, path: str) -> JsonObject:
    """An object field that may be missing."""
    value = parent.get(key)
    return {} if value is None else an_object(value, f"{path}.{key}")


def a_list(value: object, path: str) -> list[Any]:
    """A list; nothing is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise WireError(f"{path}: expected a list, found {json.kind(value)}")
    return value


def a_text(value: object, path: str) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise WireError(f"{path}: expected a string, found {json.kind(value)}")
    return value


def texts(value: object, path: str) -> list[str]:
    """A list of strings. It has a few thousand names and is checked on every call, so not one by one."""
    found = a_list(value, path)
    if set(map(type, found)) - {str}:
        i = next(i for i, name in enumerate(found) if not isinstance(name, str))
        raise WireError(f"{path}[{i}]: expected a string, found {json.kind(found[i])}")
    return found


def a_number(value: object, path: str, *, least: int = -MAX_INT32 - 1) -> int:
    """A whole number as Go's int32 holds it; nothing is 0."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_INT32:
        found = json.kind(value) if isinstance(value, bool) or not isinstance(value, int | float) else value
        raise WireError(f"{path}: expected a whole number from {least} to {MAX_INT32}, found {found}")
    return value


def pod(value: object) -> JsonObject:
    """A pod that the functions of `gpushare.wire.pods` can read without surprise."""
    found = an_object(value, "Pod")
    metadata = an_object(found.get("metadata"), "Pod.metadata")
    for key in ("labels", "annotations"):
        entries = optional(metadata, key, "Pod.metadata")
        for name, text in entries.items():
            if not isinstance(text, str):
                raise WireError(f"Pod.metadata.{key}[{name}]: expected a string, found {json.kind(text)}")
    spec = an_object(found.get("spec"), "Pod.spec")
    for key in ("initContainers", "containers"):
        for i, item in enumerate(a_list(spec.get(key), f"Pod.spec.{key}")):
            path = f"Pod.spec.{key}[{i}]"
            container = an_object(item, path)
            a_text(container.get("name"), f"{path}.name")
            resources = optional(container, "resources", path)
            for kind in ("limits", "requests"):
                optional(resources, kind, f"{path}.resources")
    return found
