"""Decoded JSON -> an object with the structure that Kubernetes gives it, as far as the webhook reads it. Pure.

The API server sends well-formed objects; everything else is answered with a message.
"""

import itertools
import re
from collections.abc import Iterable
from typing import Final, cast

from gpushare.errors import FieldError, InvalidRequestError
from gpushare.wire import fields, pods
from gpushare.wire.fields import JsonObject

MOST_ERRORS: Final = 20
"""That an author is told at once. A pod made to be hard has a million."""
_INDEX: Final = re.compile(r"\[[^\]]*\]")


def pod(value: object) -> JsonObject:
    """A pod whose labels, annotations and containers can be read.

    Raises:
        InvalidRequestError: they cannot; the first errors at once.
    """
    return _checked(value, pods.POD)


def with_metadata(value: object) -> JsonObject:
    """An object of any kind whose labels and annotations can be read.

    Raises:
        InvalidRequestError: they cannot.
    """
    return _checked(value, pods.ANY_OBJECT)


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


def _checked(value: object, check: pods.Check) -> JsonObject:
    if errors := first(_error(path, problem) for path, problem in check(value, "")):
        raise InvalidRequestError(errors)
    return cast(JsonObject, value)


def _error(path: str, problem: str) -> FieldError:
    field = _INDEX.sub("", path)
    return FieldError(path or "object", problem, f"see kubectl explain {fields.at('pod', field) if field else 'pod'}")
