"""The values of the chart that each component has: where its pods run, what they get, and its settings."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import controller.settings
import deviceplugin.mps.settings
import deviceplugin.settings
import webhook.settings
from gpushare.model.request import Policy
from gpushare.runtime import options
from release.pages.chart_schema import (
    BOOLEAN,
    COUNT,
    LABELS,
    MEMORY_UNIT,
    OBJECT,
    OBJECTS,
    SECONDS,
    STRING,
    STRINGS,
    Json,
    Value,
    enum,
    image,
    optional,
)

SETTINGS: Final[Mapping[str, type[Any]]] = {
    "webhook": webhook.settings.Settings,
    "controller": controller.settings.Settings,
    "devicePlugin": deviceplugin.settings.Settings,
    "mps": deviceplugin.mps.settings.Settings,
}
SHARED: Final = ("memory_unit", "log_level")
"""In the ConfigMap gpushare-config, because all components must agree or all have them."""
FIXED: Final = frozenset(
    {
        # Other values of the chart set them, with what belongs to them.
        *("whole_gpus", "usage", "watchdog", "scheduler_name", "runtime_class_mode", "cert_source", "gpu_source"),
        # The objects, ports, rights and volumes of the manifests go with them.
        *("namespace", "address", "bind_address", "port", "probe_port", "metrics_port", "kubeconfig", "node_name"),
        *("device_plugins_dir", "pod_resources_socket", "cdi_dir", "cgroup_mount", "mps_dir", "mps_shared_memory"),
        *("cert_dir", "worker_tmp_dir", "lease", "identity", "runtime_class", "controller_user"),
        "placeholders",
        "simulated_processes",  # for tests
    }
)
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu_policy": tuple(policy.value for policy in Policy),
    "gpu_memory": ("usable", "total"),
    "hand_over": ("auto", "cdi", "envvar", "volume-mounts"),
    "limit_failure": ("refuse", "next"),
}


def camel(name: str) -> str:
    """The value's key for a setting's field."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def setting_schema(field: "dataclasses.Field[Any]") -> Json:
    """What may be written for a setting."""
    if field.name in WORDS:
        return enum(*WORDS[field.name])
    if field.name == "memory_unit":
        return MEMORY_UNIT
    if field.name == "unified_memory":
        return {"type": "string", "pattern": "^[0-9]+(Mi|Gi|Ti)?$"}
    match field.default:
        case bool():
            return BOOLEAN
        case int() | float():
            return SECONDS
        case _:
            return STRING


def fields(component: str) -> "Iterator[dataclasses.Field[Any]]":
    """The settings of a component that are values of the chart."""
    for field in dataclasses.fields(SETTINGS[component]):
        if "help" in field.metadata and field.name not in {*FIXED, *SHARED}:
            yield field


def settings(component: str) -> Iterator[Value]:
    """The settings of one component, without those that all share."""
    for field in fields(component):
        path = f"{component}.settings.{camel(field.name)}"
        schema = setting_schema(field)
        default = options.written(field.default)
        if schema["type"] != "string":
            default = json.loads(default)
        yield Value(path=path, default=default, schema=schema, text=field.metadata["help"])


def workload(component: str, replicas: bool, manifest: str) -> Iterator[Value]:
    """What every Deployment and DaemonSet has."""
    if replicas:
        yield Value(path=f"{component}.replicas", schema=optional(COUNT), text="number of pods (default: 2)")
    yield Value(
        path=f"{component}.priorityClassName",
        schema=optional(STRING),
        text=f"priority class; null: as in {manifest}; empty: none",
    )
    yield Value(path=f"{component}.nodeSelector", default={}, schema=STRINGS, text="labels of nodes, beside its own")
    yield Value(path=f"{component}.tolerations", schema=optional(OBJECTS), text=f"tolerations; null: as in {manifest}")
    yield Value(path=f"{component}.affinity", schema=optional(OBJECT), text=f"affinity; null: as in {manifest}")
    yield Value(
        path=f"{component}.topologySpreadConstraints",
        schema=optional(OBJECTS),
        text="how pods are spread; null: freely",
    )
    yield Value(
        path=f"{component}.resources",
        default={},
        schema={
            "type": "object",
            "properties": {"requests": OBJECT, "limits": OBJECT},
            "additionalProperties": False,
        },
        text=f"requests and limits of CPU and memory, over those in {manifest}",
    )
    yield Value(path=f"{component}.podLabels", default={}, schema=LABELS, text="further labels of the pods")
    yield Value(path=f"{component}.podAnnotations", default={}, schema=STRINGS, text="annotations of the pods")
    yield Value(
        path=f"{component}.env",
        default=[],
        schema={"type": "array", "items": {"type": "object", "required": ["name"], "properties": {"name": STRING}}},
        text="further variables of the container, such as those of a proxy",
    )


def component(name: str, *, replicas: bool, manifest: str) -> Iterator[Value]:
    """One Deployment or DaemonSet with its settings."""
    yield from workload(name, replicas, manifest)
    if name in SETTINGS:
        yield from settings(name)


def components() -> Iterator[Value]:
    """The values of all components."""
    yield from component("webhook", replicas=True, manifest="manifests/base/webhook.yaml")
    yield from component("controller", replicas=True, manifest="manifests/base/controller.yaml")
    yield Value(
        path="scheduler.enabled",
        default=True,
        schema=BOOLEAN,
        text="a second kube-scheduler for GPU pods; false: the cluster's own is configured to ask the controller",
    )
    yield from image("scheduler.image", "kube-scheduler", "registry.k8s.io", "the version of the servers")
    yield from component("scheduler", replicas=True, manifest="manifests/base/scheduler.yaml")
    yield Value(
        path="devicePlugin.kubeletDirectory",
        default="/var/lib/kubelet",
        schema={"type": "string", "pattern": "^/.*[^/]$"},
        text="the kubelet's --root-dir on the nodes: /var/lib/k0s/kubelet with k0s; the directory of device plugins is"
        " in /var/lib/kubelet all the same",
    )
    yield from component("devicePlugin", replicas=False, manifest="manifests/base/device-plugin.yaml")
    yield Value(path="devicePlugin.volumes", default=[], schema=OBJECTS, text="further volumes, such as HAMi-core's")
    yield Value(path="devicePlugin.volumeMounts", default=[], schema=OBJECTS, text="where these are mounted")
    yield from component("mps", replicas=False, manifest="manifests/limits/mps/mps.yaml")
    yield Value(
        path="dashboard.enabled",
        default=False,
        schema=BOOLEAN,
        text="`gpushare dashboard` in the cluster, which only `kubectl port-forward` reaches",
    )
    yield from component("dashboard", replicas=False, manifest="manifests/dashboard/dashboard.yaml")
