"""The alerts that the operating page proposes ask for metrics, labels and values that there are."""

import re
from pathlib import Path
from typing import Final

import pytest

from deviceplugin.decision import Reason
from gpushare.model.gpu import GpuHealth, Limit
from tests.docs.test_reference import ROOT, text

SECTION: Final = text("docs/operate.md").partition("\n## Alerts\n")[2].partition("\n## ")[0]
EXPRESSIONS: Final = re.findall(r"^\| `([^`]+)` \|", SECTION.replace("\\|", "|"), flags=re.MULTILINE)
SOURCES: Final[list[Path]] = [
    path for package in ("webhook", "controller", "deviceplugin") for path in (ROOT / package).rglob("*metrics.py")
]
VALUES: Final = {
    "health": {health.value for health in GpuHealth},
    "limit": {limit.value for limit in Limit},
    "reason": {reason.value for reason in Reason},
    "outcome": {"failed", "refused"},
}


def test_there_are_alerts() -> None:
    assert len(EXPRESSIONS) > 5


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_alert_asks_for_what_there_is(expression: str) -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in [*SOURCES, ROOT / "controller/main.py"])
    for metric in re.findall(r"gpushare_\w+", expression):
        assert f'"{metric.removesuffix("_total")}' in code
    for label, wanted in re.findall(r'(\w+)=~?"([^"]+)"', expression):
        assert set(wanted.split("|")) <= VALUES[label]
