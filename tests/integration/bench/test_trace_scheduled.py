"""A trace through filter, prioritize and bind of a controller in a process of its own."""

import json
from pathlib import Path

import pytest

from tests import traces
from tests.integration.bench.commands import bench


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
        assert set(first["p50_ms"]) == {"filter", "bind"} | ({"prioritize"} if first["row"] == "ranked" else set())
