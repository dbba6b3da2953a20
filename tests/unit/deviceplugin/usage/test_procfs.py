"""Processes of the real machine, which is Linux, and of made-up files."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.usage import procfs
from deviceplugin.usage.join import Process
from deviceplugin.usage.procfs import TICKS, Procfs, Sent
from gpushare.runtime.clock import SystemClock
from testing.clock import ManualClock
from testing.deviceplugin.usage import container_id, process, uid


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as started:
        yield started
        started.kill()


def read(pid: int) -> Process:
    found = Procfs().read(pid)
    assert found is not None
    return found


def write(root: Path, pid: int, stat: str, cgroup: str) -> None:
    directory = root / str(pid)
    directory.mkdir()
    (directory / "stat").write_text(stat)
    (directory / "cgroup").write_text(cgroup)


def stat(pid: int, name: str, started: int) -> str:
    return f"{pid} ({name}) S {' '.join(['1'] * 18)} {started} 4096 7\n"


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
    trusted = procfs.trusted_processes(dict.fromkeys([1, 2, 3], 1000.0), Table(clock, old, young), clock, until=2000.0)
    assert trusted == {1: old}


@pytest.mark.parametrize(("there", "until", "read"), [(10, 1003.0, 3), (5000, 1e9, 4096)])
def test_reading_ends_in_time_and_at_so_many(there: int, until: float, read: int) -> None:
    clock, pids = ManualClock(), range(there)
    table = Table(clock, *(process(pid, 1) for pid in pids))
    assert set(procfs.trusted_processes(dict.fromkeys(pids, 1000.0), table, clock, until=until)) == set(range(read))
