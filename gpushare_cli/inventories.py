"""The GPUs of a node, from whatever its object tells of them. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from gpushare import names, units
from gpushare.cluster import node_records
from gpushare.identity import NodeName, by_index
from gpushare.model.gpu import MAX_GPUS, Gpu, NodeInventory
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import fields

_MIB: Final = MemoryUnit(1)


def of_node(
    node: Mapping[str, Any], unhealthy: Mapping[NodeName, frozenset[int]], notes: list[str]
) -> tuple[NodeInventory, int] | None:
    """GPUs of a node and the MiB that it can hand out, or None if it shares no GPUs."""
    name = node_records.name_of(node)
    record = node_records.read(node, None, unhealthy.get(name, frozenset()))
    if record.inventory is not None:
        return record.inventory, record.inventory.unit.to_mib(record.inventory.total_units)
    if record.problem:
        notes.append(f"{record.problem}; its GPUs are shown as equal")
    return equal_gpus(node, notes)


def equal_gpus(
    node: Mapping[str, Any], notes: list[str], unit: MemoryUnit | None = None
) -> tuple[NodeInventory, int] | None:
    """GPUs of a node of which Aliyun's plugin tells how many there are and what they have together."""
    name = node_records.name_of(node)
    allocatable = fields.mapping(fields.mapping(node, "status", "node"), "allocatable", "status")
    total = units.whole(allocatable.get(names.GPU_MEM))
    if total == 0:
        return None
    count = units.whole(allocatable.get(names.GPU_COUNT))
    if count == 0:
        notes.append(f"node {name}: no {names.GPU_COUNT} in its status; its memory is shown as one GPU")
        count = 1
    if count > MAX_GPUS:
        notes.append(f"node {name}: {names.GPU_COUNT} is {count}, more than any node has; shown as one GPU")
        count = 1
    # Else Aliyun's own rule, which has no other sign of the unit.
    unit = unit or (_MIB if total // count > 100 else GIB)
    each = unit.to_mib(total // count)
    gpus = tuple(Gpu(uuid=by_index(i), index=i, model="unknown", memory_mib=each) for i in range(count))
    return NodeInventory(node=name, gpus=gpus, unit=unit), unit.to_mib(total)
