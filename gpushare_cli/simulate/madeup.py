"""A cluster that exists in a profile of GPUs only. Pure."""

from collections.abc import Collection
from typing import Any, Final

from gpushare.errors import SettingsError
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.units import MemoryUnit
from gpushare.wire import profile
from gpushare_cli import yamls

MAX_NODES: Final = 5_000
_IN_CONFIG_MAP: Final = "profile.yaml"


def document(documents: list[object], what: str) -> object:
    """The profile of a file: itself, or inside of the ConfigMap that the device plugin reads.

    Raises:
        WireError: the profile inside of a ConfigMap is no YAML.
    """
    first = next((document for document in documents if document is not None), None)
    if isinstance(first, dict) and first.get("kind") == "ConfigMap":
        data: Any = first.get("data")
        inner = data.get(_IN_CONFIG_MAP) if isinstance(data, dict) else None
        if isinstance(inner, str):
            loaded = yamls.load_all(inner, f"{what}, data[{_IN_CONFIG_MAP}]")
            return next((document for document in loaded if document is not None), None)
    return first


def inventories(
    found: object, count: int | None, unit: MemoryUnit, taken: Collection[str]
) -> tuple[NodeInventory, ...]:
    """Nodes with the GPUs of a profile: those that it names, and others up to the number.

    Args:
        found: the decoded profile.
        count: of nodes; None for those that the profile names and one other.
        unit: of the cluster.
        taken: names of other nodes.

    Raises:
        WireError: it is no profile.
        SettingsError: the number contradicts it.
    """
    named = profile.nodes(found)
    has_others = not named or (isinstance(found, dict) and "gpus" in found)
    total = count if count is not None else len(named) + has_others
    if total > MAX_NODES:
        raise SettingsError(f"--nodes {total}: at most {MAX_NODES} nodes can be made up")
    if total < len(named):
        raise SettingsError(f"--nodes {total}: the profile names {len(named)} nodes: {', '.join(named)}")
    others = _names(total - len(named), {*named, *taken})
    return tuple(profile.inventory(found, NodeName(name), unit) for name in [*named, *others])


def _names(count: int, taken: Collection[str]) -> list[str]:
    """`node-1` and so on, with as many digits as the last one needs, so that they sort by number."""
    digits = len(str(count))
    made: list[str] = []
    number = 0
    while len(made) < count:
        number += 1
        name = f"node-{number:0{digits}}"
        if name not in taken:
            made.append(name)
    return made
