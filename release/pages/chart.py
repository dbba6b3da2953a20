"""The Helm chart's values.schema.json and its reference page, from the comments and defaults of values.yaml."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

import controller.settings
import deviceplugin.mps
import deviceplugin.settings
import webhook.settings
from gpushare.model.gpu import Limit
from gpushare.model.request import Policy
from gpushare.runtime import options

Json = dict[str, Any]

CHART: Final = Path(__file__).parents[2] / "manifests" / "chart"
COMPONENTS: Final = ("webhook", "controller", "scheduler", "devicePlugin", "mps", "dashboard")
SETTINGS: Final[Mapping[str, type[Any]]] = {
    "webhook": webhook.settings.Settings,
    "controller": controller.settings.Settings,
    "devicePlugin": deviceplugin.settings.Settings,
    "mps": deviceplugin.mps.Settings,
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
        *("placeholders", "pod", "dra", "kubelet_dir"),
        "simulated_processes",  # for tests
    }
)
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu_policy": tuple(policy.value for policy in Policy),
    "gpu_memory": ("usable", "total"),
    "hand_over": ("auto", "cdi", "envvar", "volume-mounts"),
    "refusal_detail": ("full", "reduced"),
    "limit_failure": ("refuse", "next"),
}

STRING: Final[Json] = {"type": "string"}
OBJECT: Final[Json] = {"type": "object"}
STRINGS: Final[Json] = {"type": "object", "additionalProperties": STRING}
NAME: Final[Json] = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
REFERENCE: Final[Json] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": NAME},
    "additionalProperties": False,
}
NAMES: Final[Json] = {"type": "array", "items": NAME, "uniqueItems": True}
COUNT: Final[Json] = {"type": "integer", "minimum": 1}
LEVELS: Final = ("debug", "info", "warning", "error")
OWN_LABELS: Final = ("app.kubernetes.io/name", "app.kubernetes.io/part-of")
"""By which Deployments, Services and NetworkPolicies find the pods."""
OF_OTHERS: Final = (
    *(r"app\.kubernetes\.io/", r"helm\.sh/", r"gpushare\.dev/", r"kubernetes\.io/", r"pod-security\.kubernetes\.io/"),
    r"security\.openshift\.io/",
)
"""How labels begin that the chart gives to its objects itself."""
CIDR: Final = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/[0-9]{1,3})$"


def enum(*values: str) -> Json:
    return {"type": "string", "enum": list(values)}


def pattern(text: str) -> Json:
    return {"type": "string", "pattern": text}


MEMORY_UNIT: Final[Json] = pattern("^([1-9][0-9]*)?(MiB|GiB)$")
_RESOURCE: Final = r" *[^,/*'\s]+/[^,*'\s]+\*?"
_FACTOR: Final = r"\s*[0-9]+(\.[0-9]+)?\s*"
_LIMIT: Final = rf"\s*({'|'.join(limit.value for limit in Limit if limit is not Limit.WATCHDOG)})\s*"
PATTERNS: Final[Mapping[str, str]] = {
    "unified_memory": "^[0-9]+(Mi|Gi|Ti)?$",
    "oversubscription": rf"^({_FACTOR}|[^,=]+={_FACTOR})(,[^,=]+={_FACTOR})*$",
    "foreign_resources": rf"^({_RESOURCE}(,{_RESOURCE})*)?$",
    "limits": f"^(auto|{_LIMIT}(,{_LIMIT})*)$",
}
"""Of settings by their field: the program ends with what they do not match."""
EMPTY_OR_NAME: Final[Json] = pattern("^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$")
COMMON: Final[Mapping[str, Json]] = {
    "replicas": COUNT,
    "nodeSelector": STRINGS,
    "tolerations": {"type": "array", "items": OBJECT},
    "topologySpreadConstraints": {"type": "array", "items": OBJECT},
    "resources": {
        "type": "object",
        "properties": {"requests": OBJECT, "limits": OBJECT},
        "additionalProperties": False,
    },
    "podLabels": STRINGS | {"propertyNames": {"not": {"enum": list(OWN_LABELS)}}},
    "podAnnotations": STRINGS,
    "env": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {"name": STRING}}},
}
"""Rules of what every component has."""
IMAGE: Final[Mapping[str, Json]] = {
    "registry": pattern(r"^([A-Za-z0-9.-]+(:[0-9]+)?|\[[0-9A-Fa-f:]+\](:[0-9]+)?)(/[a-z0-9._/-]*[a-z0-9])?$|^$"),
    "repository": pattern(r"^[a-z0-9]+([._/-]+[a-z0-9]+)*$"),
    "tag": pattern("^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$"),
    "digest": pattern("^(sha256:[0-9a-f]{64})?$"),
}
RULES: Final[Mapping[str, Json]] = {
    **{f"{image}.{key}": rule for image in ("image", "scheduler.image") for key, rule in IMAGE.items()},
    **{f"{component}.{key}": rule for component in COMPONENTS for key, rule in COMMON.items()},
    **{f"monitoring.{kind}.labels": STRINGS for kind in ("podMonitor", "serviceMonitor", "rules", "dashboards")},
    "kubeVersion": pattern(r"^(v?1\.(2[0-9]|[3-9][0-9])(\.[0-9]+.*)?)?$"),
    "image.pullPolicy": enum("", "Always", "IfNotPresent", "Never"),
    "imagePullSecrets": {"type": "array", "items": {"oneOf": [NAME, REFERENCE]}, "uniqueItems": True},
    "commonLabels": STRINGS | {"propertyNames": {"not": pattern(rf"^({'|'.join(OF_OTHERS)})")}},
    "extraObjects": {"type": "array", "items": OBJECT},
    "gpus": enum("nvidia", "simulated"),
    "settings.memoryUnit": MEMORY_UNIT,
    "settings.logLevel": enum(*LEVELS),
    "runtimeClass.handler": EMPTY_OR_NAME,
    "runtimeClass.mode": enum("", "if-exists", "where-needed", "always", "never"),
    "runtimeClass.refuse": enum("", "without-gpus", "always", "nothing"),
    "runtimeClass.names": NAMES,
    "exemptNamespaces": NAMES,
    "dra.claimsPerPod": COUNT,
    "watchdog": enum("none", "report", "evict", "kill"),
    "placeholders": {"type": "integer", "minimum": 0, "maximum": 100},
    "certificates.source": enum("self", "cert-manager", "files"),
    "certificates.secretName": NAME,
    "certificates.caBundle": pattern("^[A-Za-z0-9+/=]*$"),
    "certificates.issuerRef": {
        "type": "object",
        "properties": {"name": NAME, "kind": STRING, "group": STRING},
        "dependencies": {"kind": ["name"], "group": ["name"]},
        "additionalProperties": False,
    },
    "dashboard.hosts": NAMES,
    "dashboard.secretName": NAME,
    "networkPolicy.prometheusNamespaces": NAMES,
    "networkPolicy.controlPlane": {"type": "array", "items": pattern(CIDR), "uniqueItems": True},
    "monitoring.interval": pattern("^([0-9]+(ms|s|m|h))*$"),
    "monitoring.namespace": EMPTY_OR_NAME,
    "devicePlugin.kubeletDirectory": pattern("^/.*[^/]$"),
    "devicePlugin.volumes": {"type": "array", "items": OBJECT},
    "devicePlugin.volumeMounts": {"type": "array", "items": OBJECT},
}
"""What may be written for a value, where its default does not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of the chart."""

    path: str
    """Keys, with points between them."""
    default: Any
    schema: Json
    text: str


@functools.cache
def values() -> tuple[Value, ...]:
    """All values that values.yaml explains, in its order.

    Raises:
        ValueError: A value there has no comment.
    """
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    found, comment, path = [], "", [""]
    for line in text.splitlines():
        if match := re.fullmatch(r" *# (.*)", line):
            comment = f"{comment} {match[1]}".strip()
            continue
        if match := re.match(r"( *)([A-Za-z]+):", line):
            path = [*path[: len(match[1]) // 2], match[2]]
            default = functools.reduce(lambda at, key: at[key], path, defaults)
            if comment:
                name = ".".join(path)
                found.append(
                    Value(path=name, default=default, schema=RULES.get(name) or _rule(name, default), text=comment)
                )
            elif not (isinstance(default, dict) and default) and not _is_explained(path, found):
                raise ValueError(f"values.yaml: {'.'.join(path)} has no comment")
        comment = ""
    return tuple(found)


def _is_explained(path: list[str], found: list[Value]) -> bool:
    return bool(found) and ".".join(path).startswith(found[-1].path + ".")


def _rule(path: str, default: Any) -> Json:
    component, _, key = path.partition(".")
    if key == "settings":
        fields_of = fields(component) if component in SETTINGS else ()
        return _node() | {"properties": {camel(field.name): setting_schema(field) for field in fields_of}}
    return {"type": {bool: "boolean", int: "integer", str: "string", dict: "object", list: "array"}[type(default)]}


def _node() -> Json:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def camel(name: str) -> str:
    """The value's key for a setting's field."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def setting_schema(field: "dataclasses.Field[Any]") -> Json:
    """What may be written for a setting."""
    if field.name in WORDS:
        return enum(*WORDS[field.name])
    if field.name in PATTERNS:
        return pattern(PATTERNS[field.name])
    match field.default:
        case bool():
            return {"type": "boolean"}
        case int() | float():
            return {"type": "number", "minimum": 0}
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
        schema = setting_schema(field)
        default = options.written(field.default)
        if schema["type"] != "string":
            default = json.loads(default)
        path = f"{component}.settings.{camel(field.name)}"
        yield Value(path=path, default=default, schema=schema, text=field.metadata["help"])


def schema() -> Json:
    """The chart's values.schema.json. What every component has is there once, in `$defs`."""
    root: Json = _node() | {"$schema": "http://json-schema.org/draft-07/schema#"}
    # Where this chart is part of another, Helm adds the first, and that chart's condition may be the second.
    root["properties"] |= {"global": OBJECT, "enabled": {"type": "boolean"}}
    root["$defs"] = dict(COMMON)
    for value in values():
        *parents, key = value.path.split(".")
        node = root
        for parent in parents:
            node = node["properties"].setdefault(parent, _node())
        shared = key in COMMON and parents[0] in COMPONENTS
        node["properties"][key] = {"$ref": f"#/$defs/{key}"} if shared else {"description": value.text} | value.schema
        _require(root, parents if value.default in ("", None, [], {}) else [*parents, key])
    return root


def _require(node: Json, path: list[str]) -> None:
    """Helm names what is missing where a null took a default away, or an older version's values are used again."""
    for key in path:
        required = node.setdefault("required", [])
        if key not in required:
            required.append(key)
        node = node["properties"][key]


def written() -> Mapping[str, str]:
    """The files of the chart that are made from its values."""
    return {"values.schema.json": json.dumps(schema(), indent=1) + "\n"}


PAGE_HEAD: Final = """# Values of the Helm chart

[Install](../install.md#install-with-helm) says how to use them. Helm refuses values that are not in this table, and
says which, but for `global`, which is of the chart around this one. The keys of `webhook.settings`,
`controller.settings` and `devicePlugin.settings` are the [settings](settings.md) of the programs, in camel case:
`--gpu-policy` is `controller.settings.gpuPolicy`.
This page is written by `make docs` from `manifests/chart/values.yaml`; do not edit it.

| value | default | meaning |
|---|---|---|
"""


def page() -> str:
    """The reference page. What every component has is a row of its own once, with the default of each that differs."""
    rows: dict[tuple[str, str], list[Value]] = {}
    for value in values():
        component, _, key = value.path.partition(".")
        rows.setdefault((key if component in COMPONENTS else value.path, value.text), []).append(value)
    return PAGE_HEAD + "".join(map(_row, rows.values()))


def _row(same: list[Value]) -> str:
    paths = ", ".join(f"`{value.path}`" for value in same)
    defaults = dict.fromkeys(json.dumps(value.default) for value in same)
    shown = ", ".join(f"`{text}`" for text in defaults)
    return f"| {paths} | {shown} | {same[0].text.replace('|', chr(92) + '|')} |\n"
