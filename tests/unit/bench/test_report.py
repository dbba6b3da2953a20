"""The page of benchmarks is what the committed figures say."""

from pathlib import Path

from bench import report

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_and_its_plots_are_what_the_figures_say() -> None:
    made = report.files(report.read(DOCS / "benchmarks"))
    assert "benchmarks.md" in made
    other = [name for name, text in made.items() if (DOCS / name).read_text(encoding="utf-8") != text]
    assert other == [], "run python -m bench.report"
