"""The replay and the simulated scheduler over a trace that is small enough to count."""

import json
from pathlib import Path

import pytest

from bench import trace_simulated
from bench.packing.policies import POLICIES
from bench.packing.replay import replay
from bench.packing.workload import Workload
from testing import traces


@pytest.mark.parametrize("policy", POLICIES)
def test_allocation_follows_what_arrived_and_never_exceeds_it(tmp_path: Path, policy: str) -> None:
    workload = Workload.read(traces.small(tmp_path), "small")
    order, nodes = workload.orders(1, recorded=True)
    curve = replay(workload, order, nodes, policy)
    assert all(allocated <= min(load + 0.5, 100) for load, allocated in curve.items())
    assert curve[130] >= 70


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
