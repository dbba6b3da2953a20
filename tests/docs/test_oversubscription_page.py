"""The page on oversubscription says what the code does."""

import re
from typing import Final

from deviceplugin import oversubscription
from deviceplugin.settings import Settings
from gpushare import names, units
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.units import GIB
from testing.builders import make_gpu, make_mig
from testing.pages import text

PAGE: Final = text("docs/oversubscription.md")


def test_it_is_off_by_default() -> None:
    assert "**Off by default.**" in PAGE
    inventory = NodeInventory(node=NodeName("node-a"), gpus=(make_gpu(0), make_mig(1, 0)), unit=GIB)
    assert oversubscription.applied(inventory, Settings().oversubscription, "")[0] == inventory


def test_every_setting_of_the_page_can_be_read() -> None:
    settings = re.findall(r'`"([^"`]+)"`|GPUSHARE_OVERSUBSCRIPTION: "([^"]+)"|oversubscription: "([^"]+)"', PAGE)
    found = ["".join(each) for each in settings]
    assert len(found) == 4
    for setting in found:
        assert str(oversubscription.parse(setting)) in {setting, f"1,{setting}"}
    assert re.findall(rf"{names.LABEL_OVERSUBSCRIPTION}=([\d.]+)", PAGE) == ["1.5"]
    assert [units.parse_factor(text) for text in ("1", "10")] == [100, 1000]
