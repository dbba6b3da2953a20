"""The file that probes look at."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deviceplugin import state
from deviceplugin.state import StateFile
from gpushare.runtime.clock import SystemClock
from tests.unit.deviceplugin.build import ManualClock, fields_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registered"


def test_it_exists_while_the_plugin_is_registered(path: Path) -> None:
    file = StateFile(path=path, clock=SystemClock(), parts=["m"])
    file.beat("m", True)
    assert state.problem(path, SystemClock()) == ""
    file.beat("m", False)
    assert state.problem(path, SystemClock()) == (
        f"the plugin is not registered with the kubelet ({path}: No such file or directory); its log says why"
    )


def test_what_an_earlier_process_left_is_removed(path: Path) -> None:
    path.touch()
    file = StateFile(path=path, clock=ManualClock(), parts=["m"])
    file.beat("m", False)
    assert not path.exists()
    file.beat("m", False)


def test_it_is_touched_every_few_seconds_only(path: Path) -> None:
    clock = ManualClock()
    file = StateFile(path=path, clock=clock, parts=["m"])
    file.beat("m", True)
    os.utime(path, (0, 0))
    file.beat("m", True)
    assert path.stat().st_mtime == 0
    clock.seconds += 5.0
    file.beat("m", True)
    assert path.stat().st_mtime > 0


def test_a_plugin_that_hangs_is_not_registered_any_more(path: Path) -> None:
    StateFile(path=path, clock=ManualClock(), parts=["m"]).beat("m", True)
    clock = ManualClock()
    stamp = clock.now().timestamp() - 42
    os.utime(path, (stamp, stamp))
    assert datetime.fromtimestamp(stamp, UTC) < clock.now()
    assert state.problem(path, clock) == ("the plugin was registered, but has not said so for 42 s; its log says why")


def test_a_directory_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    file = StateFile(path=tmp_path / "none" / "registered", clock=clock, parts=["m"])
    for _ in range(3):
        file.beat("m", True)
        clock.seconds += 10.0
    assert len(fields_of(caplog, "state file not written")) == 1


def test_it_exists_while_all_parts_are_registered(path: Path) -> None:
    clock = ManualClock()
    file = StateFile(path=path, clock=clock, parts=["memory", "percent", "whole"])
    file.beat("memory", True)
    file.beat("percent", True)
    assert not path.exists()
    file.beat("whole", True)
    assert path.exists()
    file.beat("percent", False)
    assert not path.exists()
    file.beat("memory", True)
    assert not path.exists()
    file.beat("percent", True)
    assert path.exists()


def test_a_part_that_hangs_lets_the_file_grow_old(path: Path) -> None:
    clock = ManualClock()
    file = StateFile(path=path, clock=clock, parts=["memory", "percent"])
    file.beat("percent", True)
    file.beat("memory", True)
    os.utime(path, (0, 0))
    clock.seconds += 5.0
    file.beat("memory", True)
    assert path.stat().st_mtime == 0
    file.beat("percent", True)
    assert path.stat().st_mtime > 0
