"""The page on oversubscription says what the code does."""

import re
from typing import Final

from deviceplugin import oversubscription
from deviceplugin.settings import Settings
from gpushare import names, units
from gpushare.identity import NodeName
from gpushare.model.gpu import Limit, NodeInventory
from gpushare.units import GIB
from gpushare_cli.doctor.checks import CHECKS
from testing.builders import make_gpu, make_mig
from testing.pages import ROOT, text

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


def test_pods_refuse_as_it_says() -> None:
    assert f"{names.ANNOTATION_OVERSUBSCRIPTION}: {names.NEVER}" in PAGE
    assert f"{names.ANNOTATION_OVERSUBSCRIPTION}: {names.NEVER}" in text("docs/request.md")


def test_every_limit_is_told_of() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE.split("## When memory runs out")[1].split("\n## ")[0], re.MULTILINE)
    assert {Limit(row) for row in rows} == set(Limit) - {Limit.WATCHDOG}
    assert "It evicts no one because a GPU is full" in PAGE


def test_where_it_is_shown_exists() -> None:
    assert "oversubscription" in {check.id for check in CHECKS}
    code = [ROOT / "controller/ledger_metrics.py", ROOT / "deviceplugin/metrics.py"]
    written = "".join(path.read_text(encoding="utf-8") for path in code)
    assert all(f'"{metric}"' in written for metric in re.findall(r"`(gpushare_\w+_bytes)`", PAGE))
    assert f"nodes --all {names.LABEL_SHARES}-" in text("docs/operate.md")
    assert f"{names.LABEL_OVERSUBSCRIPTION}-" in text("docs/operate.md")
