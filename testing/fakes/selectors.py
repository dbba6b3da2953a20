"""Field and label selectors of lists and watches: equality, inequality, existence."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Wanted = Callable[[Mapping[str, Any]], bool]


def of(params: Mapping[str, str], namespace: str) -> Wanted:
    """Whether an object belongs to a list or watch with these parameters."""
    fields = _terms(params.get("fieldSelector", ""))
    labels = _terms(params.get("labelSelector", ""))

    def wanted(obj: Mapping[str, Any]) -> bool:
        meta = obj["metadata"]
        if namespace and meta.get("namespace") != namespace:
            return False
        if not all(_holds(_field(obj, key) or "", operator, value) for key, operator, value in fields):
            return False
        own = meta.get("labels") or {}
        return all(_holds(own.get(key), operator, value) for key, operator, value in labels)

    return wanted


def _terms(text: str) -> list[tuple[str, str, str]]:
    terms = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"(!?)([^=!]+)(==|=|!=)?(.*)", term)
        if match is None:
            raise AssertionError(f"selector {term!r} is not supported by the fake")
        bang, key, operator, value = match.groups()
        terms.append((key, operator or ("absent" if bang else "present"), value))
    return terms


def _holds(actual: str | None, operator: str, value: str) -> bool:
    match operator:
        case "!=":
            return actual != value
        case "present":
            return actual is not None
        case "absent":
            return actual is None
        case _:
            return actual == value


def _field(obj: Mapping[str, Any], path: str) -> str | None:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else str(value)
