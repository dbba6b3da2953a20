"""What the author of a pod is told about changes of it, in plain words. Pure.

Kubernetes shows up to 256 characters of a warning for sure.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import names
from gpushare.wire import pods, spelling
from webhook import containers, objects
from webhook.objects import JsonObject
from webhook.rules import Rules

_LIMIT: Final = 256
_LIST: Final = 150
_MISSPELT: Final = 8
"""Most names of labels and annotations that are told one by one."""
_LONGEST_NAME: Final = 63  # that Kubernetes admits after the slash
_FIELDS: Final = ("initContainers", "containers")
_PRESET_NODE: Final = (
    "spec.nodeName by-passes the scheduler, which looks for free GPUs: the pod waits on that node until they are free,"
    " or for ever if they never fit; better choose it by spec.nodeSelector or node affinity on kubernetes.io/hostname"
)


def of_gpu_pod(before: JsonObject, after: JsonObject, rules: Rules) -> Iterator[str]:
    """For a pod that asks for GPUs.

    Args:
        before: as its author wrote it.
        after: as it is admitted.
        rules: by which it was changed.
    """
    ours = rules.dialect.resources
    yield from _removed(before, after)
    yield from _misspelt(before)
    yield from overridden(before["spec"], after["spec"], _FIELDS, ours=ours)
    if after["spec"].get("nodeName"):
        yield _PRESET_NODE
    for _, _, container in pods.containers(after):
        name, asked = container["name"], _asked(container, ours)
        other = containers.foreign(container, rules)
        if asked and other:
            yield _cut(
                f"container {name} asks for {asked} and for another plugin's GPUs ({other});"
                " it will see only those of the former"
            )
        if containers.is_privileged(container):
            yield _cut(
                f"container {name} is privileged: it can reach all GPUs of its node, not only those granted to it"
            )


def of_other_pod(before: JsonObject, after: JsonObject) -> Iterator[str]:
    """For a pod that asks for none."""
    yield from _removed(before, after)
    yield from overridden(before["spec"], after["spec"], _FIELDS, ours=())


def overridden(before: JsonObject, after: JsonObject, fields: Sequence[str], *, ours: Sequence[str]) -> Iterator[str]:
    """For containers whose author chose devices.

    Args:
        before: the spec as its author wrote it.
        after: the spec as it is admitted.
        fields: lists of containers.
        ours: resources by which a container asks for GPUs.
    """
    for field in fields:
        for old, new in zip(before.get(field) or (), after.get(field) or (), strict=True):
            if value := containers.overridden(old, new):
                yield _cut(
                    f"container {new['name']}: {names.ENV_VISIBLE_DEVICES} is {_set_by(new, ours)}; {value} was removed"
                )


def _misspelt(pod: JsonObject) -> Iterator[str]:
    """A wish that nobody reads would be lost without a word."""
    annotations = [key for key in objects.annotations(pod) if key == names.LABEL_GPU_COUNT or not names.is_known(key)]
    labels = [key for key in objects.labels(pod) if key in names.REQUEST_ANNOTATIONS or not names.is_known(key)]
    ignored = [("annotation", key) for key in sorted(annotations)] + [("label", key) for key in sorted(labels)]
    for kind, key in ignored[:_MISSPELT]:
        yield _cut(_ignored_annotation(key) if kind == "annotation" else _ignored_label(key))
    if rest := len(ignored[_MISSPELT:]):
        yield f"and {rest} more labels and annotations that gpushare does not read"


def _ignored_annotation(key: str) -> str:
    if key == names.LABEL_GPU_COUNT:
        return f"{key} means something as a label only; it is ignored"
    hint = _similar(key, (*names.REQUEST_ANNOTATIONS, names.ANNOTATION_TOTALS))
    return f"annotation {key} is none that gpushare knows; it is ignored{hint}"


def _ignored_label(key: str) -> str:
    if key in names.REQUEST_ANNOTATIONS:
        return f"{key} means something as an annotation only; it is ignored"
    return f"label {key} is none that gpushare knows; it is ignored{_similar(key, (names.LABEL_GPU_COUNT,))}"


def _similar(key: str, known: Sequence[str]) -> str:
    name = key.partition("/")[2]
    if len(name) > _LONGEST_NAME:
        return ""
    by_name = {one.partition("/")[2]: one for one in known}
    near = difflib.get_close_matches(name, by_name, n=1)
    return f"; do you mean {by_name[near[0]]}?" if near else ""


def _removed(before: JsonObject, after: JsonObject) -> Iterator[str]:
    removed = sorted(set(objects.annotations(before)) - set(objects.annotations(after)))
    if devices := [key for key in removed if names.is_cdi(key)]:
        yield _cut(f"annotations removed, because they choose devices past the scheduler: {_listed(devices)}")
    if forged := [key for key in removed if names.is_reserved(key)]:
        yield _cut(
            f"annotations removed, because only {names.SERVICE_ACCOUNT_CONTROLLER} may write them: {_listed(forged)}"
        )
    if names.ANNOTATION_OVERRIDDEN in removed:
        yield (f"annotation removed, because only {names.WEBHOOK_SERVICE} may write it: {names.ANNOTATION_OVERRIDDEN}")


def _asked(container: Mapping[str, Any], ours: Sequence[str]) -> str | None:
    return next((resource for resource in ours if resource in spelling.amounts(container, "limits")), None)


def _set_by(container: JsonObject, ours: Sequence[str]) -> str:
    if _asked(container, ours):
        return "set by gpushare to the GPUs that it is granted"
    if containers.env_of_devices(container):
        return "set by gpushare to no GPU, because it asks for none"
    return "set by the plugin that serves its GPUs"


def _listed(items: Sequence[str]) -> str:
    shown = [items[0]]
    while len(shown) < len(items) and len(", ".join(items[: len(shown) + 1])) <= _LIST:
        shown.append(items[len(shown)])
    rest = len(items) - len(shown)
    return _cut(", ".join(shown), _LIST) + (f" and {rest} more" if rest else "")


def _cut(text: str, limit: int = _LIMIT) -> str:
    return text if len(text) <= limit else text[: limit - 4] + " ..."
