"""What is asked of the driver beside the reading of GPUs, and how long it is waited for."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.causes import Code
from deviceplugin.nvml.driver import ComputeModes, Deadline, MemoryLimits, NvmlProcesses, Sensors
from deviceplugin.source import GpuProcess
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu, MigInstance
from testing.builders import make_gpu
from testing.deviceplugin.build import fields_of
from testing.nvml import stub
from testing.nvml.stub import Stub

KINDS = ("Compute", "Graphics", "MPSCompute")


@pytest.fixture
def gpu(nvml_stub: Stub) -> GpuUuid:
    nvml_stub.add_gpu()
    return GpuUuid(str(nvml_stub.keys["0.uuid"]))


def test_a_gpu_without_processes_is_not_one_that_does_not_answer_which_is_told_once(
    nvml_binding: Any, nvml_stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        nvml_stub.add_gpu()
    one, other = (GpuUuid(str(nvml_stub.keys[f"{number}.uuid"])) for number in range(2))
    nvml_stub.set({"1.fail.all": stub.GPU_IS_LOST})
    gone, reader = GpuUuid("GPU-ffffffff"), NvmlProcesses(nvml_binding)
    for _ in range(2):
        assert reader.read([one, other, gone]) == {one: (), other: None, gone: None}
    [line] = fields_of(caplog, "usage unknown")
    assert line["problems"][other] == "the driver says: GPU is lost"


def test_an_old_driver_lists_what_it_can_and_one_that_lists_nothing_is_no_answer(
    nvml_binding: Any, nvml_stub: Stub, gpu: GpuUuid
) -> None:
    nvml_stub.set({"0.compute": "100 5"})
    newest = [f"fail.nvmlDeviceGet{kind}RunningProcesses_v3" for kind in KINDS]
    older = "fail.nvmlDeviceGetMPSComputeRunningProcesses_v2"
    nvml_stub.set(dict.fromkeys([*newest, older], stub.FUNCTION_NOT_FOUND))
    assert NvmlProcesses(nvml_binding).read([gpu]) == {gpu: (GpuProcess(100, 5),)}
    nvml_stub.set(dict.fromkeys(newest, stub.NOT_SUPPORTED))
    assert NvmlProcesses(nvml_binding).read([gpu]) == {gpu: None}


def test_the_library_is_left_as_it_was(nvml_binding: Any, nvml_stub: Stub, gpu: GpuUuid) -> None:
    reader = NvmlProcesses(nvml_binding)
    reader.read([gpu])
    with pytest.raises(nvml_binding.NVMLError_Uninitialized):
        nvml_binding.nvmlDeviceGetCount()
    nvml_stub.set({"driver": "590.1"})
    assert reader.read([gpu]) == {gpu: None}
    nvml_stub.set({"driver": "580.95.05", "fail.nvmlShutdown": 999})
    assert reader.read([gpu]) == {gpu: ()}


@pytest.mark.parametrize("function", ["all", "nvmlInitWithFlags", "nvmlDeviceGetComputeRunningProcesses_v3"])
def test_a_driver_that_hangs_is_no_answer_and_is_told_once(
    nvml_binding: Any, nvml_stub: Stub, gpu: GpuUuid, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    reader = NvmlProcesses(nvml_binding, Deadline(0.05))
    nvml_stub.set({f"hang.{function}": 1})
    for _ in range(3):
        assert reader.read([gpu]) == {gpu: None}
    [thread] = [each for each in threading.enumerate() if each.name == "driver"]
    assert thread.daemon, "a process that ends does not wait for it"
    nvml_stub.set({f"hang.{function}": None})
    thread.join()
    while reader.read([gpu]) != {gpu: ()}:  # this machine may be slow
        pass
    why = "NVIDIA's driver has not answered in 0.05 s; see the node's kernel log"
    assert [line["problems"] for line in fields_of(caplog, "usage unknown")][:1] == [{gpu: why}]
    assert fields_of(caplog, "usage known")


def test_a_list_of_processes_that_hangs_holds_no_limit_up(nvml_binding: Any, nvml_stub: Stub, gpu: GpuUuid) -> None:
    limits = MemoryLimits(nvml_binding)
    nvml_stub.set({"hang.nvmlDeviceGetComputeRunningProcesses_v3": 1})
    assert NvmlProcesses(nvml_binding, Deadline(0.05)).read([gpu]) == {gpu: None}
    assert limits.get(gpu, Path("/sys/fs/cgroup/none")) is None
    nvml_stub.set({"hang.nvmlDeviceGetComputeRunningProcesses_v3": None})
    for thread in [each for each in threading.enumerate() if each.name == "driver"]:
        thread.join()


@pytest.fixture
def whole_gpu(gpu: GpuUuid) -> Gpu:
    return replace(make_gpu(0), uuid=gpu)


def test_a_mode_that_keeps_programs_out_is_told_with_the_way_out(
    nvml_binding: Any, nvml_stub: Stub, whole_gpu: Gpu
) -> None:
    modes, instance = ComputeModes(nvml_binding), replace(whole_gpu, mig=MigInstance(gpu=0, number=0, profile="1g.5gb"))
    for mode, name in ((1, "EXCLUSIVE_THREAD"), (2, "PROHIBITED"), (3, "EXCLUSIVE_PROCESS")):
        nvml_stub.set({"0.mode": mode})
        found = modes.exclusive([whole_gpu, instance])
        assert found == {
            whole_gpu.uuid: f"its compute mode is {name}, so that without MPS it serves one program at a time or none;"
            " nvidia-smi -i 0 -c DEFAULT lets others in"
        }
        assert found[whole_gpu.uuid].code == Code.COMPUTE_MODE


@pytest.mark.parametrize(
    "keys",
    [
        {"0.mode": 0},
        {},
        {"0.mode": 3, "0.fail.all": stub.GPU_IS_LOST},
        {"0.mode": 3, "fail.nvmlDeviceGetComputeMode": stub.FUNCTION_NOT_FOUND},
        {"0.mode": 3, "fail.nvmlInitWithFlags": stub.VERSION_MISMATCH},
    ],
)
def test_nothing_else_speaks_against_a_gpu(
    nvml_binding: Any, nvml_stub: Stub, whole_gpu: Gpu, keys: dict[str, object]
) -> None:
    nvml_stub.set(keys)
    assert ComputeModes(nvml_binding).exclusive([whole_gpu]) == {}


def test_what_the_driver_measures_is_told_and_what_it_does_not_is_missing(
    nvml_binding: Any, nvml_stub: Stub, whole_gpu: Gpu
) -> None:
    sensors, instance = Sensors(nvml_binding), replace(whole_gpu, mig=MigInstance(gpu=0, number=0, profile="1g.5gb"))
    nvml_stub.set({"0.utilization": 45, "0.temperature": 61, "0.power": 70500})
    assert sensors.read([instance]) == {}
    told = {"utilization_ratio": 0.45, "temperature_celsius": 61, "power_watts": 70.5}
    assert sensors.read([whole_gpu]) == {whole_gpu.uuid: told}
    nvml_stub.set({"0.temperature": None, "fail.nvmlDeviceGetPowerUsage": stub.FUNCTION_NOT_FOUND})
    assert sensors.read([whole_gpu]) == {whole_gpu.uuid: {"utilization_ratio": 0.45}}
    nvml_stub.set({"fail.nvmlInitWithFlags": stub.VERSION_MISMATCH})
    assert sensors.read([whole_gpu]) == {}


def test_one_call_is_made_after_the_other() -> None:
    within, begun, go, log = Deadline(60.0), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        go.wait()
        log.append("first")

    def follow() -> None:
        go.set()
        within(lambda: log.append("second"))

    before = threading.Thread(target=within, args=(first,))
    after = threading.Thread(target=follow)
    before.start()
    begun.wait()
    after.start()
    for thread in (before, after):
        thread.join()
    assert log == ["first", "second"]
