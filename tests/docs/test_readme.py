"""The README says first what holds a container to its share, and leads to every page."""

import re
from typing import Final

import pytest

from gpushare.model.gpu import Limit
from testing.pages import ROOT, text

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
def test_every_page_is_in_the_table_from_which_the_navigation_is_made(page: str) -> None:
    assert f"({page})" in PAGE.partition("## Documents")[2]


def test_the_first_screen_says_what_it_is_how_to_try_it_and_shows_it() -> None:
    screen = PAGE.partition("\n## ")[0]
    assert "**Share NVIDIA GPUs between Kubernetes pods.**" in screen
    assert re.findall(r"```sh\n(.*?)```", screen, flags=re.DOTALL) == ["make demo\n"]
    assert re.search(r"!\[[^]]+\]\(docs/pictures/", screen)
    assert "(docs/quickstart.md)" in screen
