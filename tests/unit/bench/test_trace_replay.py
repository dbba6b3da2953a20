"""The replay of a trace, on one that is small enough to count."""

from pathlib import Path

import pytest

from bench.packing.policies import POLICIES
from bench.packing.replay import replay
from bench.packing.workload import Workload
from testing import traces


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return traces.small(tmp_path)


@pytest.mark.parametrize("policy", POLICIES)
def test_allocation_follows_what_arrived_and_never_exceeds_it(directory: Path, policy: str) -> None:
    workload = Workload.read(directory, "small")
    order, nodes = workload.orders(1, recorded=True)
    curve = replay(workload, order, nodes, policy)
    assert all(allocated <= min(load + 0.5, 100) for load, allocated in curve.items())
    assert curve[130] >= 70
