"""What a source read -> the node's inventory. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from deviceplugin.source import GpuSourceError, RawGpu
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, GpuHealth, Limit, NodeInventory
from gpushare.units import MemoryUnit

NOT_LISTED: Final = "the driver does not list it any more"
_MIB: Final = 1024 * 1024


def build(
    raw: Sequence[RawGpu],
    *,
    node: NodeName,
    unit: MemoryUnit,
    previous: NodeInventory | None = None,
    missing: str = NOT_LISTED,
) -> NodeInventory:
    """The inventory after one reading.

    A GPU of the previous inventory that the reading lacks stays listed as unhealthy: it fell off the bus while pods
    hold it, and the node's ledger must not move under them. It is forgotten once another GPU has taken its number.
    The cause in the inventory is then `missing`, in a few words.

    Raises:
        GpuSourceError: the reading contradicts itself.
    """
    present = [_gpu(gpu).counted_in(unit) for gpu in raw]
    uuids = {gpu.uuid for gpu in present}
    indices = {gpu.index for gpu in present}
    lost = [
        replace(gpu, health=GpuHealth.UNHEALTHY, reason=missing)
        for gpu in (previous.gpus if previous else ())
        if gpu.uuid not in uuids and gpu.index not in indices
    ]
    try:
        gpus = sorted([*present, *lost], key=lambda gpu: gpu.index)
        return NodeInventory(node=node, gpus=tuple(gpus), unit=unit)
    except ValueError as error:
        raise GpuSourceError(f"{error}; the GPU source is broken") from error


def unusable(inventory: NodeInventory, why: str) -> NodeInventory:
    """The inventory of a node on which no container can be given a GPU, for a cause of the node's own."""
    gpus = tuple(replace(gpu, health=GpuHealth.UNHEALTHY, reason=why) for gpu in inventory.gpus)
    return replace(inventory, gpus=gpus)


def _gpu(raw: RawGpu) -> Gpu:
    return Gpu(
        uuid=GpuUuid(raw.uuid),
        index=raw.index,
        model=raw.model,
        memory_mib=raw.memory_bytes // _MIB,
        numa=raw.numa,
        health=GpuHealth.UNHEALTHY if raw.fault else GpuHealth.HEALTHY,
        reason=raw.fault,
        limit=Limit.MIG if raw.mig else Limit.ADVISORY,
        mig=raw.mig,
    )
