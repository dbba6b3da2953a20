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
    try:
        value = json.load(text)
        gpus = [_gpu(entry, f"gpus[{i}]") for i, entry in enumerate(fields.needed_objects(value, "gpus", ""))]
        unit = MemoryUnit(fields.integer(value, "unitMiB", "", least=1))
        return NodeInventory(node=node, gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)), unit=unit)
    except (ValueError, WireError) as error:
        raise WireError(f"annotation {names.ANNOTATION_INVENTORY} of node {node}: {error}") from error


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


def _gpu(entry: fields.JsonObject, path: str) -> Gpu:
    return Gpu(
        uuid=GpuUuid(fields.needed(entry, "uuid", path)),
        index=fields.integer(entry, "index", path),
        model=fields.needed(entry, "model", path),
        memory_mib=fields.integer(entry, "memoryMiB", path),
        numa=fields.optional_integer(entry, "numa", path),
        # Anything but Healthy keeps new work away, also a word that a later version introduces.
        health=GpuHealth.HEALTHY if entry.get("health") == GpuHealth.HEALTHY.value else GpuHealth.UNHEALTHY,
    )
