"""Reading the GPUs again and again."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from deviceplugin import resources
from deviceplugin.handover.choice import Choice
from deviceplugin.health import HealthLoop
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.renewal import Renewal
from deviceplugin.source import GpuSourceError, OutdatedLibraryError, RawGpu
from gpushare.model.gpu import HandOver, LeftOut
from gpushare.units import GIB, MemoryUnit
from testing.deviceplugin.build import NODE, ManualClock, fields_of, raw_gpu

Reading = Sequence[RawGpu] | GpuSourceError
BROKEN = GpuSourceError("no driver")
OUTDATED = OutdatedLibraryError("other versions", reason="outdated")


@dataclass
class ScriptedSource:
    """Gives one reading after the other, then repeats the last and stops the loop."""

    readings: list[Reading]
    stop: threading.Event = field(default_factory=threading.Event)
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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(clock: ManualClock) -> Callable[..., HealthLoop]:
    def loop(*readings: Reading, unit: MemoryUnit = GIB, works: list[bool] | None = None) -> HealthLoop:
        source = ScriptedSource(list(readings))
        return HealthLoop(
            source=source,
            feed=InventoryFeed(),
            clock=clock,
            node=NODE,
            unit=unit,
            offered=[resources.MEMORY],
            poll_s=5.0,
            renewal=Renewal(clock=clock, works=lambda: bool(works and works.pop(0))),
        )

    return loop


def seen(loop: HealthLoop) -> list[str]:
    latest = loop.feed.latest
    assert latest is not None
    return [gpu.health.value for gpu in latest.inventory.gpus]


def test_the_first_reading_is_posted_with_its_devices(make: Callable[..., HealthLoop]) -> None:
    loop = make([raw_gpu(0, 2), raw_gpu(1, 1)])
    assert loop.poll()
    latest = loop.feed.latest
    assert latest is not None
    assert (latest.version, latest.advertised["aliyun.com/gpu-mem"].healthy) == (1, ("g000", "g001", "g002"))


def test_all_resources_are_posted_at_once() -> None:
    source = ScriptedSource([[raw_gpu(0, 2), raw_gpu(1, 1, fault="Xid 79")]])
    offered = resources.offered(percent=True, whole_gpus=True)
    clock = ManualClock()
    loop = HealthLoop(
        source=source,
        feed=InventoryFeed(),
        clock=clock,
        node=NODE,
        unit=GIB,
        offered=offered,
        poll_s=5.0,
        renewal=Renewal(clock=clock, works=lambda: False),
    )
    assert loop.poll()
    latest = loop.feed.latest
    assert latest is not None
    assert {name: (len(one.healthy), len(one.unhealthy)) for name, one in latest.advertised.items()} == {
        "aliyun.com/gpu-mem": (2, 1),
        "nano-gpu/gpu-percent": (100, 100),
        "nvidia.com/gpu": (1, 1),
    }


def test_only_changes_are_posted(make: Callable[..., HealthLoop], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    loop = make([raw_gpu(0)], [raw_gpu(0)], [raw_gpu(0, fault="Xid 79")])
    versions = []
    for _ in range(4):
        loop.poll()
        versions.append(loop.feed.latest and loop.feed.latest.version)
    assert versions == [1, 1, 2, 2]
    assert [line["faults"] for line in fields_of(caplog, "gpus changed")] == [{}, {"GPU-0": "Xid 79"}]


def test_a_node_without_a_driver_is_asked_again_and_never_shown_as_empty(
    make: Callable[..., HealthLoop], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    loop = make(BROKEN, BROKEN, [], [raw_gpu(0)])
    loop.run(threading.Event())
    assert seen(loop) == ["Healthy"]
    assert [line["error"] for line in fields_of(caplog, "gpus unreadable")] == [
        "no driver",
        "there is no GPU that can be shared; run this plugin on GPU nodes only",
    ]
    assert len(clock.waits) == 3
    assert clock.waits[0] < clock.waits[1] < clock.waits[2] <= 2.0


def test_a_driver_that_fails_for_a_moment_changes_nothing(make: Callable[..., HealthLoop]) -> None:
    loop = make([raw_gpu(0)], BROKEN, BROKEN, [raw_gpu(0)], BROKEN, BROKEN, BROKEN)
    for _ in range(6):
        loop.poll()
        assert seen(loop) == ["Healthy"]
    loop.poll()
    assert seen(loop) == ["Unhealthy"]


def test_a_driver_that_comes_back_makes_the_gpus_healthy(make: Callable[..., HealthLoop]) -> None:
    loop = make([raw_gpu(0)], BROKEN, BROKEN, BROKEN, BROKEN, [raw_gpu(0)])
    for _ in range(5):
        loop.poll()
    assert seen(loop) == ["Unhealthy"]
    loop.poll()
    assert seen(loop) == ["Healthy"]


def test_the_loop_ends_as_soon_as_a_new_process_would_read_the_gpus(
    make: Callable[..., HealthLoop], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    loop = make([raw_gpu(0)], OUTDATED, OUTDATED, OUTDATED, works=[False, True])
    assert [loop.poll() for _ in range(3)] == [True, True, False]
    assert [line["error"] for line in fields_of(caplog, "new process needed")] == ["other versions"]


def test_a_container_that_has_the_old_library_for_ever_ends_after_a_while(
    make: Callable[..., HealthLoop], clock: ManualClock
) -> None:
    stop = threading.Event()
    loop = make(*[OUTDATED] * 100)
    loop.run(stop)
    assert not stop.is_set()
    assert 20 <= clock.seconds - 1000 <= 25  # asked every 5 s


def test_a_driver_that_is_replaced_is_looked_for_more_often_than_one_that_is_not_there(
    make: Callable[..., HealthLoop], clock: ManualClock
) -> None:
    loop = make(*[BROKEN] * 10, *[OUTDATED] * 10, works=[False, True])
    loop.run(threading.Event())
    assert max(clock.waits[:10]) > 5.0
    assert max(clock.waits[10:]) == 5.0


def test_a_library_that_fits_again_gives_the_process_its_time_again(
    make: Callable[..., HealthLoop], clock: ManualClock
) -> None:
    loop = make([raw_gpu(0)], OUTDATED, [raw_gpu(0)], OUTDATED, [raw_gpu(0)])
    for outdated in (False, True, False, True):
        assert loop.poll()
        assert loop.renewal.outdated is outdated
        clock.seconds += 15


def test_gpus_that_cannot_be_read_have_the_cause_as_their_reason(make: Callable[..., HealthLoop]) -> None:
    loop = make([raw_gpu(0)], OUTDATED)
    for _ in range(4):
        loop.poll()
    assert loop.feed.latest is not None
    assert [gpu.reason for gpu in loop.feed.latest.inventory.gpus] == ["outdated"]


def test_gpus_that_cannot_be_shared_are_in_the_inventory_or_the_reason_that_there_is_none(
    make: Callable[..., HealthLoop], caplog: pytest.LogCaptureFixture
) -> None:
    loop = make([], [raw_gpu(0)])
    assert isinstance(loop.source, ScriptedSource)
    loop.source.left_out = [LeftOut(index=1, reason="in MIG mode without instances")]
    loop.poll()
    assert [line["error"] for line in fields_of(caplog, "gpus unreadable")] == [
        "there is no GPU that can be shared; GPU 1: in MIG mode without instances"
    ]
    loop.poll()
    assert loop.feed.latest is not None
    assert loop.feed.latest.inventory.left_out == (LeftOut(index=1, reason="in MIG mode without instances"),)


def test_gpus_that_all_disappear_are_unhealthy(make: Callable[..., HealthLoop]) -> None:
    loop = make([raw_gpu(0), raw_gpu(1)], [])
    loop.poll()
    loop.poll()
    assert seen(loop) == ["Unhealthy", "Unhealthy"]


def test_a_unit_that_does_not_fit_the_gpus_ends_the_loop(
    make: Callable[..., HealthLoop], caplog: pytest.LogCaptureFixture
) -> None:
    loop = make([raw_gpu(0, 80)], unit=MemoryUnit(1))
    loop.run(threading.Event())
    assert loop.feed.latest is None
    assert isinstance(loop.source, ScriptedSource)
    assert loop.source.closed == 1
    (line,) = fields_of(caplog, "gpus cannot be advertised")
    assert line["error"].endswith("--memory-unit=8MiB would fit")


def test_gpus_that_are_added_beyond_what_fits_leave_the_rest_as_it_is(
    make: Callable[..., HealthLoop], caplog: pytest.LogCaptureFixture
) -> None:
    loop = make([raw_gpu(0, 10)], [raw_gpu(0, 10), raw_gpu(1, 80)], unit=MemoryUnit(1))
    assert [loop.poll() for _ in range(3)] == [True, True, True]
    assert seen(loop) == ["Healthy"]
    assert len(fields_of(caplog, "gpus cannot be advertised")) == 1


def test_a_source_that_contradicts_itself_is_reported(
    make: Callable[..., HealthLoop], caplog: pytest.LogCaptureFixture
) -> None:
    loop = make([raw_gpu(0), raw_gpu(1, uuid="GPU-0")])
    assert loop.poll()
    assert loop.feed.latest is None
    assert len(fields_of(caplog, "gpus unreadable")) == 1


def test_the_source_is_closed_when_the_loop_is_stopped(make: Callable[..., HealthLoop]) -> None:
    loop = make([raw_gpu(0)])
    loop.run(threading.Event())
    assert isinstance(loop.source, ScriptedSource)
    assert (loop.source.closed, loop.source.waits) == (1, [5.0])


def test_a_way_of_handing_over_that_cannot_work_takes_all_gpus_out_of_use(make: Callable[..., HealthLoop]) -> None:
    """Pods are told by the message of any unhealthy GPU."""
    ways = [Choice(way=HandOver.CDI, reason="so, but it cannot", impossible="so, but it cannot")]
    ways.append(Choice(way=HandOver.ENVVAR, reason="better"))
    loop = make([raw_gpu(0), raw_gpu(1)])
    loop.choice = lambda: ways[0]
    loop.poll()
    assert seen(loop) == ["Unhealthy", "Unhealthy"]
    assert loop.feed.latest is not None
    assert {gpu.reason for gpu in loop.feed.latest.inventory.gpus} == {"so, but it cannot"}
    ways.pop(0)
    loop.poll()
    assert seen(loop) == ["Healthy", "Healthy"]


def test_a_failure_that_comes_back_is_told_again(
    make: Callable[..., HealthLoop], caplog: pytest.LogCaptureFixture
) -> None:
    loop = make([raw_gpu(0)], BROKEN, BROKEN, [raw_gpu(0)], BROKEN, [raw_gpu(0)])
    for _ in range(6):
        loop.poll()
    assert [line["error"] for line in fields_of(caplog, "gpus unreadable")] == ["no driver", "no driver"]
