"""Whether the fields of an object are those of Kubernetes' API, by the models of its official client."""

import re
from collections.abc import Iterator
from typing import Any, Final

import kubernetes.client

AMOUNTS: Final = {"limits", "requests", "hard", "default", "defaultRequest", "max", "min"}
"""Fields with quantities, which may be written as numbers; the client's models say strings."""
NOT_IN_MODELS: Final = (".config.k8s.io", "scheduling.k8s.io")
"""Ends of Kubernetes' groups that are for files of its programs, or newer than the client."""
PLAIN: Final = {"str": (str, "a string"), "int": (int, "a number"), "bool": (bool, "true or false")}
"""Types of the models that are Python's, and what they are called."""
_GROUP: Final = re.compile(r"^(?:.*/)?v(\d)((?:alpha|beta)\d)?$")


def model_of(document: dict[str, Any]) -> str:
    """The client's name for an object's kind, or an empty string if the client has none."""
    found = _GROUP.match(str(document.get("apiVersion", "")))
    name = f"V{found[1]}{(found[2] or '').capitalize()}{document.get('kind', '')}" if found else ""
    return name if hasattr(kubernetes.client, name or "-") else ""


def is_own(document: dict[str, Any]) -> bool:
    """Whether an object says that it is of one of Kubernetes' own groups."""
    group = str(document.get("apiVersion", "-/")).rpartition("/")[0]
    is_known = "." not in group or (group.endswith(".k8s.io") and not group.endswith(NOT_IN_MODELS))
    return "apiVersion" in document and is_known


def unknown(value: object, model: str, path: str = "") -> Iterator[str]:
    """Paths of the fields that the API does not have, or that have another type.

    Args:
        value: as read from YAML.
        model: a type as the client writes it, such as `V1PodSpec`, `List[V1Container]` or `str`.
        path: of the value.
    """
    if inner := re.fullmatch(r"List\[(.+)\]", model):
        if not isinstance(value, list):
            yield f"{path}: a list is expected"
            return
        for i, each in enumerate(value):
            yield from unknown(each, inner[1], f"{path}[{i}]")
    elif inner := re.fullmatch(r"Dict\[str, (.+)\]", model):
        if not isinstance(value, dict):
            yield f"{path}: an object is expected"
            return
        for key, each in value.items():
            is_amount = path.rpartition(".")[2] in AMOUNTS and isinstance(each, int)
            yield from () if is_amount else unknown(each, inner[1], f"{path}.{key}")
    elif (cls := getattr(kubernetes.client, model, None)) is not None and hasattr(cls, "attribute_map"):
        yield from _unknown_fields(value, cls, path)
    elif model in PLAIN and type(value) is not PLAIN[model][0]:
        yield f"{path}: {PLAIN[model][1]} is expected"


def _unknown_fields(value: object, cls: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: an object is expected"
        return
    types = {written: cls.openapi_types[name] for name, written in cls.attribute_map.items()}
    for key, each in value.items():
        if key in types:
            yield from unknown(each, types[key], f"{path}.{key}")
        else:
            yield f"{path}.{key}: no such field"
