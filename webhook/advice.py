"""What the author of a pod is told about changes of it, in plain words. Pure.

Kubernetes shows up to 256 characters of a warning for sure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import names
from gpushare.wire import pods
from gpushare.wire.fields import JsonObject
from webhook import containers, mounts, objects, unread
from webhook.rules import DEFAULT_SCHEDULER, Rules
from webhook.unread import cut

_LIST: Final = 150
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
    ours = rules.resource_config.resources
    yield from _removed(before, after)
    yield from unread.marks(before)
    yield from overridden(before["spec"], after["spec"], _FIELDS, ours=ours)
    yield from unread.resources(before, rules)
    if after["spec"].get("nodeName"):
        yield _PRESET_NODE
    elif not rules.asks_us(scheduler := after["spec"].get("schedulerName") or DEFAULT_SCHEDULER):
        yield cut(
            f"spec.schedulerName {scheduler:.63} does not ask gpushare which GPUs are free: the pod waits on the node"
            f" that it chooses until they are, or for ever; remove it, or write {rules.scheduler or DEFAULT_SCHEDULER}"
        )
    for name, path, what in mounts.of_the_node(after["spec"]):
        yield cut(
            f"volume {name} (hostPath {path:.80}) has {what}: a container that mounts it can reach all GPUs of its"
            " node, not only those granted to it"
        )
    for _, _, container in pods.containers(after):
        name, asked = container["name"], _asked(container, ours)
        other = containers.foreign(container, rules)
        if asked and other:
            yield cut(
                f"container {name} asks for {asked} and for another plugin's GPUs ({other});"
                " it will see only those of the former"
            )
        if containers.is_privileged(container):
            yield cut(
                f"container {name} is privileged: it can reach all GPUs of its node, not only those granted to it"
            )


def of_other_pod(before: JsonObject, after: JsonObject, rules: Rules) -> Iterator[str]:
    """For a pod that asks for none."""
    yield from _removed(before, after)
    yield from overridden(before["spec"], after["spec"], _FIELDS, ours=())
    yield from unread.resources(before, rules)


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
                yield cut(
                    f"container {new['name']}: {names.ENV_VISIBLE_DEVICES} is {_set_by(new, ours)}; {value} was removed"
                )


def _removed(before: JsonObject, after: JsonObject) -> Iterator[str]:
    removed = sorted(set(objects.annotations(before)) - set(objects.annotations(after)))
    if devices := [key for key in removed if names.is_cdi(key)]:
        yield cut(f"annotations removed, because they choose devices past the scheduler: {_listed(devices)}")
    if forged := [key for key in removed if names.is_reserved(key)]:
        yield cut(
            f"annotations removed, because only {names.SERVICE_ACCOUNT_CONTROLLER} may write them: {_listed(forged)}"
        )
    for key in (names.ANNOTATION_OVERRIDDEN, names.ANNOTATION_HAND_OVER):
        if key in removed:
            yield f"annotation removed, because only {names.WEBHOOK_SERVICE} may write it: {key}"


def _asked(container: Mapping[str, Any], ours: Sequence[str]) -> str | None:
    return next((resource for resource in ours if resource in pods.amounts(container, "limits")), None)


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
    return cut(", ".join(shown), _LIST) + (f" and {rest} more" if rest else "")
