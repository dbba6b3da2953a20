"""Which pods come and go in a day."""

import random
from pathlib import Path

from bench import churn
from bench.churn import Arrival
from bench.packing.workload import Workload, asks_for
from testing import traces


def test_a_day_begins_with_as_many_pods_as_run_on_average(tmp_path: Path) -> None:
    workload = Workload.read(traces.small(tmp_path), "small")
    asked = [
        sum(asks_for(workload.pods[pod.position]) for pod in churn.begin(workload, 0.9, random.Random(seed)))
        for seed in range(50)
    ]
    assert 0.75 * workload.capacity < sum(asked) / 50 <= 0.9 * workload.capacity


def test_long_pods_run_more_often_when_a_day_begins(tmp_path: Path) -> None:
    workload = Workload.read(traces.small(tmp_path), "small")
    running = [pod for seed in range(50) for pod in churn.begin(workload, 0.9, random.Random(seed))]
    wholes = sum(workload.seconds[pod.position] == 900 for pod in running)
    assert wholes > len(running) / 2  # 3 of 12 in the list
    assert all(0 <= pod.leaves_s <= workload.seconds[pod.position] for pod in running)


def test_pods_ask_on_average_for_what_is_wanted(tmp_path: Path) -> None:
    workload = Workload.read(traces.small(tmp_path), "small")
    hours = 20.0
    pods = list(churn.day(workload, 0.9, hours, random.Random(1)))
    used = sum(asks_for(workload.pods[pod.position]) * workload.seconds[pod.position] for pod in pods)
    assert abs(used / (hours * churn.HOUR_S * workload.capacity) - 0.9) < 0.05
    assert pods == sorted(pods, key=lambda pod: pod.at_s)
    assert isinstance(pods[0], Arrival)
