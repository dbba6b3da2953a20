"""The bounds that docs/performance.md names are those of the code."""

from pathlib import Path

import pytest

from controller import outlooks
from gpushare.wire import selectors

PAGE = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
WORDS = {3: "three", 5: "five"}


@pytest.mark.parametrize(
    "text",
    [
        f"{outlooks._SLICE} nodes (11 ms) at a time, with pauses {WORDS[int(outlooks._PAUSES)]} times as long",
        f"are compared {outlooks._SLICE} choices at a time",
        f"only the {outlooks.MAX_ASKS:,} most frequent requests count",
        f"of which each may name {selectors._MOST} others",
        f"at least {WORDS[outlooks._SHARE]} times as long as the last one took",
    ],
)
def test_how_the_background_looks_at_a_cluster_is_told(text: str) -> None:
    assert text in PAGE
