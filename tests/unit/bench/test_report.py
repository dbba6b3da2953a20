"""The page of benchmarks is what the committed figures say."""

import re
from pathlib import Path

from bench import report

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_and_its_plots_are_what_the_figures_say() -> None:
    made = report.files(report.read(DOCS / "benchmarks"))
    assert "contributing/benchmarks.md" in made
    kept = {name: (DOCS / name).read_text(encoding="utf-8") for name in made}
    other = [name for name, text in made.items() if words(kept[name]) != words(text)]
    assert other == [], "run python -m bench.report"


def words(text: str) -> list[str]:
    """Of a page, all; of a picture, those that it shows: where its lines are is matplotlib's."""
    return re.findall(r"<(?:text|desc)[^>]*>([^<]*)<", text) if text.startswith("<?xml") else [text]
