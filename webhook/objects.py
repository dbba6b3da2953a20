"""Decoded JSON -> an object with the structure that Kubernetes gives it, as far as the webhook reads it. Pure.

The API server sends well-formed objects; everything else is answered with a message.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpushare.errors import FieldError, InvalidRequestError
from gpushare.wire import json

JsonObject = dict[str, Any]

MOST_ERRORS: Final = 20
"""That an author is told at once. A pod made to be hard has a million."""
_INDEX: Final = re.compile(r"\[[^\]]*\]")
_CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


def pod(value: object) -> JsonObject:
    """A pod whose labels, annotations and containers can be read.

    Raises:
        InvalidRequestError: they cannot; the first errors at once.
    """
    found = _object(value)
    spec = found.get("spec")
    errors = _spec(spec) if isinstance(spec, dict) else iter([_unexpected("spec", spec, "an object")])
    _raise_first(itertools.chain(_metadata(found.get("metadata")), errors))
    return found


def with_metadata(value: object) -> JsonObject:
    """An object of any kind whose labels and annotations can be read.

    Raises:
        InvalidRequestError: they cannot.
    """
    found = _object(value)
    _raise_first(_metadata(found.get("metadata")))
    return found


def is_pod(value: object) -> bool:
    """Whether `pod` accepts it."""
    try:
        pod(value)
    except InvalidRequestError:
        return False
    return True


def named(value: object) -> str:
    """Name of an object for logs; with a `*` if the API server has yet to complete it. Never fails."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return ""
    return str(metadata.get("name") or "") or f"{metadata.get('generateName') or ''}*"


def labels(obj: JsonObject) -> dict[str, str]:
    """The labels of an object of `pod` or `with_metadata`."""
    return (obj.get("metadata") or {}).get("labels") or {}


def annotations(obj: JsonObject) -> dict[str, str]:
    """The annotations of an object of `pod` or `with_metadata`."""
    return (obj.get("metadata") or {}).get("annotations") or {}


def first(errors: Iterable[FieldError]) -> tuple[FieldError, ...]:
    """As many as are told, and one more if there are more."""
    return tuple(itertools.islice(errors, MOST_ERRORS + 1))


def _raise_first(found: Iterator[FieldError]) -> None:
    if errors := first(found):
        raise InvalidRequestError(errors)


def _object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise InvalidRequestError((_unexpected("object", value, "an object"),))
    return value


def _metadata(metadata: object) -> Iterator[FieldError]:
    yield from _optional_object("metadata", metadata)
    if not isinstance(metadata, dict):
        return
    for field in ("name", "generateName", "namespace", "uid"):
        yield from _optional_text(f"metadata.{field}", metadata.get(field))
    for field in ("labels", "annotations"):
        values = metadata.get(field)
        yield from _optional_object(f"metadata.{field}", values)
        if isinstance(values, dict):
            for key, value in values.items():
                if not isinstance(value, str):
                    yield _unexpected(f"metadata.{field}[{key}]", value, "a string in quotes")


def _spec(spec: JsonObject) -> Iterator[FieldError]:
    for field in ("nodeName", "schedulerName", "runtimeClassName"):
        yield from _optional_text(f"spec.{field}", spec.get(field))
    yield from _volumes(spec.get("volumes"))
    for field in _CONTAINER_LISTS:
        containers = spec.get(field)
        path = f"spec.{field}"
        if containers is not None and not isinstance(containers, list):
            yield _unexpected(path, containers, "a list")
        for i, container in enumerate(containers if isinstance(containers, list) else ()):
            yield from _container(f"{path}[{i}]", container)


def _container(path: str, container: object) -> Iterator[FieldError]:
    if not isinstance(container, dict):
        yield _unexpected(path, container, "an object")
        return
    name = container.get("name") or None  # the API server writes a missing one as ""
    if not isinstance(name, str):
        yield _unexpected(f"{path}.name", name, "a string")
    yield from _optional_object(f"{path}.securityContext", container.get("securityContext"))
    resources = container.get("resources")
    yield from _optional_object(f"{path}.resources", resources)
    if isinstance(resources, dict):
        for field in ("limits", "requests"):
            yield from _optional_object(f"{path}.resources.{field}", resources.get(field))
    for field in ("env", "volumeMounts"):
        yield from _objects(f"{path}.{field}", container.get(field))


def _volumes(volumes: object) -> Iterator[FieldError]:
    yield from _objects("spec.volumes", volumes)
    for i, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        if isinstance(volume, dict):
            yield from _optional_object(f"spec.volumes[{i}].hostPath", volume.get("hostPath"))


def _objects(path: str, values: object) -> Iterator[FieldError]:
    if values is None:
        return
    if not isinstance(values, list):
        yield _unexpected(path, values, "a list")
        return
    for i, value in enumerate(values):
        if not isinstance(value, dict):
            yield _unexpected(f"{path}[{i}]", value, "an object")


def _optional_object(path: str, value: object) -> Iterator[FieldError]:
    if value is not None and not isinstance(value, dict):
        yield _unexpected(path, value, "an object")


def _optional_text(path: str, value: object) -> Iterator[FieldError]:
    if value is not None and not isinstance(value, str):
        yield _unexpected(path, value, "a string")


def _unexpected(path: str, value: object, expected: str) -> FieldError:
    explain = "pod" if path == "object" else "pod." + _INDEX.sub("", path)
    return FieldError(path, f"expected {expected}, found {json.kind(value)}", f"see kubectl explain {explain}")
