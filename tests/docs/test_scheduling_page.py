"""The numbers of docs/scheduling.md are those of the printed configurations and of kube-scheduler's plugins."""

import json
import re
import statistics
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scheduling.md").read_text(encoding="utf-8")


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


@pytest.mark.parametrize("row", ROWS)
def test_the_table_agrees_with_what_was_measured_through_a_controller(row: str) -> None:
    rows = json.loads((DOCS / "benchmarks" / "trace_scheduled.json").read_text(encoding="utf-8"))["rows"]
    meant = {"trace": "default", "policy": "dense", "row": row, "owned": False}
    found = [one["at"] for one in rows if {key: one[key] for key in meant} == meant]
    assert found
    for load, told in zip(LOADS, row_of(row)[:3], strict=True):
        assert abs(statistics.mean(at[load] for at in found) - told) <= ALIKE[load]
