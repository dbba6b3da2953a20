"""GPUs and processes without hardware."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from deviceplugin.causes import Code, code
from deviceplugin.simulated import SimulatedProcesses, SimulatedSource
from deviceplugin.source import GpuProcess, GpuSourceError
from gpushare.identity import GpuUuid, NodeName
from testing.clock import ManualClock
from testing.deviceplugin.build import fields_of
from tests.unit.deviceplugin import golden

FOUR = "gpus: [{model: Tesla T4, memoryMiB: 15360, count: 4, numa: 1}]\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpus.yaml"


def made(path: Path, text: str) -> SimulatedSource:
    path.write_text(text)
    return SimulatedSource(path=path, node=NodeName("node-a"), clock=ManualClock())


def state(source: SimulatedSource) -> Mapping[int, str]:
    found = {gpu.index: gpu.fault for gpu in source.read()}
    assert {why.code for why in found.values()} <= {"", Code.SIMULATED}
    return found


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)
    stamp = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(stamp, stamp))


def test_a_fault_comes_after_so_many_readings_and_stays_or_passes(path: Path) -> None:
    source = made(path, FOUR + "faults: [{gpu: 1, kind: xid, afterPolls: 2}]")
    assert [state(source)[1] for _ in range(5)] == ["", "", "simulated xid", "simulated xid", "simulated xid"]
    source = made(path, FOUR + "faults: [{gpu: 1, kind: ecc, afterPolls: 1, recoversAfterPolls: 2}]")
    assert [state(source)[1] for _ in range(4)] == ["", "simulated ecc", "simulated ecc", ""]


def test_a_lost_gpu_is_not_listed_and_a_fault_comes_after_so_many_seconds(path: Path) -> None:
    assert list(state(made(path, FOUR + "faults: [{gpu: 1, kind: lost}]"))) == [0, 2, 3]
    source = made(path, FOUR + "faults: [{gpu: 0, kind: xid, afterSeconds: 60}]")
    assert state(source)[0] == ""
    source.wait(threading.Event(), 60.0)
    assert state(source)[0] == "simulated xid"


def test_without_a_number_the_seed_chooses_the_gpu(path: Path) -> None:
    def chosen(seed: int) -> list[int]:
        source = made(path, FOUR + f"seed: {seed}\nfaults: [{{kind: xid}}]")
        return [index for index, fault in state(source).items() if fault]

    assert all(len(chosen(seed)) == 1 for seed in range(5))
    assert chosen(1) == chosen(1)
    assert len({chosen(seed)[0] for seed in range(20)}) > 1


def test_a_changed_profile_is_read_again_and_counts_again(path: Path) -> None:
    source = made(path, FOUR)
    for _ in range(3):
        state(source)
    rewrite(path, FOUR + "faults: [{gpu: 2, kind: xid, afterPolls: 1}]")
    assert [state(source)[2], state(source)[2]] == ["", "simulated xid"]
    rewrite(path, FOUR)
    assert state(source)[2] == ""


def test_a_change_for_the_worse_keeps_the_last_good_profile(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = made(path, FOUR)
    state(source)
    rewrite(path, "gpus: 3")
    assert [len(state(source)) for _ in range(2)] == [4, 4]
    assert fields_of(caplog, "profile rejected") == [
        {"error": f"profile {path}: gpus: expected a list, found a number"}
    ]
    path.unlink()
    assert len(state(source)) == 4
    rewrite(path, "gpus: [{model: X, memoryMiB: 1}]")
    assert len(state(source)) == 1


def test_a_profile_that_cannot_be_used_is_named_until_it_is_fixed(path: Path) -> None:
    source, said = made(path, ""), []
    for text in (b"a: b: c", b"x: !!python/object:os.system {}", b"gpus: \0", b"", b"\xff\xfe\xfd", b"gpus: 3"):
        path.write_bytes(text)
        said.append(golden.error(GpuSourceError, source.read))
    path.unlink()
    said.append(golden.error(GpuSourceError, source.read))
    golden.compare("profile", (text.replace(str(path), "PATH") for text in said))
    rewrite(path, FOUR)
    assert len(state(source)) == 4
    source.close()


MIG = """
gpus:
  - {model: A100, memoryMiB: 40960, mig: [{profile: 1g.5gb, memoryMiB: 4864, count: 2}]}
  - {model: T4, memoryMiB: 15360, reservedMiB: 300}
"""


def test_a_fault_is_one_of_a_gpu_with_all_its_instances_or_of_one_of_them(path: Path) -> None:
    assert state(made(path, MIG)) == {64: "", 65: "", 1: ""}
    without = made(path, "gpus: [{model: A100, memoryMiB: 40960, mig: []}]")
    assert (without.read(), [(gpu.index, code(gpu.reason)) for gpu in without.left_out]) == ([], [(0, Code.MIG_EMPTY)])
    assert state(made(path, MIG + "faults: [{gpu: 0, kind: ecc}]")) == {64: "simulated ecc", 65: "simulated ecc", 1: ""}
    assert state(made(path, MIG + "faults: [{gpu: 0, instance: 1, kind: xid}]")) == {64: "", 65: "simulated xid", 1: ""}
    assert state(made(path, MIG + "faults: [{gpu: 0, instance: 0, kind: lost}]")) == {65: "", 1: ""}


def test_memory_that_the_driver_keeps_is_shared_only_on_demand(path: Path) -> None:
    source = made(path, MIG)
    assert [gpu.memory_bytes >> 20 for gpu in source.read()] == [4864, 4864, 15060]
    source.reserved = True
    assert [gpu.memory_bytes >> 20 for gpu in source.read()] == [4864, 4864, 15360]


MIB = 1024 * 1024
ONE, OTHER = GpuUuid("GPU-0"), GpuUuid("GPU-1")


def test_processes_are_those_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "processes.json"
    reader = SimulatedProcesses(path)
    assert reader.read([ONE]) == {ONE: ()}
    path.write_text('{"processes": [{"gpu": "GPU-0", "pid": 7, "memoryMiB": 5}, {"gpu": "GPU-0", "pid": 8}]}')
    assert reader.read([ONE, OTHER]) == {ONE: (GpuProcess(7, 5 * MIB), GpuProcess(8, None)), OTHER: ()}
    path.write_text('{"silent": ["GPU-1"], "processes": [{"gpu": "GPU-9", "pid": 7, "memoryMiB": 5}]}')
    assert reader.read([ONE, OTHER]) == {ONE: (), OTHER: None}
    assert SimulatedProcesses(None).read([ONE]) == {ONE: ()}


def test_a_bad_file_is_told_once_and_nothing_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "processes.json"
    reader = SimulatedProcesses(path)
    bad = {"": "empty document", "[]": "expected an object, found a"}
    bad |= {
        '{"processes": [{"gpu": "GPU-0"}]}': "processes[0].pid: ",
        '{"processes": [{"pid": 1}]}': "processes[0].gpu: ",
    }
    for text, error in bad.items():
        path.write_text(text)
        assert reader.read([ONE]) == reader.read([ONE]) == {ONE: None}
        assert error in fields_of(caplog, "processes unreadable")[-1]["error"]
    assert len(fields_of(caplog, "processes unreadable")) == len(bad)
