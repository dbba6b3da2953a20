"""Aliyun's ConfigMaps of GPUs that must not be used, one for each node. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpushare import names
from gpushare.identity import NodeName
from gpushare.wire import shape

_NUMBER: Final = re.compile(r"[0-9]{1,4}")


def of_all(maps: Iterable[Mapping[str, Any]]) -> dict[NodeName, frozenset[int]]:
    """Numbers of the GPUs that must not be used, by node. An empty list names none.

    Args:
        maps: any ConfigMaps; those with other names are passed over.

    Raises:
        WireError: one is no ConfigMap.
    """
    found: dict[NodeName, frozenset[int]] = {}
    for one in maps:
        metadata = shape.mapping(one, "metadata", "ConfigMap")
        name = shape.text(metadata, "name", "metadata")
        if is_one(shape.text(metadata, "namespace", "metadata"), name):
            what = f"ConfigMap {name}"
            text = shape.text(shape.mapping(one, "data", what), names.UNHEALTHY_KEY, f"{what}.data")
            found[NodeName(name.removeprefix(names.PREFIX_UNHEALTHY))] = _numbers(text)
    return found


def is_one(namespace: str, name: str) -> bool:
    """Whether a ConfigMap with this name is such a list."""
    return namespace == names.UNHEALTHY_NAMESPACE and name.startswith(names.PREFIX_UNHEALTHY)


def _numbers(text: str) -> frozenset[int]:
    parts = (part.strip() for part in text.split(","))
    return frozenset(int(part) for part in parts if _NUMBER.fullmatch(part))
