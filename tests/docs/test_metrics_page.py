"""Pages name only metrics and alerts that there are, and the controller has a metric for each of its watches."""

import re
from typing import Final

import pytest

from release.pages import metrics
from testing.pages import ROOT, text
from tests.docs.test_reference import PAGES

MAIN: Final = text("controller/main.py")
WATCHES: Final = re.findall(r"self\.(\w+) = (?:\w+\.watch|Reflector)\(", text("controller/leadership.py"))
ALERTS: Final = re.findall(r"- alert: (\w+)", text("manifests/monitoring/rules.yaml"))
FORMER: Final = set(re.findall(r"^\| `(gpushare_[a-z_]+)` \|", text("docs/operate.md"), re.MULTILINE))
"""Of the table for those who upgrade."""


def test_the_age_of_every_watch_is_a_metric_and_their_number_is_on_the_page() -> None:
    assert [name for name in WATCHES if f"leadership.{name}.stale_for" not in MAIN] == []
    assert len(WATCHES) == 5
    assert "each of five watches" in text("docs/operate.md")


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES if page.name != "CHANGELOG.md"])
def test_metrics_that_a_page_names_exist(page: str) -> None:
    found = metrics.families().keys()
    for name in set(re.findall(r"\bgpushare_(?!cli\b)[a-z_]+", text(page))) - FORMER:
        assert {name, re.sub(r"_(total|bucket|sum|count)$", "", name)} & found, name


def test_former_names_are_gone_and_the_new_ones_exist() -> None:
    assert FORMER
    assert not FORMER & metrics.families().keys()


def test_alerts_that_the_monitoring_page_names_exist() -> None:
    named = re.findall(r"`(GpuShare\w+)`", text("docs/monitoring.md"))
    assert named
    assert set(named) <= set(ALERTS)
