"""What the author of a pod is told about changes of it, in plain words. Pure.

Kubernetes shows up to 256 characters of a warning for sure.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from gpushare import names
from gpushare.wire import pods
from webhook import containers, objects
from webhook.objects import JsonObject

_LIMIT: Final = 256
_LIST: Final = 150
_FIELDS: Final = ("initContainers", "containers")


def of_gpu_pod(before: JsonObject, after: JsonObject, foreign: tuple[str, ...]) -> Iterator[str]:
    """For a pod that asks for a share.

    Args:
        before: as its author wrote it.
        after: as it is admitted.
        foreign: prefixes of other plugins' resources.
    """
    yield from of_other_pod(before, after)
    for _, _, container in pods.containers(after):
        name = container["name"]
        other = containers.foreign(container, foreign)
        if other and pods.asks(container):
            yield _cut(
                f"container {name} asks for {names.GPU_MEM} and for another plugin's GPUs ({other});"
                " it will see only those of the former"
            )
        if containers.is_privileged(container):
            yield _cut(
                f"container {name} is privileged: it can reach all GPUs of its node, not only those granted to it"
            )


def of_other_pod(before: JsonObject, after: JsonObject) -> Iterator[str]:
    """For a pod that asks for none."""
    removed = sorted(set(objects.annotations(before)) - set(objects.annotations(after)))
    if devices := [key for key in removed if key.startswith(names.PREFIX_CDI)]:
        yield _cut(f"annotations removed, because they choose devices past the scheduler: {_listed(devices)}")
    if forged := [key for key in removed if names.is_reserved(key)]:
        yield _cut(
            f"annotations removed, because only {names.SERVICE_ACCOUNT_CONTROLLER} may write them: {_listed(forged)}"
        )
    yield from overridden(before, after, _FIELDS)


def overridden(before: JsonObject, after: JsonObject, fields: Sequence[str]) -> Iterator[str]:
    """For containers whose author chose devices."""
    for field in fields:
        for old, new in zip(before["spec"].get(field) or (), after["spec"].get(field) or (), strict=True):
            if value := containers.overridden(old, new):
                yield _cut(
                    f"container {new['name']}: {names.ENV_VISIBLE_DEVICES} is {_set_by(new)}; {value} was removed"
                )


def _set_by(container: JsonObject) -> str:
    if pods.asks(container):
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
