"""What placement knows of the cluster is looked at in the background, when enough has changed."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest

from controller import outlooks
from controller.cluster_table import ClusterTable
from controller.outlooks import Outlooks
from controller.state import ClusterState
from gpushare.cluster.pod_records import NonGpuPod
from gpushare.identity import NodeName, PodUid
from gpushare.model.capacity import Ask, FreeHost
from gpushare.model.request import Choice
from gpushare.placement import outlook as reference
from gpushare.placement.outlook import EVERY, Outlook
from gpushare.units import ResourceConfig
from testing.clock import ManualClock


@dataclass
class Looks:
    """A cluster, and the outlooks that were published."""

    clock: ManualClock = field(default_factory=ManualClock)
    published: list[Outlook] = field(default_factory=list)

    def __post_init__(self) -> None:
        state = ClusterState(resource_config=ResourceConfig())
        self.index, table = state.index, ClusterTable(state, self.clock)
        self.asks = Counter[Ask]()
        demand = self.index.demand
        self.index.demand = lambda: demand()._replace(asks=demand().asks + self.asks)  # type: ignore[method-assign]
        self.outlooks = Outlooks(self.index, table, self.clock)
        table.publish = lambda outlook, in_turn: self.published.append(outlook)  # type: ignore[method-assign] # noqa: ARG005

    def change(self, times: int = 1) -> None:
        for _ in range(times):
            ask = Ask(gpus=1, memory_mib=1024 + self.index.changes)
            self.asks[ask] += 1
            self.index.changes += 1
            self.index.came += 1


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.mark.parametrize(("known", "more"), [(0, 1), (1, 1), (8, 2), (100, 25), (900, EVERY)])
def test_it_looks_again_when_a_quarter_more_pods_have_come(looks: Looks, known: int, more: int) -> None:
    looks.change(known)
    looks.outlooks.tick()
    looks.clock.at += outlooks.LEAST_S
    looks.change(more - 1)
    assert not looks.outlooks.tick()
    looks.change()
    assert looks.outlooks.tick()
    looks.change(2 * EVERY)
    assert not looks.outlooks.tick()  # at once


def test_it_looks_again_some_time_after_a_little_has_changed(looks: Looks) -> None:
    looks.change(EVERY)
    assert looks.outlooks.age_s() == float("inf")
    assert looks.outlooks.tick()
    looks.clock.at += 100
    assert not looks.outlooks.tick()  # for nothing
    assert looks.outlooks.age_s() == 0
    looks.change()
    looks.clock.at += outlooks.QUIET_S - 1
    assert not looks.outlooks.tick()
    assert looks.outlooks.age_s() == outlooks.QUIET_S - 1
    looks.clock.at += 1
    assert looks.outlooks.tick()


def test_a_look_that_takes_long_is_not_followed_by_another_soon(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> Outlook:
        looks.clock.at += 2
        return Outlook()

    monkeypatch.setattr(reference, "look", slow)
    looks.outlooks.tick()
    looks.change(EVERY)
    looks.clock.at += 7.9
    assert not looks.outlooks.tick()
    looks.clock.at += 0.1
    assert looks.outlooks.tick()


@pytest.mark.parametrize(
    ("choices", "slices"),
    [
        pytest.param(2_000, 40, id="choices of models, of which each pod can make another"),
        pytest.param(2 * reference.MAX_ASKS, reference.MAX_ASKS // 50, id="no more of them than are looked at"),
    ],
)
def test_a_look_pauses_after_every_fifty(looks: Looks, choices: int, slices: int) -> None:
    for number in range(choices):
        models = Choice(wanted=(f"model-{number}",))
        looks.asks[Ask(gpus=1, memory_mib=1024, models=models)] += 1
    looks.outlooks.tick()
    assert slices <= len(looks.clock.waits) < slices + 4


def test_what_has_not_changed_is_not_published_again(looks: Looks) -> None:
    looks.outlooks.tick()
    epoch, number = looks.outlooks.outlook.epoch, len(looks.published)
    looks.index.changes += EVERY
    looks.clock.at += 100
    assert looks.outlooks.tick()
    assert len(looks.published) == number
    assert looks.outlooks.outlook.epoch == epoch


def test_pods_without_gpus_are_known_by_what_they_take(looks: Looks) -> None:
    takes = FreeHost(500, 512)
    looks.index.replace_pods([NonGpuPod(PodUid("one"), NodeName("node-a"), takes)])
    looks.outlooks.tick()
    assert looks.outlooks.outlook.typical == {Ask(cpu_milli=500): 1}


def test_it_waits_until_the_cluster_is_known_and_survives_a_bug(looks: Looks, caplog: pytest.LogCaptureFixture) -> None:
    stop, ready = threading.Event(), Mock(side_effect=[False, ZeroDivisionError, False])
    looks.clock.on_wait = lambda _at: stop.set() if ready.call_count == 3 else None
    looks.outlooks.run(stop, ready)
    assert ready.call_count == 3
    assert looks.outlooks.age_s() == float("inf")
    assert "outlook failed" in caplog.messages
