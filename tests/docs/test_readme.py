"""The README says first what holds a container to its share, and leads to every page."""

from typing import Final

import pytest

from gpushare.model.gpu import Limit
from tests.docs.test_reference import ROOT, text

PAGE: Final = text("README.md")
PAGES: Final = [str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")]
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


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_named(page: str) -> None:
    if page == "docs/architecture-imports.md":
        assert f"({page.removeprefix('docs/')})" in text("docs/architecture.md")
    else:
        assert f"({page})" in PAGE
