"""A trace through filter, prioritize and bind of a controller in a process of its own."""

import json
from pathlib import Path

import pytest

from testing import traces
from testing.bench import bench


@pytest.mark.parametrize("owned", [False, True])
def test_pods_go_through_the_controller_and_a_run_can_be_repeated(tmp_path: Path, owned: bool) -> None:
    traces.small(tmp_path)
    flags = ["--traces=small", "--policies=binpack", "--rows=ranked,unranked", "--seeds=1-2", *["--owned"] * owned]
    runs = []
    for name in ("first.json", "again.json"):
        out = bench("trace_scheduled", tmp_path, *flags, f"--json={tmp_path / name}")
        assert [line.split()[:3] for line in out.splitlines()[1:]] == [
            ["small", "binpack", "ranked"],
            ["small", "binpack", "unranked"],
        ]
        runs.append(json.loads((tmp_path / name).read_text())["rows"])
    for first, again in zip(*runs, strict=True):
        assert first["at"] == again["at"]
        assert 50 < first["at"]["130"] <= 100
        ranked = {"prioritize", "prioritize-others"} if first["row"] == "ranked" else set()
        assert set(first["p50_ms"]) == {"filter", "bind"} | ranked


def test_simulated_pods_go_where_the_controller_and_kube_schedulers_arithmetic_send_them(tmp_path: Path) -> None:
    """Two programs that share neither the scores nor the ranking of nodes end alike for every seed."""
    traces.small(tmp_path)
    flags = ["--traces=small", "--policies=binpack,spread", "--rows=ranked,default", "--seeds=1-3"]
    found = {}
    for name, server in (("trace_scheduled", "--server=1.36"), ("trace_simulated", "--minor=36")):
        bench(name, tmp_path, *flags, server, f"--json={tmp_path / name}.json")
        rows = json.loads((tmp_path / f"{name}.json").read_text())["rows"]
        found[name] = {(row["policy"], row["row"], row["seed"]): (row["placed"], row["at"]) for row in rows}
    assert len(found["trace_simulated"]) == 12
    assert found["trace_scheduled"] == found["trace_simulated"]
