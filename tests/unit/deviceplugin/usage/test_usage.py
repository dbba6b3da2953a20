"""What each container uses of each GPU, from the node's processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import cgroups, pods as reduced
from deviceplugin.cgroups import TICKS, Process, Procfs, Sent
from deviceplugin.inventory import InventoryFeed
from deviceplugin.pods import PodCache
from deviceplugin.simulated import SimulatedProcesses
from deviceplugin.source import Lists
from deviceplugin.usage import join
from deviceplugin.usage.join import Key, NodeUsage, Pods, UsageReading
from gpushare.identity import GpuUuid
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import Grant
from gpushare.model.request import ContainerKind
from gpushare.runtime.clock import SystemClock
from gpushare.wire.claims import Claim, Share
from testing.builders import Json, make_container, make_gpu, make_grant, make_inventory
from testing.clock import ManualClock
from testing.deviceplugin.usage import (
    MIB,
    claiming,
    container_id,
    holding,
    process,
    running_pod,
    sample,
    uid,
    usage_loop,
)

INVENTORY = make_inventory(16, 16)


def held(*pods: Json) -> Pods:
    """As the plugin sees them."""
    return holding(pods, INVENTORY)


TWO = running_pod(1, make_grant(0, 1, gib=2, container="a"), make_grant(1, container="b"), ids={"a": 11, "b": 12})


def test_without_a_sample_only_what_was_granted_is_known() -> None:
    rows = join.view(INVENTORY, held(TWO), None, {}).rows
    assert [(row.pod.name, row.container, row.gpu, row.granted_mib, row.used, row.peak) for row in rows] == [
        ("pod-1", "a", "GPU-0", 2048, None, None),
        ("pod-1", "a", "GPU-1", 2048, None, None),
        ("pod-1", "b", "GPU-1", 3072, None, None),
    ]


def test_the_peak_is_the_most_and_goes_with_its_pod() -> None:
    pods = held(TWO)
    peaks: Mapping[Key, int] = {}
    for used in (5, 9, 3):
        peaks = join.peaks(peaks, join.join(sample({"GPU-0": {100: used}}, process(100, 1, 11)), pods), pods)
    assert list(peaks.values()) == [9 * MIB]
    assert join.peaks(peaks, join.join(sample({"GPU-0": {}}), {}), {}) == {}


def test_a_whole_gpu_is_granted_with_all_that_it_has_and_init_containers_count_once() -> None:
    init, app = make_grant(0, gib=5, container="i", kind=ContainerKind.INIT), make_grant(0, gib=3, container="a")
    (pod,) = held(running_pod(1, init, app)).values()
    assert dict(pod.granted) == {("i", "GPU-0"): 5120, ("a", "GPU-0"): 3072}
    assert {gpu: each.memory_mib for gpu, each in pod.held.items()} == {"GPU-0": 5120}


DRA = replace(make_inventory(16), dra=(replace(make_gpu(1), memory_mib=16000), make_gpu(2)))


def claim(name: str, *shares: tuple[str, int, int], **more: Any) -> Claim:
    """Shares: request, number of the GPU, and GiB."""
    parts = (Share(request=to, device=f"gpu-{i}", memory=gib << 30, compute=10, **more) for to, i, gib in shares)
    return Claim(uid=name, namespace="default", name=name, shares=tuple(parts))


def claiming_pod(claims: Mapping[str, str], *grants: Grant, **uses: str) -> Json:
    pod = running_pod(1, *grants, ids={"a": 11, "b": 12, "mem": 13})
    if not grants:  # by claims alone
        pod["metadata"]["annotations"], pod["spec"]["containers"] = {}, []
    pod["spec"]["containers"] += map(make_container, uses)
    return claiming(pod, claims, **uses)


SHARED = claim("c", ("r", 1, 3), ("s", 1, 2), ("s", 2, 1))


@pytest.mark.parametrize(
    ("pod", "prepared", "granted", "held"),
    [
        (claiming_pod({"x": "c"}, a="x/r", b="x/s"), [SHARED], {"a1": 3, "b1": 2, "b2": 1}, {"1": 5, "2": 1}),
        (claiming_pod({"x": "c"}, a="x", b="x/r"), [SHARED], {"a1": 5, "a2": 1, "b1": 3}, {"1": 5, "2": 1}),
        (
            claiming_pod({"x": "c", "y": "d", "z": "net"}, a="x/r y z", b="x/none"),
            [SHARED, claim("d", ("r", 1, 1), ("gone", 9, 1))],
            {"a1": 4},
            {"1": 6, "2": 1},
        ),
        (claiming_pod({"x": "c"}, make_grant(0, container="mem"), a="x/r"), [SHARED], {"mem0": 3, "a1": 3}, None),
        (claiming_pod({"x": "c"}, **{f"c{i}": "x" for i in range(65)}), [SHARED], {}, {"1": 5, "2": 1}),
        (claiming_pod({"x": "c"}, a="x"), [claim("c", ("r", 1, 0), admin=True)], None, None),
        (claiming_pod({"x": "c"}, a="x"), [claim("d", ("r", 1, 3))], None, None),
    ],
    ids=["by request", "whole and request", "added up", "gpu-mem too", "too many containers", "admin", "not prepared"],
)
def test_of_claims_each_container_has_what_it_uses_and_the_pod_every_claim_once(
    pod: Json, prepared: Sequence[Claim], granted: Mapping[str, int] | None, held: Mapping[str, int] | None
) -> None:
    """Args: granted, held: GiB, by container and number of the GPU; None if the pod is not known to hold any."""
    found = holding([pod], DRA, *prepared)
    if granted is None:
        assert not found
        return
    [known] = found.values()
    assert {f"{name}{gpu[-1]}": mib / 1024 for (name, gpu), mib in known.granted.items()} == granted
    of_pod = {gpu[-1]: each.memory_mib / 1024 for gpu, each in known.held.items()}
    assert of_pod == (held or {"0": 3, "1": 5, "2": 1})


def test_containers_of_claims_are_judged_and_shown_like_others() -> None:
    pods = holding([claiming_pod({"x": "c"}, a="x/r", b="x/r")], DRA, SHARED)
    processes = process(10, 1, 11), process(11, 1, 12), process(12, 1, 99)
    joined = join.join(sample({"GPU-1": {10: 3073, 11: 3072, 12: 9}, "GPU-0": {}}, *processes), pods)
    over = join.over_grants(joined, tolerance_mib=0).values()
    assert [(each.name, each.granted_mib) for each in over] == [("a", 3072), ("", 5120)]
    shown = join.view(DRA, pods, joined, {})
    assert [gpu.uuid for gpu in shown.gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    total = shown.totals[GpuUuid("GPU-1")]
    assert (total.usable_mib, total.granted_mib, total.granted_percent, total.pods) == (16000, 5120, 20, 1)
    assert [(row.container, row.granted_mib) for row in shown.rows if row.gpu == "GPU-1"] == [("a", 3072), ("b", 3072)]


def test_ids_of_other_forms_are_ignored() -> None:
    pod = running_pod(1, make_grant(0), ids={"main": 11, "other": 12})
    pod["status"]["containerStatuses"] += [{"name": "main", "containerID": "x", "state": {}}, {"name": "main"}]
    (found,) = held(pod).values()
    assert list(found.containers.values()) == ["main"]


def test_of_a_gpu_it_is_known_what_is_granted_and_what_all_processes_use() -> None:
    one = running_pod(1, make_grant(0, gib=3, compute_percent=20), ids={"main": 1})
    whole = running_pod(2, make_grant(1, gib=15, whole=True), ids={"main": 2})
    processes = process(10, 1, 1), process(11, None)
    joined = join.join(sample({"GPU-0": {10: 5, 11: 7}, "GPU-1": None}, *processes), held(one, whole))
    totals = join.view(INVENTORY, held(one, whole), joined, {}).totals
    first, second = (totals[gpu.uuid] for gpu in INVENTORY.gpus[:2])
    assert (first.granted_mib, first.granted_percent, first.pods, first.used) == (3 * 1024, 20, 1, 12 * MIB)
    assert (second.granted_percent, second.pods, second.used) == (100, 1, None)
    silent = join.join(sample({"GPU-0": {10: None}}, *processes), held(one))
    assert join.view(INVENTORY, held(one), silent, {}).totals[INVENTORY.gpus[0].uuid].used is None


def test_nothing_can_be_granted_of_a_gpu_that_is_not_healthy() -> None:
    gpus = (make_gpu(0, mib=15 * 1024 + 700), make_gpu(1, 15, health=GpuHealth.UNHEALTHY))
    inventory = replace(INVENTORY, gpus=gpus)
    totals = join.view(inventory, {}, None, {}).totals
    assert [totals[gpu.uuid].usable_mib for gpu in gpus] == [15 * 1024, 0]


def write(root: Path, pid: int, stat: str, cgroup: str) -> None:
    directory = root / str(pid)
    directory.mkdir(exist_ok=True)
    (directory / "stat").write_text(stat)
    (directory / "cgroup").write_text(cgroup)


def stat(pid: int, name: str, started: int) -> str:
    return f"{pid} ({name}) S {' '.join(['1'] * 18)} {started} 4096 7\n"


class Scene:
    def __init__(self, directory: Path) -> None:
        self.directory, self.clock, self.feed = directory, ManualClock(), InventoryFeed()
        cache = PodCache(self.clock)
        cache.upsert(reduced.reduce(running_pod(1, make_grant(0), ids={"main": 11})))
        lists = SimulatedProcesses(directory / "processes.json")
        self.loop = usage_loop(self.feed, cache, self.clock, lists=lists, table=Procfs(directory), stale_s=20.0)

    def know_gpus(self) -> None:
        inventory = make_inventory(16)
        self.feed.post(inventory)

    def run(self, pid: int, mib: int, *, started: int = 77) -> None:
        """Only this process is on the GPU from now on."""
        write(self.directory, pid, stat(pid, "a b", started), f"0::/kubepods/pod{uid(1)}/{container_id(11)}\n")
        self.tell({"gpu": "GPU-0", "pid": pid, "memoryMiB": mib})

    def tell(self, *processes: Json, silent: bool = False) -> None:
        """What the driver says."""
        document = {"processes": processes, "silent": ["GPU-0"] if silent else []}
        (self.directory / "processes.json").write_text(json.dumps(document))

    @property
    def view(self) -> NodeUsage:
        found = self.loop.view()
        assert found is not None
        return found

    def shown(self) -> list[tuple[int | None, int | None]]:
        """MiB used and peak."""
        return [tuple(None if each is None else each // MIB for each in (row.used, row.peak)) for row in self.view.rows]  # type: ignore[misc] # two


def test_use_and_peak_follow_the_samples(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.loop.look()
    assert scene.loop.view() is None
    assert scene.loop.unseen() == ()
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
    assert set(scene.loop.unseen()) == set()
    scene.clock.at += 2.0
    assert set(scene.loop.unseen()) == {"GPU-0"}
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

    scene.loop.lists = Slow(tmp_path / "processes.json")
    scene.loop.look()
    latest = scene.loop.latest
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


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as started:
        yield started
        started.kill()


def read(pid: int) -> Process:
    found = Procfs().read(pid)
    assert found is not None
    return found


def test_a_process_is_known_by_its_start_and_its_cgroup(tmp_path: Path) -> None:
    path = f"/kubepods/burstable/pod{uid(1)}/{container_id(11)}"
    write(tmp_path, 100, stat(100, "a) R 9 (b", 4242), f"0::{path}\n")
    assert Procfs(tmp_path).read(100) == process(100, 1, 11, started=4242)
    write(tmp_path, 101, stat(101, "sh", 5), "0::/system.slice/x.service\n")
    assert Procfs(tmp_path).read(101) == Process(101, 5, None)


def test_what_cannot_be_read_is_no_process_and_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    for pid, text in enumerate(("", "100 (a) S 1 2", "x", "100 (a) S" + " x" * 40)):
        write(tmp_path, pid, text, "0::/\n")
        assert Procfs(tmp_path).read(pid) is None, text
    assert Procfs(tmp_path).read(99) is None
    path = f"/kubepods/pod{uid(1)}/{container_id(11)}"
    write(tmp_path, 100, stat(100, "a", 1), "x:y:/\n" * 40_000 + f"0::{path}\n")
    assert Procfs(tmp_path).read(100) == Process(100, 1, None)


def test_start_times_are_counted_by_the_plugins_clock(child: subprocess.Popen[bytes]) -> None:
    assert read(os.getpid()).started <= read(child.pid).started <= SystemClock().monotonic() * TICKS


def test_exactly_that_process_is_ended(child: subprocess.Popen[bytes]) -> None:
    found = read(child.pid)
    for other in (replace(found, started=found.started - 1), replace(found, owner=process(1, 1, 11).owner)):
        assert Procfs().send(other, signal.SIGKILL) is Sent.GONE
    assert child.poll() is None
    assert Procfs().send(found, signal.SIGTERM) is Sent.DONE
    assert child.wait() == -signal.SIGTERM
    assert Procfs().send(found, signal.SIGKILL) is Sent.GONE


def test_without_pidfds_the_check_comes_just_before_the_signal(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    found = read(child.pid)
    assert Procfs().send(replace(found, started=1), signal.SIGKILL) is Sent.GONE
    assert child.poll() is None
    assert Procfs().send(found, signal.SIGKILL) is Sent.DONE
    assert child.wait() == -signal.SIGKILL


class Table(Procfs):
    """Processes that a test has; reading takes a second."""

    def __init__(self, clock: ManualClock, *processes: Process) -> None:
        self.clock, self.processes = clock, {each.pid: each for each in processes}

    def read(self, pid: int) -> Process | None:
        self.clock.at += 1
        return self.processes.get(pid)


def test_processes_that_are_younger_than_the_lists_are_not_believed() -> None:
    clock = ManualClock()
    old, young = process(1, 1, started=1000 * TICKS - 1), process(2, 1, started=1000 * TICKS)
    trusted = cgroups.trusted_processes(dict.fromkeys([1, 2, 3], 1000.0), Table(clock, old, young), clock, until=2000.0)
    assert trusted == {1: old}


@pytest.mark.parametrize(("there", "until", "read"), [(10, 1003.0, 3), (5000, 1e9, 4096)])
def test_reading_ends_in_time_and_at_so_many(there: int, until: float, read: int) -> None:
    clock, pids = ManualClock(), range(there)
    table = Table(clock, *(process(pid, 1) for pid in pids))
    assert set(cgroups.trusted_processes(dict.fromkeys(pids, 1000.0), table, clock, until=until)) == set(range(read))
