"""Kubernetes' text form of label selectors -> LabelSelector. Pure."""

import re
from typing import Final

from gpushare.model.selector import LabelSelector, Operator, Requirement

_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY: Final = rf"(?P<key>(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME})"
_VALUE: Final = re.compile(rf"(?:{_NAME})?")
_EXISTS: Final = re.compile(rf"(?P<absent>!)?\s*{_KEY}")
_EQUAL: Final = re.compile(rf"{_KEY}\s*(?P<operator>==|=|!=)\s*(?P<values>\S*)")
_SET: Final = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_COMMA: Final = re.compile(r",(?![^()]*\))")
_MAX: Final = 256  # characters; it is matched against every pod of a node, and told for every GPU
FIX: Final = "write a label selector such as app=web or app in (web, api)"


def parse(text: str) -> LabelSelector:
    """Read a selector such as `app=web,tier in (a, b),!canary`.

    Raises:
        ValueError: it is none; the message says why.
    """
    if not text.strip():
        raise ValueError("it is empty, which would mean every pod")
    if len(text) > _MAX:
        raise ValueError(f"it has more than {_MAX} characters")
    parts = list(dict.fromkeys(part.strip() for part in _COMMA.split(text)))
    return LabelSelector(tuple(_requirement(part) for part in parts), ", ".join(parts))


def _requirement(text: str) -> Requirement:
    if match := _EXISTS.fullmatch(text):
        return Requirement(match["key"], Operator.ABSENT if match["absent"] else Operator.EXISTS)
    match = _EQUAL.fullmatch(text) or _SET.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is no condition on a label")
    values = tuple(value.strip() for value in match["values"].split(","))
    for value in values:
        if _VALUE.fullmatch(value) is None:
            raise ValueError(f"{value!r:.80} cannot be the value of a label")
    return Requirement(match["key"], Operator.NOT_IN if match["operator"] in {"!=", "notin"} else Operator.IN, values)
