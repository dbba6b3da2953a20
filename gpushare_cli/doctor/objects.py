"""Names of the installation's objects, and look-ups in objects of the API server. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gpushare import names
from gpushare.kube.api import JsonObject
from gpushare.runtime import options
from gpushare.wire import fields
from gpushare_cli import usage

LABEL_NAMESPACE: Final = "kubernetes.io/metadata.name"
KUBE_SYSTEM: Final = "kube-system"
RUNTIME_CLASSES: Final = (names.RUNTIME_CLASS, "nvidia-cdi", "nvidia-legacy", "nvidia-experimental")
APPLY: Final = "apply the overlay for your server's version again: kubectl apply -k manifests/overlays/OVERLAY"


def name_of(item: JsonObject) -> str:
    return str(item["metadata"]["name"])


def labels(item: JsonObject) -> Mapping[str, Any]:
    return fields.mapping(fields.mapping(item, "metadata", "object"), "labels", "metadata")


def label(item: JsonObject, key: str) -> str:
    return fields.text(labels(item), key, "labels")


def pod_spec(workload: JsonObject) -> Mapping[str, Any]:
    template = fields.mapping(fields.mapping(workload, "spec", "workload"), "template", "spec")
    return fields.mapping(template, "spec", "template")


def plugin_setting(plugin: JsonObject | None, shared: JsonObject | None, setting: str) -> str:
    """As the device plugin's DaemonSet or the settings of all components have it; empty if neither does."""
    _, variable = options.flag_names(setting)
    for container in fields.objects(pod_spec(plugin or {}), "containers", "spec"):
        for entry in fields.objects(container, "env", "container"):
            if entry.get("name") == variable:
                return str(entry.get("value"))
    return str(fields.mapping(shared or {}, "data", names.CONFIG).get(variable, ""))


def reads_usage(plugin: JsonObject | None, shared: JsonObject | None) -> bool:
    """Whether the device plugins are to read what containers use: the watchdog needs that too."""
    usage, watchdog = (plugin_setting(plugin, shared, setting) for setting in ("usage", "watchdog"))
    return usage == "true" or watchdog not in {"", "off"}


def replicas(deployment: JsonObject) -> tuple[int, int]:
    wanted = fields.mapping(deployment, "spec", "deployment").get("replicas", 1)
    ready = fields.mapping(deployment, "status", "deployment").get("readyReplicas") or 0
    return ready, wanted


def moment(text: object) -> datetime | None:
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def metric(page: str, name: str) -> float | None:
    return next((value for series, _, value in usage.samples(page) if series == name), None)


def counted(page: str, name: str, **labels: str) -> float:
    """The sum of a counter over the series with these labels, from a page of metrics."""
    found = usage.samples(page)
    return sum(value for series, has, value in found if series == name and labels.items() <= has.items())
