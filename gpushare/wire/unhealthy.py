"""Aliyun's way to say which GPUs must not be used: a ConfigMap for each node, with their numbers. Raises WireError."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names
from gpushare.identity import NodeName
from gpushare.wire import fields

_NUMBER: Final = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Marked:
    node: NodeName
    gpus: frozenset[int] = frozenset()  # empty if the list is empty or missing
    problem: str = ""  # what of it cannot be read; the rest counts


def parse(config_map: Mapping[str, Any]) -> Marked | None:
    """What a ConfigMap of the right namespace says of a node's GPUs; None if it is about something else."""
    name = fields.text(fields.mapping(config_map, "metadata", "ConfigMap"), "name", "metadata")
    node = _node_of(name)
    if not node:
        return None
    what = f"ConfigMap {name}"
    text = fields.text(fields.mapping(config_map, "data", what), names.UNHEALTHY_KEY, f"{what}.data")
    entries = [entry for part in text.split(",") if (entry := part.strip())]
    odd = [entry for entry in entries if _NUMBER.fullmatch(entry) is None]
    gpus = frozenset(int(entry) for entry in entries if entry not in odd)
    if not odd:
        return Marked(NodeName(node), gpus)
    quoted = ", ".join(f"{entry!r:.40}" for entry in odd[:5])
    return Marked(NodeName(node), gpus, f"{names.UNHEALTHY_KEY}: no numbers of GPUs: {quoted}")


def of_all(config_maps: Iterable[Mapping[str, Any]]) -> dict[NodeName, frozenset[int]]:
    """Numbers of the GPUs that must not be used, by node; ConfigMaps with other names or namespaces are passed over."""
    gpus_by_node: dict[NodeName, frozenset[int]] = {}
    for config_map in config_maps:
        namespace = fields.text(fields.mapping(config_map, "metadata", "ConfigMap"), "namespace", "metadata")
        if namespace == names.UNHEALTHY_NAMESPACE and (marked := parse(config_map)) is not None:
            gpus_by_node[marked.node] = marked.gpus
    return gpus_by_node


def is_one(namespace: str, name: str) -> bool:
    return namespace == names.UNHEALTHY_NAMESPACE and bool(_node_of(name))


def _node_of(name: str) -> str:
    return name.removeprefix(names.PREFIX_UNHEALTHY) if name.startswith(names.PREFIX_UNHEALTHY) else ""
