"""Process lists that tests write."""

from pathlib import Path

import pytest

from deviceplugin.simulated import SimulatedProcesses
from deviceplugin.source import GpuProcess
from gpushare.identity import GpuUuid
from testing.deviceplugin.build import fields_of

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


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "empty document"),
        ("[]", "expected an object, found a"),
        ('{"processes": [{"gpu": "GPU-0"}]}', "processes[0].pid: "),
        ('{"processes": [{"pid": 1}]}', "processes[0].gpu: "),
    ],
)
def test_a_bad_file_is_told_once_and_nothing_is_known(
    tmp_path: Path, text: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "processes.json"
    path.write_text(text)
    reader = SimulatedProcesses(path)
    assert reader.read([ONE]) == reader.read([ONE]) == {ONE: None}
    (told,) = fields_of(caplog, "processes unreadable")
    assert error in told["error"]
