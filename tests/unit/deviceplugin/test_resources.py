"""Device IDs: what they stand for, and how many there are."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import resources, server
from deviceplugin.resources import MEMORY, PERCENT, WHOLE, Advertisement
from gpushare.errors import SettingsError
from gpushare.identity import NodeName
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.units import GIB, MemoryUnit
from testing.builders import make_gpu, make_inventory
from tests.unit.deviceplugin import golden


def test_memory_is_always_offered() -> None:
    offered = [
        resources.offered(percent=percent, whole_gpus=whole) for percent in (False, True) for whole in (False, True)
    ]
    assert offered == [(MEMORY,), (MEMORY, WHOLE), (MEMORY, PERCENT), (MEMORY, PERCENT, WHOLE)]


def test_a_resource_knows_its_own_devices() -> None:
    for number, resource in itertools.product((0, 1, 35, 36, 1295, 1296, 19_999, 46_655), (MEMORY, PERCENT, WHOLE)):
        own = [each for each in (MEMORY, PERCENT, WHOLE) if each.is_own_id(resource.device(number))]
        assert own == [resource], number


def test_devices_of_other_plugins_are_told_apart() -> None:
    others = ("GPU-3b1f7a9e-3c1f-4c1d-8f57-0d8f4f0e1a2b-_-11", "nano-0-07", "nano", "G000", "p000")
    for device in ("", "g", "g00", "g0000", "g00A", "g00\u0661", *others):
        assert not MEMORY.is_own_id(device), device


EVERYTHING = resources.offered(percent=True, whole_gpus=True)
HEALTH = st.sampled_from(GpuHealth)


def memory(inventory: NodeInventory) -> Advertisement:
    return resources.devices(inventory, [resources.MEMORY])["aliyun.com/gpu-mem"]


@given(st.lists(st.tuples(st.integers(0, 99_999), HEALTH), min_size=1, max_size=8), st.sampled_from([1, 64, 256, 1024]))
def test_ids_are_short_unique_opaque_and_as_many_as_the_units(gpus: list[tuple[int, GpuHealth]], mib: int) -> None:
    built = tuple(make_gpu(i, mib=memory, health=health) for i, (memory, health) in enumerate(gpus))
    inventory = NodeInventory(node=NodeName("node-a"), gpus=built, unit=MemoryUnit(mib))
    units = sum(gpu.grantable_mib // mib for gpu in built)
    if not 0 < units <= resources.MAX_DEVICES:
        with pytest.raises(SettingsError):
            memory(inventory)
        return
    found = memory(inventory)
    ids = found.healthy + found.unhealthy
    assert len(set(ids)) == len(ids) == units
    assert all(re.fullmatch("g[0-9a-z]{3}", device) for device in ids)
    assert len(found.unhealthy) == sum(
        inventory.unit.floor(gpu.memory_mib) for gpu in built if gpu.health is not GpuHealth.HEALTHY
    )


def test_the_largest_list_is_far_below_what_a_kubelet_can_receive() -> None:
    inventory = make_inventory(resources.MAX_DEVICES)
    message = server.device_list(memory(inventory)).SerializeToString()
    assert len(message) < 400_000


def test_what_makes_too_many_devices_or_none_is_refused_with_what_to_do() -> None:
    inventories = [
        make_inventory(*[80] * 8, unit=MemoryUnit.parse("MiB")),
        make_inventory(*[140] * 8, unit=MemoryUnit.parse("32MiB")),
        make_inventory(20, unit=MemoryUnit.parse("MiB")),
        make_inventory(15, 15, unit=MemoryUnit.parse("16GiB")),
        make_inventory(*[15] * 201),
    ]
    said = [golden.error(SettingsError, resources.devices, inventory, EVERYTHING) for inventory in inventories]
    golden.compare("devices", said)


def test_every_resource_has_its_devices_of_every_gpu() -> None:
    gpus = (make_gpu(0, 2), make_gpu(1, 3, health=GpuHealth.UNHEALTHY), make_gpu(2, 1))
    found = resources.devices(NodeInventory(node=NodeName("node-a"), gpus=gpus, unit=GIB), EVERYTHING)
    assert list(found) == ["aliyun.com/gpu-mem", "nano-gpu/gpu-percent", "nvidia.com/gpu"]
    units = Advertisement(healthy=("g000", "g001", "g005"), unhealthy=("g002", "g003", "g004"))
    assert found["aliyun.com/gpu-mem"] == units
    percent = found["nano-gpu/gpu-percent"]
    assert (len(percent.healthy), len(percent.unhealthy)) == (200, 100)
    assert (percent.healthy[0], percent.unhealthy[0], percent.unhealthy[-1]) == ("p000", "p02s", "p05j")
    assert found["nvidia.com/gpu"] == Advertisement(healthy=("w000", "w002"), unhealthy=("w001",))


def test_the_limit_counts_for_each_resource_by_itself() -> None:
    found = resources.devices(make_inventory(*[100] * 199), EVERYTHING)
    assert [len(one.healthy) for one in found.values()] == [19_900, 19_900, 199]
