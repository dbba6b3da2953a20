"""The scheduler of the benchmarks: its arithmetic by hand, and how a run ends."""

import random
from typing import Any

import numpy as np
import pytest

from bench.scheduling import configuration, scores
from bench.scheduling.configuration import Configuration, Extender
from bench.scheduling.objects import pod
from bench.scheduling.scheduler import Scheduler
from bench.scheduling.scores import Formula, ResourceScores, Spread
from gpushare import names
from gpushare.model.capacity import Ask, FreeHost
from gpushare_cli import kube_scores as simulated
from gpushare_cli.kube_scores import Fit, Load, Rules

HAS = FreeHost(10_000, 20_000)
NONE = FreeHost(0, 0)


@pytest.mark.parametrize(
    ("requested", "least", "most", "balanced"),
    [
        (FreeHost(0, 0), 100, 0, 100),
        (FreeHost(3000, 5000), 72, 27, 97),  # (70 + 75) / 2, (30 + 25) / 2, 1 - 0.05 / 2
        (FreeHost(6000, 5000), 57, 42, 82),
        (FreeHost(10_000, 20_000), 0, 100, 100),
        (FreeHost(11_000, 10_000), 25, 75, 75),  # more than there is counts as all of it
    ],
)
def test_scores_are_those_of_the_formulas(requested: FreeHost, least: int, most: int, balanced: int) -> None:
    assert scores.least_allocated(NONE, requested, HAS) == least
    assert scores.most_allocated(NONE, requested, HAS) == most
    assert scores.balanced(NONE, requested, HAS) == balanced


@pytest.mark.parametrize(
    ("before", "requested", "score"),
    [
        (FreeHost(3000, 6000), FreeHost(4000, 8000), 75),  # as balanced as before
        (FreeHost(5000, 0), FreeHost(5000, 10_000), 87),  # 50 + (50 + 100 - 75) / 2
        (FreeHost(0, 0), FreeHost(10_000, 0), 50),
    ],
)
def test_since_1_36_the_change_of_the_balance_counts(before: FreeHost, requested: FreeHost, score: int) -> None:
    assert scores.more_balanced(before, requested, HAS) == score


def test_what_a_pod_does_not_request_counts_as_the_schedulers_default() -> None:
    assert scores.counted(FreeHost(0, 0)) == FreeHost(100, 200)
    assert scores.counted(FreeHost(5, 7)) == FreeHost(5, 7)


def test_scores_follow_the_pods_that_come_and_go() -> None:
    kept = ResourceScores([HAS, HAS], (scores.least_allocated,))
    small = FreeHost(1000, 2000)
    assert list(kept.of(small)) == [90, 90]
    kept.add(1, FreeHost(5000, 10_000))
    assert list(kept.of(small)) == [90, 40]
    kept.add(1, FreeHost(5000, 10_000), -1)
    assert list(kept.of(small)) == [90, 90]


def test_nodes_with_pods_of_the_same_owner_get_less() -> None:
    spread = Spread()
    assert list(spread.of("owner", range(998))) == [100] * 998
    spread.add("owner", 0)
    # One pod counts ln(1000) = 6.9 above 2, so 9; the others have 2: 100 (9 + 2 - 9) / 9, and 100 (9 + 2 - 2) / 9.
    assert list(spread.of("owner", range(998)))[:2] == [22, 100]
    assert list(spread.of("other", range(998)))[:2] == [100, 100]


@pytest.mark.parametrize(
    ("fit", "formula"), [(Fit.LEAST_ALLOCATED, scores.least_allocated), (Fit.MOST_ALLOCATED, scores.most_allocated)]
)
@pytest.mark.parametrize(("minor", "balance"), [(35, scores.balanced), (36, scores.more_balanced)])
def test_simulate_has_the_same_scores(fit: Fit, formula: Formula, minor: int, balance: Formula) -> None:
    chance, points = random.Random(1), simulated.resources(Rules(minor=minor, fit=fit))
    for _ in range(200):
        before = FreeHost(chance.randrange(9000), chance.randrange(19_000))
        pod = FreeHost(chance.randrange(1, 10_000), chance.randrange(1, 20_000))
        asked, used = (Load(*each, *each) for each in (pod, before))
        after = before.plus(pod)
        used_there, hosts = (np.array([each], np.float64).T for each in (used, HAS))
        assert points(asked, used_there, hosts) == formula(before, after, HAS) + balance(before, after, HAS)


def test_simulate_spreads_replicas_alike() -> None:
    spread, chance = Spread(), random.Random(1)
    for _ in range(50):
        node = chance.randrange(20)
        spread.add("owner", node)
        fitting = chance.sample(range(20), chance.randrange(1, 20))
        counts = spread.pods["owner"]
        found = simulated.spread(Rules(), counts, np.zeros(20, np.int64), np.array(fitting))
        assert found.tolist() == spread.of("owner", fitting)


GPU_POD = Ask(gpus=1, memory_mib=500, cpu_milli=1000, host_mib=1000)


class Failing:
    def ask(self, path: str, _body: bytes) -> bytes:
        assert path == "/x/filter"
        return b'{"NodeNames":null,"Error":"not ready"}'

    def bind(self, pod: Any, node: str) -> None:
        raise AssertionError(f"{pod} is bound to {node}")


def test_an_error_of_an_extender_ends_the_run() -> None:
    extender = Extender(path="/x", weight=1, resources=frozenset({names.GPU_MEM}), filter_verb="filter")
    asking = Configuration(extenders=(extender,), packs=False)
    scheduler = Scheduler(names="ab", has=[FreeHost(8000, 8000)] * 2, configuration=asking, transport=Failing(), seed=1)
    with pytest.raises(RuntimeError, match="filter: not ready"):
        scheduler.schedule(pod("p", GPU_POD), GPU_POD.host)


@pytest.mark.parametrize("server", ["1.20", "1.36"])
def test_most_allocated_is_read_from_plugins_or_their_arguments(server: str) -> None:
    assert configuration.printed(server, most_allocated=True).packs
    assert not configuration.printed(server).packs
