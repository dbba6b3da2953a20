"""Look-ups in objects of the API server that several checks make. Pure."""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpushare import names
from gpushare.kube.api import JsonObject
from gpushare.runtime import options
from gpushare.wire import fields
from gpushare_cli.doctor.snapshot import NothingToCheckError, Object, known

_NAMED: Final = 4


def annotations(item: JsonObject) -> Mapping[str, Any]:
    """Of an object."""
    return fields.mapping(fields.mapping(item, "metadata", "object"), "annotations", "metadata")


def label(item: JsonObject, key: str) -> str:
    """Empty if it is not there."""
    return fields.text(fields.mapping(fields.mapping(item, "metadata", "object"), "labels", "metadata"), key, "labels")


def pod_spec(workload: JsonObject) -> Mapping[str, Any]:
    """Of a Deployment's or DaemonSet's pods."""
    template = fields.mapping(fields.mapping(workload, "spec", "workload"), "template", "spec")
    return fields.mapping(template, "spec", "template")


def plugin_setting(plugin: JsonObject | None, shared: JsonObject | None, setting: str) -> str:
    """Of the device plugin, as its DaemonSet or the settings of all components have it; empty if neither does."""
    _, variable = options.flag_names(setting)
    for container in fields.objects(pod_spec(plugin), "containers", "spec") if plugin else []:
        for entry in fields.objects(container, "env", "container"):
            if entry.get("name") == variable:
                return str(entry.get("value"))
    return str(fields.mapping(shared or {}, "data", names.CONFIG).get(variable, ""))


def reads_usage(plugin: JsonObject | None, shared: JsonObject | None) -> bool:
    """Whether the device plugins are to read what containers use: the watchdog needs that too."""
    usage, watchdog = (plugin_setting(plugin, shared, setting) for setting in ("usage", "watchdog"))
    return usage == "true" or watchdog not in {"", "off"}


def replicas(deployment: JsonObject) -> tuple[int, int]:
    """Ready ones, and how many there should be."""
    wanted = fields.mapping(deployment, "spec", "deployment").get("replicas", 1)
    ready = fields.mapping(deployment, "status", "deployment").get("readyReplicas") or 0
    return ready, wanted


def endpoints(item: JsonObject | None) -> int:
    """Addresses that a Service sends to."""
    subsets = fields.objects(item or {}, "subsets", "endpoints")
    return sum(len(fields.objects(subset, "addresses", "subsets")) for subset in subsets)


def needs_endpoint(item: Object) -> None:
    """End a check that asks a Service which sends to no one.

    Raises:
        NothingToCheckError: its endpoints are empty.
    """
    if not endpoints(known(item)):
        raise NothingToCheckError("no replica is ready")


def moment(text: object) -> datetime | None:
    """A time as the API server writes it."""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def created(item: JsonObject) -> datetime | None:
    """When an object was created."""
    return moment(fields.mapping(item, "metadata", "object").get("creationTimestamp"))


def metric(text: str, name: str) -> float | None:
    """A gauge without labels, from a page of metrics."""
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head == name:
            try:
                return float(value)
            except ValueError:
                return None
    return None


def counted(text: str, name: str, *labels: str) -> float:
    """The sum of a counter over the lines with these labels, such as `verb="filter"`, from a page of metrics."""
    total = 0.0
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.startswith(f"{name}{{") and all(label in head for label in labels):
            with contextlib.suppress(ValueError):
                total += float(value)
    return total


def listed(nodes: Sequence[str]) -> str:
    """Nodes of which the same is told."""
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more
