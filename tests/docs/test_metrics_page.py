"""The operating page has every metric of the controller, and the controller one for each of its watches."""

import re
from typing import Final

import pytest

from tests.docs.test_reference import text

MAIN: Final = text("controller/main.py")
METRICS: Final = sorted(set(re.findall(r'"(gpushare_[a-z_]+)"', MAIN + text("controller/metrics.py"))))
WATCHES: Final = re.findall(r"self\.(\w+) = (?:\w+\.watch|Reflector)\(", text("controller/leadership.py"))


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_of_the_controller_is_on_the_page(metric: str) -> None:
    assert re.search(rf"`{metric}(?:_total)?`", text("docs/operate.md"))


def test_the_age_of_every_watch_is_a_metric_and_their_number_is_on_the_page() -> None:
    assert [name for name in WATCHES if f"leadership.{name}.stale_for" not in MAIN] == []
    assert len(WATCHES) == 5
    assert "each of five watches" in text("docs/operate.md")
