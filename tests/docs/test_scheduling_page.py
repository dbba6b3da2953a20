"""The numbers of docs/scheduling.md are those of the printed configurations and of kube-scheduler's plugins."""

from pathlib import Path

import pytest

from gpushare import names
from gpushare_cli import schedconfig, scores

PAGE = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text(encoding="utf-8")
NEEDED = scores.needed(scores.UNASKED)
BEST = 10 * scores.LEAD


@pytest.mark.parametrize(
    "text",
    [
        f"| `--weight`, by default {NEEDED} |",
        f"at weight {NEEDED} the best node is {BEST * NEEDED} points ahead",
        f"| {scores.points(scores.UNASKED)} points | {scores.points(scores.UNASKED)} points |",
        f"up to {scores.points(scores.PREFERENCES):,} points |",
        "| 300 points and more |",
        f"and needs {scores.needed(scores.UNASKED_BY_POLICY_FILE)}.",
        f"At {scores.needed({**scores.UNASKED, **scores.PREFERENCES})} and above preferences have no effect",
        f"| `--client-qps`, by default {schedconfig.DEFAULT_QPS} |",
        f"its own limits are {scores.CLIENT_QPS} and {scores.CLIENT_BURST}",
        f"with a time-out of {names.OTHERS_TIMEOUT_S} s",
        f"Its weight is {schedconfig.OTHERS_WEIGHT} by default: {BEST * schedconfig.OTHERS_WEIGHT} points",
        f"less than the {100 * scores.UNASKED['PodTopologySpread']} with which kube-scheduler keeps replicas",
    ],
)
def test_the_page_has_the_numbers_of_the_code(text: str) -> None:
    assert text in PAGE
