"""Nodes that no request has named are judged in between."""

import threading
from dataclasses import dataclass, field, replace

import pytest

from controller import background
from controller.background import Background
from gpushare.identity import NodeName
from gpushare.model.request import RequestShape
from testing.builders import make_shape
from testing.controller.world import ManualClock, World

NAMES = [NodeName(f"node-{i}") for i in range(2 * background.SLICE + 1)]


@dataclass
class Judge:
    """Takes 0.1 s for each node."""

    clock: ManualClock = field(default_factory=ManualClock)
    asked: list[tuple[RequestShape, list[NodeName]]] = field(default_factory=list)

    def __call__(self, shape: RequestShape, names: list[NodeName]) -> None:
        self.asked.append((shape, names))
        self.clock.at += 0.1 * len(names)


def other(least_mib: int) -> RequestShape:
    """A pod that is not a simple one."""
    shape = make_shape(1, 2)
    return replace(shape, gpus=replace(shape.gpus, min_memory_mib=least_mib))


def test_all_nodes_are_judged_a_few_at_a_time() -> None:
    judge = Judge()
    made = Background(judge, lambda: list(NAMES), judge.clock)
    assert not made.tick()
    made.add(other(1))
    made.add(other(1))
    while made.tick():
        pass
    assert sorted(name for _, names in judge.asked for name in names) == sorted(NAMES)
    assert [len(names) for _, names in judge.asked] == [background.SLICE, background.SLICE, 1]


def test_of_many_kinds_the_newest_are_judged() -> None:
    judge = Judge()
    made = Background(judge, NAMES[:1].copy, judge.clock)
    kinds = [other(i) for i in range(1, background.MAX_KINDS + 3)]
    for kind in kinds:
        made.add(kind)
    while made.tick():
        pass
    assert [shape for shape, _ in judge.asked] == kinds[2:]


@dataclass
class Watched(ManualClock):
    """Ends the loop at its second wait."""

    waits: list[float] = field(default_factory=list)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.waits.append(round(seconds, 3))
        if len(self.waits) == 2:
            stop.set()
        return stop.is_set()


def test_a_pause_three_times_as_long_follows() -> None:
    clock = Watched()
    made = Background(Judge(clock), NAMES[:10].copy, clock)
    made.add(other(1))
    made.run(threading.Event())
    assert clock.waits == [3.0, 1.0]


def test_a_bug_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    clock = Watched()
    made: Background[RequestShape] = Background(lambda _, __: 1 / 0, NAMES.copy, clock)
    made.add(other(1))
    made.run(threading.Event())
    assert clock.waits == [1.0, 1.0]
    assert "background failed" in caplog.messages


def test_what_was_not_asked_for_is_kept_for_the_next_request(world: World) -> None:
    shape = other(1)
    world.node_verdicts.filter(shape, [NodeName("node-a")])
    assert world.node_verdicts.background.tick()
    assert not world.node_verdicts.background.tick()
    assert set(world.node_verdicts.answers(shape, [])) == {"node-a", "node-b"}


def test_nothing_is_left_of_simple_pods_and_of_questions_about_all_nodes(world: World) -> None:
    world.node_verdicts.filter(make_shape(3), [NodeName("node-a")])
    world.node_verdicts.answers(make_shape(3), [NodeName("node-a")])
    world.node_verdicts.filter(other(1), [NodeName("node-a"), NodeName("node-b")])
    assert not world.node_verdicts.background.tick()


def test_a_kind_of_pod_that_is_forgotten_is_left_alone(world: World) -> None:
    world.node_verdicts._judge(other(1), [NodeName("node-a")])
    assert other(1) not in world.node_verdicts._cache
