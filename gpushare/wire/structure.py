"""What is wrong with the structure of an object: all of it, lazily, where `fields` stops at the first. Pure."""

from collections.abc import Callable, Iterator
from typing import Final

from gpushare.wire import fields

Check = Callable[[object, str], Iterator[tuple[str, str]]]
"""Value and its path -> path and problem of each field in which it has another structure."""


def a_string(value: object, path: str) -> Iterator[tuple[str, str]]:
    """A string."""
    if not isinstance(value, str):
        yield path, fields.mismatch("a string", value)


def a_name(value: object, path: str) -> Iterator[tuple[str, str]]:
    """A string that is not empty."""
    return a_string(value or None, path)  # the API server writes a missing one as ""


def an_object(**known: Check) -> Check:
    """An object with these fields, among others."""

    def check(value: object, path: str) -> Iterator[tuple[str, str]]:
        if not isinstance(value, dict):
            yield path, fields.mismatch("an object", value)
            return
        for key, inner in known.items():
            yield from inner(value.get(key), fields.at(path, key))

    return check


def a_list(item: Check) -> Check:
    """A list of such items."""

    def check(value: object, path: str) -> Iterator[tuple[str, str]]:
        if not isinstance(value, list):
            yield path, fields.mismatch("a list", value)
            return
        for i, each in enumerate(value):
            yield from item(each, f"{path}[{i}]")

    return check


def objects(value: object, path: str) -> Iterator[tuple[str, str]]:
    """A list of objects of which nothing more is asked. There may be a million."""
    if not isinstance(value, list):
        yield path, fields.mismatch("a list", value)
        return
    for i, each in enumerate(value):
        if not isinstance(each, dict):
            yield f"{path}[{i}]", fields.mismatch("an object", each)


def strings_by_name(value: object, path: str) -> Iterator[tuple[str, str]]:
    """An object whose values are strings, such as labels."""
    if not isinstance(value, dict):
        yield path, fields.mismatch("an object", value)
        return
    for key, each in value.items():
        if not isinstance(each, str):
            yield f"{path}[{key}]", fields.mismatch("a string", each)


def optional(check: Check) -> Check:
    """The same where the field may be missing."""
    return lambda value, path: iter(()) if value is None else check(value, path)


_TEXT: Final = optional(a_string)
_OBJECT: Final = optional(an_object())
_OBJECTS: Final = optional(objects)
_RESOURCES: Final = an_object(limits=_OBJECT, requests=_OBJECT)
_CONTAINER: Final = an_object(
    name=a_name, securityContext=_OBJECT, resources=optional(_RESOURCES), env=_OBJECTS, volumeMounts=_OBJECTS
)
_CONTAINERS: Final = optional(a_list(_CONTAINER))
_METADATA: Final = an_object(
    name=_TEXT,
    generateName=_TEXT,
    namespace=_TEXT,
    uid=_TEXT,
    labels=optional(strings_by_name),
    annotations=optional(strings_by_name),
)
_SPEC: Final = an_object(
    nodeName=_TEXT,
    schedulerName=_TEXT,
    runtimeClassName=_TEXT,
    volumes=optional(a_list(an_object(hostPath=_OBJECT))),
    initContainers=_CONTAINERS,
    containers=_CONTAINERS,
    ephemeralContainers=_CONTAINERS,
)
ANY_OBJECT: Final = an_object(metadata=optional(_METADATA))
"""Of any kind, with the metadata that this project reads."""
POD: Final = an_object(metadata=optional(_METADATA), spec=_SPEC)
"""A pod, as far as this project reads it before its fields are looked up one by one."""
