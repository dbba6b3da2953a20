"""Edits of a container's `env`. Pure; entries that are not named stay as they are, in their order.

In Kubernetes the last of several entries of one name counts, and `env` beats `envFrom`, the image and the device
plugin. So a variable that must hold is written, not only removed, and is the only one of its name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]


def fixed(name: str, value: str) -> Entry:
    """A variable whose value is known now."""
    return {"name": name, "value": value}


def from_annotation(name: str, annotation: str) -> Entry:
    """A variable that the kubelet fills from an annotation of the pod when the container starts; empty if it lacks."""
    return {
        "name": name,
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}},
    }


def of_name(env: Sequence[Entry], name: str) -> list[Entry]:
    """All entries of one variable."""
    return [entry for entry in env if entry.get("name") == name]


def write(env: Sequence[Entry], ours: Sequence[Entry]) -> list[Entry]:
    """The list with `ours` as the only entries of their names.

    They come first, so that `$(NAME)` in the author's entries refers to them.
    """
    taken = {entry["name"] for entry in ours}
    return [*ours, *(entry for entry in env if not _named(entry, taken))]


def _named(entry: Entry, taken: set[str]) -> bool:
    name = entry.get("name")
    return isinstance(name, str) and name in taken
