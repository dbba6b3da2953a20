"""Samples in a row, and what is shown of them."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin import pods as reduced
from deviceplugin.cgroups import CgroupOwner
from deviceplugin.inventory import InventoryFeed
from deviceplugin.pods import PodCache
from deviceplugin.simulated import SimulatedProcesses
from deviceplugin.source import Lists
from deviceplugin.usage.join import NodeUsage, UsageReading
from deviceplugin.usage.loop import UsageLoop
from deviceplugin.usage.procfs import TICKS, Procfs
from gpushare.identity import GpuUuid
from testing.builders import Json, make_grant, make_inventory
from testing.clock import ManualClock
from testing.deviceplugin.usage import MIB, container_id, current_usage, running_pod, uid

OWNER = CgroupOwner(uid(1), container_id(11))


class Scene:
    def __init__(self, directory: Path) -> None:
        self.directory, self.clock, self.feed = directory, ManualClock(), InventoryFeed()
        cache = PodCache(self.clock)
        cache.upsert(reduced.reduce(running_pod(1, make_grant(0), ids={"main": 11})))
        self.current = current_usage(self.feed, cache, self.clock, stale_s=20.0)
        self.loop = UsageLoop(
            lists=SimulatedProcesses(directory / "processes.json"),
            table=Procfs(directory),
            current=self.current,
            watchdog=None,
            interval_s=5.0,
        )

    def know_gpus(self) -> None:
        inventory = make_inventory(16)
        self.feed.post(inventory)

    def run(self, pid: int, mib: int, *, started: int = 77) -> None:
        """Only this process is on the GPU from now on."""
        directory = self.directory / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "stat").write_text(f"{pid} (a b) S {'1 ' * 18}{started} 0\n")
        (directory / "cgroup").write_text(f"0::/kubepods/pod{OWNER.pod}/{OWNER.container}\n")
        self.tell({"gpu": "GPU-0", "pid": pid, "memoryMiB": mib})

    def tell(self, *processes: Json, silent: bool = False) -> None:
        """What the driver says."""
        document = {"processes": processes, "silent": ["GPU-0"] if silent else []}
        (self.directory / "processes.json").write_text(json.dumps(document))

    @property
    def view(self) -> NodeUsage:
        found = self.current.view()
        assert found is not None
        return found

    def shown(self) -> list[tuple[int | None, int | None]]:
        """MiB used and peak."""
        return [tuple(None if each is None else each // MIB for each in (row.used, row.peak)) for row in self.view.rows]  # type: ignore[misc] # two


def test_use_and_peak_follow_the_samples(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.loop.look()
    assert scene.current.view() is None
    assert scene.current.unseen() == ()
    scene.know_gpus()
    assert scene.shown() == [(None, None)]
    for mib, expected in ((500, (500, 500)), (900, (900, 900)), (300, (300, 900))):
        scene.run(100, mib)
        scene.loop.look()
        assert scene.shown() == [expected]


def test_an_old_sample_says_nothing_of_what_is_used_now(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.know_gpus()
    scene.run(100, 500)
    scene.loop.look()
    scene.clock.at += 19.0
    assert scene.shown() == [(500, 500)]
    assert set(scene.current.unseen()) == set()
    scene.clock.at += 2.0
    assert set(scene.current.unseen()) == {"GPU-0"}
    assert scene.shown() == [(None, 500)]
    assert (scene.view.reading, scene.view.processes) == (UsageReading.SILENT, None)


def test_lists_that_took_too_long_say_nothing(tmp_path: Path) -> None:
    """Also of who was above his grant: his processes may have given the memory back since."""
    scene = Scene(tmp_path)
    scene.know_gpus()
    scene.run(100, 500)

    class Slow(SimulatedProcesses):
        def read(self, gpus: Collection[GpuUuid]) -> Lists:
            scene.clock.at += 20.0
            return super().read(gpus)

    replace(scene.loop, lists=Slow(tmp_path / "processes.json")).look()
    latest = scene.current.latest
    assert latest is not None
    assert (latest.joined.charges, latest.joined.foreign) == ((), {})


@pytest.mark.parametrize("silent", [False, True])
def test_memory_that_an_ended_process_left_is_not_that_of_the_next_one_with_its_pid(
    tmp_path: Path, silent: bool
) -> None:
    """A program that hands its memory to its children and ends stays in the driver's list."""
    scene, orphan = Scene(tmp_path), {"gpu": "GPU-0", "pid": 100, "memoryMiB": 9000}
    scene.know_gpus()
    scene.tell(orphan)
    scene.loop.look()
    began = int(scene.clock.at * TICKS) + 1
    scene.clock.at += 5.0
    scene.run(100, 9000, started=began)
    if silent:
        scene.tell(orphan, silent=True)
        scene.loop.look()
        scene.tell(orphan)
        scene.clock.at += 5.0
    scene.loop.look()
    assert (scene.shown(), scene.view.foreign, scene.view.processes) == ([(0, 0)], {"GPU-0": 9000 * MIB}, (0, 1))
    scene.tell()
    scene.loop.look()
    scene.run(100, 500, started=began)
    scene.loop.look()
    assert scene.shown() == [(500, 500)]


def test_the_first_process_of_a_container_does_not_see_the_node() -> None:
    found = [UsageReading.of(wanted=wanted, pid=pid) for wanted, pid in ((False, 7), (True, 7), (True, 1))]
    assert found == [UsageReading.OFF, UsageReading.ON, UsageReading.HIDDEN]
