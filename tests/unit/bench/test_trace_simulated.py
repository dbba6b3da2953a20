"""The simulated scheduler over a trace that is small enough to count."""

import json
from pathlib import Path

import pytest

from bench import trace_simulated
from testing import traces


def test_a_row_for_each_policy_every_run_in_the_file_and_a_line_in_the_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, found, drawn = traces.small(tmp_path), tmp_path / "found.json", tmp_path / "drawn.svg"
    arguments = ["--traces", "small", "--rows", "ranked,default", "--seeds", "1-2"]
    trace_simulated.main([str(directory), *arguments, "--json", str(found), "--plot", str(drawn)])

    runs = json.loads(found.read_text(encoding="utf-8"))["rows"]
    assert len(runs) == 4 * 2 * 2
    assert all(50 <= run["at"]["130"] <= 100 and run["placed"] > 0 for run in runs)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 4 * 2
    assert all(f"{policy} ranked" in drawn.read_text(encoding="utf-8") for policy in ("dense", "no ranking (Aliyun's)"))
