"""The documents as a site: built strictly, whole, and without anything from another host."""

import json
import re
from pathlib import Path

import pytest

import gpushare
from release.pages import site

pytestmark = [
    pytest.mark.lint,
    pytest.mark.filterwarnings("ignore:.*Check CHANGES for Sphinx API modifications"),  # a matter of MyST's
]
SHOWN = [*site.ROOT.glob("*.md"), site.ROOT / "manifests" / "README.md", *site.ROOT.glob("docs/**/*.md")]
LOADED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["'](?:https?:)?//""")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This version's folder."""
    directory = tmp_path_factory.mktemp("built") / "site"
    assert site.build(directory) == 0
    site.link_versions(directory)
    return directory / gpushare.__version__


def test_every_page_is_on_the_site_and_in_its_navigation(built: Path) -> None:
    home = (built / "README.html").read_text(encoding="utf-8")
    sidebar = home.partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
    pages = {str(path.relative_to(site.ROOT).with_suffix(".html")) for path in SHOWN} - {"README.html"}
    assert {page for page in pages if not (built / page).exists()} == set()
    assert set(re.findall(r'href="([^"#]+\.html)"', sidebar)) == pages


def test_nothing_is_loaded_from_another_host(built: Path) -> None:
    pages = [*built.rglob("*.html")]
    assert [str(page) for page in pages if LOADED.search(page.read_text(encoding="utf-8"))] == []
    styles = [sheet.read_text(encoding="utf-8") for sheet in built.rglob("*.css")]
    assert not re.search(r"url\([\"']?(https?:)?//|@import", "\n".join(styles))


def test_the_search_has_its_words_in_a_script_that_needs_no_server(built: Path) -> None:
    index = (built / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")
    assert '"watchdog"' in index


def test_links_that_lead_nowhere_fail_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("docs/site", "docs/logo.svg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(site.ROOT / name)
    (tmp_path / "docs" / "install.md").write_text("# Install\n", encoding="utf-8")
    links = "[page](docs/no-such-page.md) [anchor](docs/install.md#no-such-anchor)"
    documents = "## Documents\n| **Install** | |\n| [Install](docs/install.md) | |\n"
    (tmp_path / "README.md").write_text(f"# gpushare\n{links}\n{documents}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(site, "ROOT", tmp_path)
    assert site.build(tmp_path / "site") != 0
    assert re.findall(r"no-such-\w+", capfd.readouterr().err) == ["no-such-page", "no-such-anchor"]


def test_versions_beside_each_other_lead_to_each_other(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.2.1"):
        (tmp_path / version).mkdir()
    site.link_versions(tmp_path)
    listed = (tmp_path / "versions.js").read_text(encoding="utf-8").partition("= ")[2].rstrip(";\n")
    assert json.loads(listed) == ["0.10.0", "0.9.0", "0.2.1"]
    assert "url=0.10.0/README.html" in (tmp_path / "index.html").read_text(encoding="utf-8")
