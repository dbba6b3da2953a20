"""The numbers of docs/scheduling.md are those of the printed configurations and of kube-scheduler's plugins."""

import json
import re
import statistics
from pathlib import Path

import pytest

from gpushare import names
from gpushare_cli import schedconfig, scores

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scheduling.md").read_text(encoding="utf-8")
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


LOADS = ("95", "100", "130")
ROWS = {
    "ranked": "`--rank-others`",
    "default": "as kube-scheduler spreads them",
    "most-allocated": "`--most-allocated`",
    "most-allocated-ranked": "`--most-allocated --rank-others`",
}
ALIKE = {"95": 2.0, "100": 0.6, "130": 0.6}


def row_of(row: str) -> list[float]:
    """Of `dense` at each load, then of `binpack`."""
    cells = rf"^\| {re.escape(ROWS[row])} \|" + r" ([0-9.]+) \|" * 6 + "$"
    [found] = re.findall(cells, PAGE, flags=re.MULTILINE)
    return [float(cell) for cell in found]


def test_the_page_advises_what_its_table_shows() -> None:
    (ranked, ranked_full), (plain, plain_full), (filled, filled_full), both = (row_of(row)[:2] for row in ROWS)
    assert filled_full < plain_full < ranked_full
    assert (
        f"{filled_full} % of the GPUs were allocated, with kube-scheduler's defaults {plain_full} %,"
        f" and with `--rank-others` {ranked_full} %"
    ) in PAGE
    assert f"with the policy `dense`, the default, {plain_full - filled_full:.1f} % of the GPUs, unless" in PAGE
    assert both == [ranked, ranked_full]
    assert f"ranking them brings {ranked - plain:.1f} % of the GPUs while the cluster is filling up" in PAGE
    assert ranked > plain > filled
    binpack = {row: row_of(row)[4] for row in ROWS}
    assert binpack["default"] < binpack["most-allocated"] < binpack["ranked"]


@pytest.mark.parametrize("row", ROWS)
def test_the_table_agrees_with_what_was_measured_through_a_controller(row: str) -> None:
    rows = json.loads((DOCS / "benchmarks" / "trace_scheduled.json").read_text(encoding="utf-8"))["rows"]
    meant = {"trace": "default", "policy": "dense", "row": row, "owned": False}
    found = [one["at"] for one in rows if {key: one[key] for key in meant} == meant]
    assert found
    for load, told in zip(LOADS, row_of(row)[:3], strict=True):
        assert abs(statistics.mean(at[load] for at in found) - told) <= ALIKE[load]
