"""Builds the documents into a site that needs no network: `make site` runs it.

Each version has its folder; versions.js beside them lists those that are there, so that pages of every version lead to
all of them.
"""

import json
import re
import sys
from pathlib import Path
from typing import Final

from sphinx.cmd.build import build_main

import gpushare

ROOT: Final = Path(__file__).parents[2]
SITE: Final = ROOT / "build" / "site"
INDEX: Final = """<!doctype html>
<meta charset="utf-8">
<title>gpushare</title>
<meta http-equiv="refresh" content="0; url={newest}/README.html">
<a href="{newest}/README.html">gpushare {newest}</a>
"""


def build(site: Path) -> int:
    """Build this version's folder, strictly: a link or an anchor that leads nowhere is an error.

    Returns:
        The exit code of Sphinx.
    """
    strictly = ["--quiet", "--fail-on-warning", "--keep-going", "--fresh-env"]
    cache = site.parent / "site-cache"
    return build_main([*strictly, "-c", "docs/site", "-d", str(cache), str(ROOT), str(site / gpushare.__version__)])


def link_versions(site: Path) -> None:
    """Write the list of versions, newest first, and a page that leads to the newest."""
    versions = sorted((folder.name for folder in site.iterdir() if folder.is_dir()), key=_numbers, reverse=True)
    (site / "versions.js").write_text(f"globalThis.gpushareVersions = {json.dumps(versions)};\n", encoding="utf-8")
    (site / "index.html").write_text(INDEX.format(newest=versions[0]), encoding="utf-8")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def main() -> int:
    """Build, and say where it is."""
    SITE.mkdir(parents=True, exist_ok=True)
    if code := build(SITE):
        return code
    link_versions(SITE)
    print(f"written: {SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
