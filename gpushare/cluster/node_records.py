"""What is kept of a node: its GPUs, and which of them others than its plugin keep new pods away from. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare import names
from gpushare.cluster import cordons
from gpushare.cluster.cordons import Cordon
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.model.capacity import FreeHost
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.wire import fields
from gpushare.wire import inventory as inventory_wire
from gpushare.wire import pods as pods_wire

_NONE: Final[frozenset[int]] = frozenset()
_NO_CORDON: Final = Cordon()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    name: NodeName
    published: str | None  # the inventory as it was read, to see without decoding that a node has not changed
    cordon: Cordon = _NO_CORDON
    unhealthy: frozenset[int] = _NONE  # numbers of GPUs that somebody beside the plugin calls unhealthy
    inventory: NodeInventory | None = None  # with what `cordon` and `unhealthy` say of its GPUs
    problem: str = ""  # why an inventory that is there cannot be read
    # It has none that can be read, and will share: it has the device plugin's label, or the resource of a system from
    # which this one takes over. Nodes with `nvidia.com/gpu` alone may keep another plugin for good.
    awaited: bool = False
    allocatable: FreeHost | None = None  # CPU and memory that it gives to pods; None if its kubelet has not said so


def read(node: Mapping[str, Any], known: NodeRecord | None = None, unhealthy: frozenset[int] = _NONE) -> NodeRecord:
    """What matters of a node; `known` if that has not changed. Raises WireError: it is no node."""
    name = name_of(node)
    annotations = fields.mapping(fields.mapping(node, "metadata", "node"), "annotations", "metadata")
    published, cordon = annotations.get(names.ANNOTATION_INVENTORY), annotations.get(names.ANNOTATION_CORDON) or ""
    held = annotations.get(names.ANNOTATION_HELD) or ""
    if not isinstance(cordon, str) or not isinstance(held, str) or not isinstance(published, str | None):
        raise WireError("metadata.annotations: expected strings")
    record = NodeRecord(
        name=name,
        published=published,
        cordon=Cordon(gpus=cordon, held=held),
        unhealthy=unhealthy,
        awaited=published is None and _is_awaited(node),
        allocatable=pods_wire.allocatable(node),
    )
    if known is not None and record == replace(known, inventory=None, problem=""):
        return known
    return _with_inventory(record)


def marked_unhealthy(record: NodeRecord, unhealthy: frozenset[int]) -> NodeRecord:
    """The same node after somebody beside the plugin has called other GPUs unhealthy."""
    return record if record.unhealthy == unhealthy else _with_inventory(replace(record, unhealthy=unhealthy))


def sharing(records: Iterable[NodeRecord]) -> Iterator[NodeInventory | None]:
    """The inventories of nodes that share or will; None for each that has not published one that can be read."""
    return (record.inventory for record in records if record.inventory is not None or record.awaited or record.problem)


def unknown_gpus(record: NodeRecord) -> list[str]:
    """Entries of the node's cordon that name none of its GPUs."""
    if record.inventory is None:
        return []
    known = {name for gpu in record.inventory.gpus for name in cordons.names_of(gpu)}
    return [entry for entry in cordons.entries(record.cordon.gpus) if entry not in known]


def _with_inventory(record: NodeRecord) -> NodeRecord:
    if record.published is None:
        return record
    try:
        inventory = inventory_wire.decode(record.published, record.name)
    except WireError as error:
        return replace(record, problem=str(error))
    cordoned, unhealthy = set(cordons.entries(record.cordon.gpus)), record.unhealthy

    def health(gpu: Gpu) -> GpuHealth:
        if gpu.health is GpuHealth.UNHEALTHY or unhealthy & cordons.numbers(gpu):
            return GpuHealth.UNHEALTHY
        return GpuHealth.CORDONED if cordons.names_of(gpu) & cordoned else GpuHealth.HEALTHY

    if cordoned or unhealthy:
        inventory = replace(inventory, gpus=tuple(replace(gpu, health=health(gpu)) for gpu in inventory.gpus))
    return replace(record, inventory=inventory)


def _is_awaited(node: Mapping[str, Any]) -> bool:
    labels = fields.mapping(fields.mapping(node, "metadata", "node"), "labels", "metadata")
    # While the former plugin is replaced, its resource is still in the capacity, but not allocatable.
    capacity = fields.mapping(fields.mapping(node, "status", "node"), "capacity", "status")
    return labels.get(names.LABEL_SHARES) == "true" or any(
        capacity.get(resource, "0") != "0" for resource in names.SHARED_RESOURCES
    )


def name_of(node: Mapping[str, Any]) -> NodeName:
    """Which node it is. Raises WireError: it is no node."""
    return NodeName(fields.needed(fields.mapping(node, "metadata", "node"), "name", "metadata"))


def unknown(name: NodeName) -> str:
    return f"node {name} is unknown to the gpushare controller; it may have been added a moment ago"
