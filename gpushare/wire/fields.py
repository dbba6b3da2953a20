"""Typed look-ups in objects of the API server, where a field that is null or missing is the same as an empty one."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.errors import WireError


def mapping(parent: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    """An object field."""
    value = parent.get(key)
    return {} if value is None else an_object(value, f"{path}.{key}")


def objects(parent: Mapping[str, Any], key: str, path: str) -> Sequence[Mapping[str, Any]]:
    """A field that is a list of objects."""
    value = parent.get(key)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise WireError(f"{path}.{key}: expected a list, found {value!r:.100}")
    for i, item in enumerate(value):
        an_object(item, f"{path}.{key}[{i}]")
    return value


def text(parent: Mapping[str, Any], key: str, path: str) -> str:
    """A string field."""
    value = parent.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise WireError(f"{path}.{key}: expected a string, found {value!r:.100}")
    return value


def needed(parent: Mapping[str, Any], key: str, path: str) -> str:
    """A string field without which the object means nothing."""
    value = text(parent, key, path)
    if not value:
        raise WireError(f"{path}.{key}: missing")
    return value


def an_object(value: object, path: str) -> Mapping[str, Any]:
    """The value itself, which must be an object."""
    if not isinstance(value, Mapping):
        raise WireError(f"{path}: expected an object, found {value!r:.100}")
    return value


def condition(parent: Mapping[str, Any], kind: str, path: str) -> Mapping[str, Any]:
    """The condition of this type in an object's status; empty if there is none."""
    conditions = objects(mapping(parent, "status", path), "conditions", "status")
    return next((each for each in conditions if each.get("type") == kind), {})
