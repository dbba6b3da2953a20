"""What kube-scheduler's plugins think of nodes, as their sources compute it."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from gpushare.placement.columns import Ints
from gpushare_cli import kube_scores as scores
from gpushare_cli.kube_scores import Fit, Floats, Load, Rules

HOST = (10_000, 20_000, 110)
POD = Load(2_500, 4_000, 2_500, 4_000)
USED = Load(2_500, 1_000, 2_500, 1_000)


def column(values: Sequence[int]) -> Floats:
    return np.array([values], np.float64).T


def points(rules: Rules, pod: Load, used: Load, host: Sequence[int]) -> float:
    return float(scores.resources(rules)(pod, column(used), column(host))[0])


def spread(rules: Rules, counts: Mapping[int, int], zones: Ints, fitting: Sequence[int]) -> list[int]:
    found: list[int] = scores.spread(rules, counts, zones, np.array(fitting)).tolist()
    return found


def fits(pod: Load, used: Load) -> bool:
    return bool(pod.fits(column(used), column(HOST))[0])


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        # 50 % of CPU and 75 % of memory are left. The fractions were 0.25 and 0.05, and are 0.5 and 0.25 now.
        (Rules(minor=36), 62 + 50 + (50 + 87 - 90) // 2),
        (Rules(minor=35), 62 + 87),
        (Rules(minor=23), 62 + 87),
        (Rules(minor=20), 62 + 75),
        (Rules(minor=36, fit=Fit.MOST_ALLOCATED), 37 + 50 + (50 + 87 - 90) // 2),
        (Rules(minor=20, fit=Fit.MOST_ALLOCATED), 37 + 75),
    ],
)
def test_cpu_and_memory(rules: Rules, expected: int) -> None:
    assert points(rules, POD, USED, HOST) == expected


@pytest.mark.parametrize(("minor", "balance"), [(36, 0), (34, 0), (33, 87), (22, 66)])
def test_a_pod_without_requests_counts_as_a_small_one_and_its_balance_as_none(minor: int, balance: int) -> None:
    nothing = Load(0, 0, scores.DEFAULT_CPU_MILLI, scores.DEFAULT_MEMORY_MIB)
    host = (1_000, 20_000)
    used = Load(500, 5_000, 500, 5_000)

    assert points(Rules(minor=minor), nothing, used, host) == (40 + 74) // 2 + balance
    assert points(Rules(minor=33), Load(), Load(pods=0), (0, 1000)) == 50 + scores.MOST, "a host without CPU is even"


@pytest.mark.parametrize(("minor", "expected"), [(36, 0 + 75), (23, 0 + 100), (20, 0)])
def test_a_node_on_which_scores_count_more_than_it_has(minor: int, expected: int) -> None:
    full = Load(10_000, 20_000, 12_000, 24_000)
    assert points(Rules(minor=minor), Load(0, 1, 100, 200), full, HOST) == expected


def test_replicas_are_kept_apart_between_nodes_and_between_zones() -> None:
    rules, zones = Rules(), np.array([1, 1, 2])

    assert spread(rules, {}, zones, [0, 1, 2]) == [100, 100, 100]
    # ln 5 = 1.61 for each replica on a node, ln 4 = 1.39 in a zone; 2 and 4 for skews of 3 and 5.
    assert spread(rules, {0: 5}, zones, [0, 1, 2]) == [100 * (21 + 6 - found) // 21 for found in (21, 13, 6)]
    # Without a zone: 2, 2 and 2 + 1.61 rounded.
    assert spread(Rules(), {1: 1}, np.zeros(3, np.int64), [0, 1, 2]) == [100, 50, 100]
    assert spread(Rules(minor=23), {1: 1}, np.zeros(3, np.int64), [0, 1, 2]) == [100, 66, 100]
    # Zones that do not come into question do not count.
    zones = np.array([1, 2, 3])
    alone = spread(Rules(), {0: 1}, zones, [0, 1])
    assert spread(Rules(), {0: 1, 2: 5}, zones, [0, 1]) == alone
    assert alone[0] < alone[1]


def test_counts_become_points_in_proportion() -> None:
    assert scores.normalized({1: 1, 2: 3}, [0, 1, 2]) == [0, 33, 100]
    assert scores.normalized({2: 1}, [0, 1]) == [0, 0]


def test_a_pod_fits_by_what_it_requests_not_by_what_scores_count() -> None:
    assert fits(Load(0, 0, 100, 200), Load(10_000, 20_000, 10_000, 20_000, 5))
    assert not fits(Load(1, 0), Load(10_000, 0, pods=5))
    assert not fits(Load(0, 1), Load(0, 20_000, pods=5))
    assert not fits(Load(), Load(pods=110))
