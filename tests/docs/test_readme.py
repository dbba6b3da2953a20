"""The README says first what holds a container to its share."""

from typing import Final

import pytest

from gpushare.model.gpu import Limit
from testing.pages import text

PAGE: Final = text("README.md")
CALLED: Final = {
    Limit.MIG: "MIG",
    Limit.CGROUP: "cgroups",
    Limit.MPS: "MPS",
    Limit.HAMI_CORE: "HAMi-core",
    Limit.WATCHDOG: "watchdog",
    Limit.ADVISORY: "variables",
}


@pytest.mark.parametrize("limit", Limit)
def test_the_first_screen_says_what_holds_limits_and_how_well(limit: Limit) -> None:
    rows = [row for row in PAGE.split("\n```yaml\n")[0].splitlines() if row.startswith("| ") and CALLED[limit] in row]
    assert ["whatever the container does" in row for row in rows] == [limit.enforced]
