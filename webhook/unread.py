"""What a pod asks for in names that gpushare does not read, for warnings. Pure.

The number of names that are compared is bounded: a pod may carry hundreds of thousands.
"""

import difflib
import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from gpushare import names
from gpushare.wire import typos
from gpushare.wire.fields import JsonObject
from webhook import objects
from webhook.rules import Rules

_ANNOTATIONS: Final = (*names.REQUEST_ANNOTATIONS, names.WATCHDOG)
"""That an author may write."""
_TOLD: Final = 8
"""Most names that are told one by one."""
_LONGEST_NAME: Final = 63  # that Kubernetes admits after the slash
_LIMIT: Final = 256  # characters of a warning that Kubernetes shows for sure


def resources(pod: JsonObject, rules: Rules) -> Iterator[str]:
    """Resources that were probably meant to be ours."""
    likely = (each for each in typos.of_pod(pod, rules.resource_config) if not rules.is_foreign(each[1]))
    for name, resource, meant in itertools.islice(likely, _TOLD):
        yield cut(f"container {name}: gpushare does not know {resource} and gives no GPU for it; do you mean {meant}?")


def marks(pod: JsonObject) -> Iterator[str]:
    """Labels and annotations of ours that mean nothing, with those that were probably meant."""
    annotations = [key for key in objects.annotations(pod) if key == names.LABEL_GPU_COUNT or not names.is_known(key)]
    labels = [key for key in objects.labels(pod) if key in _ANNOTATIONS or not names.is_known(key)]
    if (policy := objects.annotations(pod).get(names.WATCHDOG, "off")) not in names.WATCHDOG_POLICIES:
        yield cut(f"annotation {names.WATCHDOG}: expected report, evict or kill, found {policy!r:.60}; it is ignored")
    ignored = [("annotation", key) for key in sorted(annotations)] + [("label", key) for key in sorted(labels)]
    for kind, key in ignored[:_TOLD]:
        yield cut(_ignored_annotation(key) if kind == "annotation" else _ignored_label(key))
    if rest := len(ignored[_TOLD:]):
        yield f"and {rest} more labels and annotations that gpushare does not read"


def _ignored_annotation(key: str) -> str:
    if key == names.LABEL_GPU_COUNT:
        return f"{key} means something as a label only; it is ignored"
    hint = _similar(key, (*_ANNOTATIONS, names.ANNOTATION_TOTALS))
    return f"annotation {key} is none that gpushare knows; it is ignored{hint}"


def _ignored_label(key: str) -> str:
    if key in _ANNOTATIONS:
        return f"{key} means something as an annotation only; it is ignored"
    return f"label {key} is none that gpushare knows; it is ignored{_similar(key, (names.LABEL_GPU_COUNT,))}"


def _similar(key: str, known: Sequence[str]) -> str:
    name = key.partition("/")[2]
    if len(name) > _LONGEST_NAME:
        return ""
    by_name = {key.partition("/")[2]: key for key in known}
    near = difflib.get_close_matches(name, by_name, n=1)
    return f"; do you mean {by_name[near[0]]}?" if near else ""


def cut(text: str, limit: int = _LIMIT) -> str:
    """At most so many characters of a warning."""
    return text if len(text) <= limit else text[: limit - 4] + " ..."
