"""What the README says of its plot is what the plot has."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_words_beside_the_plot_have_its_figures() -> None:
    drawn = (ROOT / "docs" / "allocation.svg").read_text(encoding="utf-8")
    [said] = re.findall(r"!\[([^]]*)\]\(docs/allocation\.svg\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    ends = dict(re.findall(r"([a-z][^:;.]*): ([0-9.]+) %", drawn.partition("At the end ")[2].partition("</desc>")[0]))

    assert set(ends) == {"dense", "fgd", "binpack", "no ranking (Aliyun's)"}
    assert sorted(re.findall(r"[0-9]+\.[0-9]", said)) == sorted(ends.values())
