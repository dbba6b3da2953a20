"""What the source read becomes the node's inventory."""

import pytest

from deviceplugin import inventory
from deviceplugin.source import GpuSourceError, RawGpu
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu, Limit, MigInstance, NodeInventory, mig_index
from gpushare.units import GIB, MemoryUnit
from testing.deviceplugin.build import NODE, raw_gpu


def build(*raw: RawGpu, previous: NodeInventory | None = None, unit: MemoryUnit = GIB) -> NodeInventory:
    return inventory.build(raw, node=NODE, unit=unit, previous=previous)


def healths(found: NodeInventory) -> dict[str, str]:
    return {gpu.uuid: gpu.health.value for gpu in found.gpus}


def test_memory_is_rounded_down_to_whole_mib() -> None:
    raw = RawGpu(uuid="GPU-x", index=3, model="Tesla T4", memory_bytes=15109 * 1024**2 + 1024**2 - 1, numa=1)
    assert build(raw).gpus == (Gpu(uuid=GpuUuid("GPU-x"), index=3, model="Tesla T4", memory_mib=15109, numa=1),)


def test_gpus_are_ordered_by_their_number_and_the_unhealthy_ones_have_their_reason() -> None:
    found = build(raw_gpu(1, fault="Xid 79"), raw_gpu(0), previous=build(raw_gpu(0), raw_gpu(1), raw_gpu(2)))
    assert healths(found) == {"GPU-0": "Healthy", "GPU-1": "Unhealthy", "GPU-2": "Unhealthy"}
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2]
    assert [gpu.reason for gpu in found.gpus] == ["", "Xid 79", "the driver does not list it any more"]


def test_a_gpu_that_disappears_stays_in_the_ledger_as_unhealthy_until_it_comes_back() -> None:
    before = build(raw_gpu(0), raw_gpu(1))
    gone = build(raw_gpu(0), previous=before)
    assert healths(gone) == {"GPU-0": "Healthy", "GPU-1": "Unhealthy"}
    assert gone.total_units == before.total_units
    assert build(raw_gpu(0), raw_gpu(1), previous=gone) == before


def test_a_gpu_whose_number_another_one_took_is_forgotten() -> None:
    after = build(raw_gpu(0, uuid="GPU-new"), previous=build(raw_gpu(0), raw_gpu(1)))
    assert healths(after) == {"GPU-new": "Healthy", "GPU-1": "Unhealthy"}


def test_two_gpus_with_one_uuid_are_a_broken_source() -> None:
    with pytest.raises(GpuSourceError) as caught:
        build(raw_gpu(0), raw_gpu(1, uuid="GPU-0"))
    assert str(caught.value) == "node node-a: two GPUs with the same UUID or index; the GPU source is broken"


@pytest.mark.parametrize(("unit", "mib"), [(GIB, 4096), (MemoryUnit(1), 4864), (MemoryUnit(8192), 4864)])
def test_who_asks_for_all_units_of_a_mig_instance_has_all_of_it(unit: MemoryUnit, mib: int) -> None:
    """Nothing is left of it that another container could be given, so the hardware holds the limit."""
    mig = MigInstance(gpu=0, number=1, profile="1g.5gb")
    raw = RawGpu(uuid="MIG-x", index=mig_index(0, 1), model="A MIG 1g.5gb", memory_bytes=4864 * 1024**2, mig=mig)
    (found,) = build(raw, unit=unit).gpus
    assert (found.index, found.label, found.limit, found.mig, found.memory_mib) == (65, "0:1", Limit.MIG, mig, mib)
    if units := unit.floor(mib):
        assert found.limit_of(units * unit.mib) is Limit.MIG
