"""How much of its GPUs a node lets be granted: by the setting, by the model, by the label of the node."""

import re
from dataclasses import replace
from typing import Final

import pytest

from deviceplugin import inventory, resources
from deviceplugin.inventory import Factors, Oversubscription
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.model.gpu import NodeInventory
from gpushare.units import MemoryUnit
from testing.builders import make_gpu, make_inventory, make_mig
from testing.deviceplugin.build import NODE

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


NO_FACTOR = "is no factor; write one from 1 to 10 such as 1.5, with at most two decimals"
NO_SETTING = (
    "is not understood; write a factor such as 1.5 for all GPUs, then MODEL=FACTOR for those of one model, with commas"
    " between"
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", f"'' {NO_FACTOR}"),
        ("0.9", f"'0.9' {NO_FACTOR}"),
        ("1.555", f"'1.555' {NO_FACTOR}"),
        ("10.01", f"'10.01' {NO_FACTOR}"),
        ("T4=x", f"'x' {NO_FACTOR}"),
        ("T4=1.5,2", f"'2' {NO_SETTING}"),
        ("=2", f"'=2' {NO_SETTING}"),
    ],
)
def test_a_setting_that_cannot_be_read_says_what_is_right(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        inventory.parse_factors(text)


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
