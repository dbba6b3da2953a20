"""From a reading to the node's inventory: what may be granted of it, and who waits for it."""

from dataclasses import replace
from typing import Final

import pytest

from deviceplugin import inventory, resources
from deviceplugin.inventory import Factors, InventoryFeed, Oversubscription
from deviceplugin.source import RawGpu
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu, Limit, MigInstance, NodeInventory, mig_index
from gpushare.units import GIB, MemoryUnit
from testing.builders import make_gpu, make_inventory, make_mig
from testing.deviceplugin.build import NODE, raw_gpu
from testing.deviceplugin.running import feed_with
from tests.unit.deviceplugin import golden


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


@pytest.mark.parametrize(("unit", "mib"), [(GIB, 4096), (MemoryUnit(1), 4864), (MemoryUnit(8192), 4864)])
def test_who_asks_for_all_units_of_a_mig_instance_has_all_of_it(unit: MemoryUnit, mib: int) -> None:
    """Nothing is left of it that another container could be given, so the hardware holds the limit."""
    mig = MigInstance(gpu=0, number=1, profile="1g.5gb")
    raw = RawGpu(uuid="MIG-x", index=mig_index(0, 1), model="A MIG 1g.5gb", memory_bytes=4864 * 1024**2, mig=mig)
    (found,) = build(raw, unit=unit).gpus
    assert (found.index, found.label, found.limit, found.mig, found.memory_mib) == (65, "0:1", Limit.MIG, mig, mib)
    if units := unit.floor(mib):
        assert found.limit_of(units * unit.mib) is Limit.MIG


INVENTORY: Final = make_inventory(16, 8)


def grantable(inventory: NodeInventory) -> list[int]:
    return [gpu.grantable_mib for gpu in inventory.gpus]


def mixed() -> NodeInventory:
    gpus = (make_gpu(0, 16), replace(make_gpu(1, 80), model="NVIDIA A100-SXM4-80GB"), make_mig(2, 0, 10))
    return replace(INVENTORY, gpus=gpus)


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        ("1", [16, 80, 10]),
        ("1.5", [24, 120, 10]),
        ("2.25", [36, 180, 10]),
        ("T4=1.5", [24, 80, 10]),
        ("1.2, tesla t4 = 2, A100=1.1", [32, 88, 10]),
        ("A100=1.1,A100=3", [16, 88, 10]),
    ],
)
def test_a_factor_counts_for_all_gpus_or_for_those_of_a_model_but_for_no_mig_instance(
    text: str, gib: list[int]
) -> None:
    setting = inventory.parse_factors(text)
    found, problem = inventory.oversubscribed(mixed(), setting, "")
    assert ([mib // 1024 for mib in grantable(found)], problem) == (gib, "")
    assert inventory.parse_factors(str(setting)) == setting


def test_a_setting_that_cannot_be_read_says_what_is_right() -> None:
    texts = ("", "0.9", "1.555", "10.01", "T4=x", "T4=1.5,2", "=2")
    golden.compare("factors", (golden.error(ValueError, inventory.parse_factors, text) for text in texts))


def test_the_label_of_the_node_overrides_the_setting_for_all_its_gpus() -> None:
    setting = inventory.parse_factors("3,T4=2")
    assert grantable(inventory.oversubscribed(INVENTORY, setting, "1.5")[0]) == [24 * 1024, 12 * 1024]
    assert grantable(inventory.oversubscribed(INVENTORY, setting, "1")[0]) == [16 * 1024, 8 * 1024]


def test_a_label_that_cannot_be_read_oversubscribes_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = Oversubscription(setting=Factors(200), label=lambda: "much")
    assert [part.assess(INVENTORY) for _ in range(2)] == [INVENTORY, INVENTORY]
    assert [record.message for record in caplog.records] == ["label not read"]


def test_before_the_node_was_read_the_kubelet_knows_its_devices_and_no_one_else_is_told() -> None:
    label: list[str | None] = [None]
    part = Oversubscription(setting=Factors(200), label=lambda: label[0])
    guessed = part.assess(INVENTORY)
    assert grantable(guessed) == [32 * 1024, 16 * 1024]
    assert not part.agrees(guessed)
    label[0] = "1.5"
    assert not part.agrees(guessed)
    assert part.agrees(part.assess(guessed))
    label[0] = ""
    assert part.agrees(guessed)


def test_the_kubelet_counts_what_may_be_granted_and_compute_and_whole_gpus_as_before() -> None:
    offered = resources.offered(percent=True, whole_gpus=True)
    before = resources.devices(INVENTORY, offered)
    after = resources.devices(inventory.oversubscribed(INVENTORY, Factors(150), "")[0], offered)
    counts = {name: (len(before[name].healthy), len(found.healthy)) for name, found in after.items()}
    assert counts == {names.GPU_MEM: (24, 36), names.GPU_PERCENT: (200, 200), names.GPU: (2, 2)}
    # Running pods keep their devices when the factor rises, and as many as there are still when it falls.
    assert after[names.GPU_MEM].healthy[:24] == before[names.GPU_MEM].healthy


def test_too_many_units_are_refused_with_the_unit_that_fits() -> None:
    found = make_inventory(16, unit=MemoryUnit(1), node=NODE)
    resources.devices(found, [resources.MEMORY])
    with pytest.raises(SettingsError, match="--memory-unit=2MiB would fit"):
        resources.devices(inventory.oversubscribed(found, Factors(200), "")[0], [resources.MEMORY])


def test_a_newer_snapshot_is_given_at_once_and_no_one_waits_longer_than_he_wants() -> None:
    feed = feed_with()
    found = feed.newer(0, over=lambda: False)
    assert found is feed.latest
    assert found is not None
    assert found.version == 1
    assert feed.newer(1, over=lambda: False, seconds=0.01) is None
    assert InventoryFeed().newer(0, over=lambda: False, seconds=0.01) is None
    assert feed.newer(0, over=lambda: True) is None
