"""`gpushare.dev/inventory` on a node: JSON <-> NodeInventory."""

from collections.abc import Mapping
from typing import Any

from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.units import MemoryUnit
from gpushare.wire import fields, json


def encode(inventory: NodeInventory) -> str:
    """The annotation's value."""
    return json.dump(
        {
            "version": 1,
            "unitMiB": inventory.unit.mib,
            "gpus": [
                {
                    "uuid": gpu.uuid,
                    "index": gpu.index,
                    "model": gpu.model,
                    "memoryMiB": gpu.memory_mib,
                    "numa": gpu.numa,
                    "health": gpu.health.value,
                }
                for gpu in inventory.gpus
            ],
        }
    )


def decode(text: str, node: NodeName) -> NodeInventory:
    """Read the annotation's value.

    Raises:
        WireError: not an inventory that this version can read.
    """
    what = f"annotation {names.ANNOTATION_INVENTORY} of node {node}"
    value = json.load(text, what)
    gpus = tuple(_gpu(entry, f"{what}, gpus[{i}]") for i, entry in enumerate(json.objects(value, "gpus", what)))
    unit = json.integer(value, "unitMiB", what)
    if unit == 0:
        raise WireError(f"{what}: field 'unitMiB' must be at least 1")
    try:
        return NodeInventory(node=node, gpus=tuple(sorted(gpus, key=_index)), unit=MemoryUnit(unit))
    except ValueError as error:
        raise WireError(f"{what}: {error}") from error


def of_node(node: Mapping[str, Any]) -> NodeInventory | None:
    """The inventory on a Node object, or None if its plugin has published none.

    Raises:
        WireError: there is one, but it cannot be read.
    """
    metadata = fields.mapping(node, "metadata", "node")
    annotations = fields.mapping(metadata, "annotations", "metadata")
    if names.ANNOTATION_INVENTORY not in annotations:
        return None
    text = fields.text(annotations, names.ANNOTATION_INVENTORY, "metadata.annotations")
    return decode(text, NodeName(fields.needed(metadata, "name", "metadata")))


def _index(gpu: Gpu) -> int:
    return gpu.index


def _gpu(entry: json.JsonObject, what: str) -> Gpu:
    numa = entry.get("numa")
    return Gpu(
        uuid=GpuUuid(json.text(entry, "uuid", what)),
        index=json.integer(entry, "index", what),
        model=json.text(entry, "model", what),
        memory_mib=json.integer(entry, "memoryMiB", what),
        numa=None if numa is None else json.integer(entry, "numa", what),
        # Anything but Healthy keeps new work away, also a word that a later version introduces.
        health=GpuHealth.HEALTHY if entry.get("health") == GpuHealth.HEALTHY.value else GpuHealth.UNHEALTHY,
    )
