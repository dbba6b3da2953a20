"""`gpushare.dev/inventory` on a node: JSON <-> NodeInventory."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, LeftOut, Limit, MigInstance, NodeInventory
from gpushare.units import MemoryUnit
from gpushare.wire import fields

_HAND_OVERS: Final = {each.value: each for each in HandOver}
_LIMITS: Final = {each.value: each for each in Limit}


def encode(inventory: NodeInventory) -> str:
    value: dict[str, Any] = {
        "version": 1,
        "unitMiB": inventory.unit.mib,
        "gpus": [_encoded(gpu) for gpu in inventory.gpus],
    }
    if inventory.hand_over_reason or inventory.hand_over is not HandOver.ENVVAR:
        value["handOver"] = {"strategy": inventory.hand_over.value, "reason": inventory.hand_over_reason}
    if inventory.left_out:
        value["leftOut"] = [{"index": gpu.index, "reason": gpu.reason} for gpu in inventory.left_out]
    if inventory.dra:  # apart from the others: a version that knows nothing of modes must grant none of these
        value["dra"] = [_encoded(gpu) for gpu in inventory.dra]
    return fields.dump_json(value)


def decode(text: str, node: NodeName) -> NodeInventory:
    """Read the annotation's value. Raises WireError: this version cannot read it."""
    try:
        value = fields.load_versioned(text)
        gpus = _gpus(fields.needed_objects(value, "gpus", ""), "gpus")
        unit = MemoryUnit(fields.integer(value, "unitMiB", "", least=1))
        hand_over = fields.mapping(value, "handOver", "")
        return NodeInventory(
            node=node,
            gpus=gpus,
            unit=unit,
            # A word of a later version: such a node may need what NVIDIA's runtime needs.
            hand_over=_HAND_OVERS.get(fields.text(hand_over, "strategy", "handOver"), HandOver.ENVVAR),
            hand_over_reason=fields.text(hand_over, "reason", "handOver"),
            left_out=tuple(
                LeftOut(
                    index=fields.integer(entry, "index", f"leftOut[{i}]"),
                    reason=fields.text(entry, "reason", f"leftOut[{i}]"),
                )
                for i, entry in enumerate(fields.objects(value, "leftOut", ""))
            ),
            dra=_gpus(fields.objects(value, "dra", ""), "dra"),
        )
    except (ValueError, WireError) as error:
        raise WireError(f"annotation {names.ANNOTATION_INVENTORY} of node {node}: {error}") from error


def of_node(node: Mapping[str, Any]) -> NodeInventory | None:
    """The inventory on a Node object, or None if its plugin has published none. Raises WireError: it cannot be read."""
    metadata = fields.mapping(node, "metadata", "node")
    annotations = fields.mapping(metadata, "annotations", "metadata")
    if names.ANNOTATION_INVENTORY not in annotations:
        return None
    text = fields.text(annotations, names.ANNOTATION_INVENTORY, "metadata.annotations")
    return decode(text, NodeName(fields.needed(metadata, "name", "metadata")))


def _encoded(gpu: Gpu) -> dict[str, Any]:
    """What is not said has its default, as in inventories of plugins that knew nothing of it."""
    value: dict[str, Any] = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memoryMiB": gpu.memory_mib,
        "numa": gpu.numa,
        "health": gpu.health.value,
    }
    more = {
        "grantableMiB": gpu.extra_mib and gpu.grantable_mib,
        "reason": gpu.reason,
        "limit": "" if gpu.limit is Limit.ADVISORY else gpu.limit.value,
        "limitReason": gpu.limit_reason,
        "mig": gpu.mig and {"gpu": gpu.mig.gpu, "number": gpu.mig.number, "profile": gpu.mig.profile},
    }
    return value | {key: said for key, said in more.items() if said}


def _gpus(entries: Sequence[fields.JsonObject], path: str) -> tuple[Gpu, ...]:
    found = (_gpu(entry, f"{path}[{i}]") for i, entry in enumerate(entries))
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def _gpu(entry: fields.JsonObject, path: str) -> Gpu:
    return Gpu(
        uuid=GpuUuid(fields.needed(entry, "uuid", path)),
        index=fields.integer(entry, "index", path),
        model=fields.needed(entry, "model", path),
        memory_mib=(memory_mib := fields.integer(entry, "memoryMiB", path)),
        # Plugins that know nothing of it let no more be granted than there is, and so do controllers.
        extra_mib=fields.integer(entry, "grantableMiB", path, default=memory_mib) - memory_mib,
        numa=fields.optional_integer(entry, "numa", path),
        # Anything but Healthy keeps new work away, also a word that a later version introduces.
        health=GpuHealth.HEALTHY if entry.get("health") == GpuHealth.HEALTHY.value else GpuHealth.UNHEALTHY,
        reason=fields.text(entry, "reason", path),
        # A word of a later version promises nothing here.
        limit=_LIMITS.get(fields.text(entry, "limit", path), Limit.ADVISORY),
        limit_reason=fields.text(entry, "limitReason", path),
        mig=_mig(fields.mapping(entry, "mig", path), fields.at(path, "mig")),
    )


def _mig(entry: fields.JsonObject, path: str) -> MigInstance | None:
    if not entry:
        return None
    return MigInstance(
        gpu=fields.integer(entry, "gpu", path),
        number=fields.integer(entry, "number", path),
        profile=fields.text(entry, "profile", path),
    )
