"""Reading the GPUs again and again."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from deviceplugin import resources
from deviceplugin.inventory import HealthLoop, InventoryFeed, PostedInventory
from deviceplugin.source import GpuSourceError, OutdatedLibraryError, RawGpu
from gpushare.model.gpu import LeftOut
from gpushare.units import GIB, MemoryUnit
from testing.clock import ManualClock
from testing.deviceplugin.build import NODE, fields_of, raw_gpu

Reading = Sequence[RawGpu] | GpuSourceError
BROKEN = GpuSourceError("no driver")
OUTDATED = OutdatedLibraryError("other versions", reason="outdated")
ONE = (raw_gpu(0),)
WELL, SICK = ["Healthy"], ["Unhealthy"]


@dataclass
class ScriptedSource:
    """Gives one reading after the other, then repeats the last and stops the loop."""

    readings: list[Reading]
    waits: list[float] = field(default_factory=list)
    closed: int = 0
    left_out: Sequence[LeftOut] = ()

    def read(self) -> Sequence[RawGpu]:
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(reading, GpuSourceError):
            raise reading
        return reading

    def wait(self, stop: threading.Event, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.readings) == 1:
            stop.set()

    def close(self) -> None:
        self.closed += 1


class Scene:
    """Args: works: what each look for a new process finds."""

    def __init__(self, *readings: Reading, unit: MemoryUnit = GIB, works: Sequence[bool] = ()) -> None:
        self.source, self.clock, looks = ScriptedSource(list(readings)), ManualClock(), list(works)
        self.loop = HealthLoop(
            source=self.source,
            feed=InventoryFeed(),
            clock=self.clock,
            node=NODE,
            unit=unit,
            offered=[resources.MEMORY],
            poll_s=5.0,
            new_process_works=lambda: bool(looks and looks.pop(0)),
        )

    def run(self) -> threading.Event:
        stop = threading.Event()
        self.loop.run(stop)
        return stop

    def polls(self, times: int = 1) -> list[bool]:
        return [self.loop.poll() for _ in range(times)]

    @property
    def latest(self) -> PostedInventory:
        assert self.loop.feed.latest is not None
        return self.loop.feed.latest

    @property
    def reasons(self) -> list[str]:
        return [gpu.reason for gpu in self.latest.inventory.gpus]

    @property
    def healths(self) -> list[str]:
        return [gpu.health.value for gpu in self.latest.inventory.gpus]

    def healths_after(self, polls: int) -> list[list[str]]:
        return [self.healths for _ in range(polls) if self.loop.poll()]


def test_only_changes_are_posted_each_with_its_devices(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scene = Scene([raw_gpu(0, 3)], [raw_gpu(0, 3)], [raw_gpu(0, 3, fault="Xid 79")])
    assert scene.polls() == [True]
    assert [scene.latest.version for _ in range(3) if scene.loop.poll()] == [1, 2, 2]
    told = [(line["healthy_units"], line["faults"]) for line in fields_of(caplog, "gpus changed")]
    assert told == [(3, {}), (0, {"GPU-0": "Xid 79"})]


def test_a_node_without_a_driver_is_asked_again_and_never_shown_as_empty(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(BROKEN, BROKEN, [], ONE)
    scene.run()
    assert (scene.healths, scene.source.closed, scene.source.waits) == (WELL, 1, [5.0])
    assert [line["error"] for line in fields_of(caplog, "gpus unreadable")] == [
        "no driver",
        "there is no GPU that can be shared; run this plugin on GPU nodes only",
    ]
    first, second, third = scene.clock.waits
    assert first < second < third <= 2.0


def test_a_driver_that_fails_for_a_moment_changes_nothing_and_one_that_comes_back_heals() -> None:
    scene = Scene(ONE, BROKEN, BROKEN, ONE, BROKEN, BROKEN, BROKEN, BROKEN, ONE)
    assert scene.healths_after(9) == [WELL] * 6 + [SICK] * 2 + [WELL]


def test_a_failure_that_comes_back_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    Scene(ONE, BROKEN, BROKEN, ONE, BROKEN, ONE).polls(6)
    assert [line["error"] for line in fields_of(caplog, "gpus unreadable")] == ["no driver", "no driver"]


def test_the_loop_ends_as_soon_as_a_new_process_would_read_the_gpus(caplog: pytest.LogCaptureFixture) -> None:
    assert Scene(ONE, OUTDATED, works=[False, True]).polls(3) == [True, True, False]
    assert [line["error"] for line in fields_of(caplog, "new process needed")] == ["other versions"]


def test_a_container_that_has_the_old_library_for_ever_ends_after_a_while() -> None:
    scene = Scene(*[OUTDATED] * 100)
    assert not scene.run().is_set()
    assert 20 <= scene.clock.at - 1000 <= 25  # asked every 5 s


def test_a_driver_that_is_replaced_is_looked_for_more_often_than_one_that_is_not_there() -> None:
    scene = Scene(*[BROKEN] * 10, *[OUTDATED] * 10, works=[False, True])
    scene.run()
    assert max(scene.clock.waits[:10]) > 5.0
    assert max(scene.clock.waits[10:]) == 5.0


def test_a_library_that_fits_again_gives_the_process_its_time_again() -> None:
    scene = Scene(ONE, OUTDATED, ONE, OUTDATED, ONE)
    for outdated in (False, True, False, True):
        assert scene.polls() == [True]
        assert scene.loop.library_outdated is outdated
        scene.clock.at += 15


def test_gpus_that_cannot_be_shared_are_in_the_inventory_or_the_reason_that_there_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene([raw_gpu(0), raw_gpu(1, uuid="GPU-0")], [], ONE)
    scene.source.left_out = [LeftOut(index=1, reason="in MIG mode without instances")]
    assert scene.polls(2) == [True, True]
    assert scene.loop.feed.latest is None
    scene.polls()
    assert [line["error"] for line in fields_of(caplog, "gpus unreadable")] == [
        "node node-a: two GPUs with the same UUID or index; the GPU source is broken",
        "there is no GPU that can be shared; GPU 1: in MIG mode without instances",
    ]
    assert scene.latest.inventory.left_out == tuple(scene.source.left_out)


def test_gpus_that_all_disappear_or_cannot_be_read_are_unhealthy_and_have_the_cause_as_their_reason() -> None:
    assert Scene(ONE, []).healths_after(2) == [WELL, SICK]
    scene = Scene(ONE, OUTDATED)
    scene.polls(4)
    assert scene.reasons == ["outdated"]


def test_a_unit_that_does_not_fit_the_gpus_ends_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene([raw_gpu(0, 80)], unit=MemoryUnit(1))
    scene.run()
    assert (scene.loop.feed.latest, scene.source.closed) == (None, 1)
    (line,) = fields_of(caplog, "gpus cannot be advertised")
    assert line["error"].endswith("--memory-unit=8MiB would fit")


def test_gpus_that_are_added_beyond_what_fits_leave_the_rest_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene([raw_gpu(0, 10)], [raw_gpu(0, 10), raw_gpu(1, 80)], unit=MemoryUnit(1))
    assert scene.healths_after(3) == [WELL] * 3
    assert len(fields_of(caplog, "gpus cannot be advertised")) == 1
