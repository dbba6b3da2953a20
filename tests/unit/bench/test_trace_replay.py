"""The replay of a trace, on one that is small enough to count."""

import json
from pathlib import Path

import pytest

from bench import trace
from bench.packing.policies import POLICIES
from bench.packing.replay import replay
from bench.packing.workload import LOAD, Workload, asks_for
from testing import traces


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return traces.small(tmp_path)


def test_pods_come_until_they_ask_for_130_percent(directory: Path) -> None:
    workload = Workload.read(directory, "small")
    order, nodes = workload.orders(1, recorded=True)
    asked = sum(asks_for(workload.pods[pod]) for pod in order)
    assert LOAD * workload.capacity // 100 - 2000 < asked <= LOAD * workload.capacity // 100
    assert set(order[:12]) == set(range(12))
    assert sorted(nodes) == list(range(8))


@pytest.mark.parametrize("policy", POLICIES)
def test_allocation_follows_what_arrived_and_never_exceeds_it(directory: Path, policy: str) -> None:
    workload = Workload.read(directory, "small")
    order, nodes = workload.orders(1, recorded=True)
    curve = replay(workload, order, nodes, policy)
    assert all(allocated <= min(load + 0.5, 100) for load, allocated in curve.items())
    assert curve[130] >= 70


def test_the_table_has_a_row_for_each_policy_and_the_file_every_run(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = directory / "runs.json"
    arguments = ["--traces", "small", "--policies", "dense,spread", "--seeds", "1-2", "--json", str(out)]
    assert trace.main([str(directory), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["small", "dense", "2"], ["small", "spread", "2"]]
    runs = json.loads(out.read_text())["rows"]
    assert [(run["policy"], run["seed"]) for run in runs] == [("dense", 1), ("dense", 2), ("spread", 1), ("spread", 2)]
