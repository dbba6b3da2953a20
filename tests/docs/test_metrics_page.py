"""Pages name only metrics and alerts that there are, and the controller has a metric for each of its watches."""

import re
from typing import Final

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


def test_metrics_that_pages_name_exist() -> None:
    pages = [str(page.relative_to(ROOT)) for page in PAGES if page.name != "CHANGELOG.md"]
    named = {(name, page) for page in pages for name in re.findall(r"\bgpushare_(?!cli\b)[a-z_]+", text(page))}
    assert named
    exist = {*metrics.families(), *FORMER}
    suffix = r"_(total|bucket|sum|count)$"
    assert [each for each in named if not {each[0], re.sub(suffix, "", each[0])} & exist] == []


def test_former_names_are_gone_and_the_new_ones_exist() -> None:
    assert FORMER
    assert not FORMER & metrics.families().keys()


def test_alerts_that_the_monitoring_page_names_exist() -> None:
    named = re.findall(r"`(GpuShare\w+)`", text("docs/monitoring.md"))
    assert named
    assert set(named) <= set(ALERTS)
