"""The real NVML binding over a library in C: what the fake module of the unit tests assumes is so."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.nvml.source import NvmlSource
from deviceplugin.source import GpuSourceError
from gpushare.runtime.clock import SystemClock
from tests.nvml import stub
from tests.nvml.stub import MIB, Stub


@pytest.fixture
def source(nvml_binding: Any, tmp_path: Path) -> NvmlSource:
    return NvmlSource(nvml=nvml_binding, clock=SystemClock(), pci_devices=tmp_path)


def test_a_process_finds_the_stub_by_its_name(nvml_stub: Stub) -> None:
    nvml_stub.add_gpu(model="NVIDIA A100-SXM4-40GB")
    program = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0)))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(nvml_stub.env),
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    assert ended.stdout == "NVIDIA A100-SXM4-40GB\n"


def test_what_the_file_says_is_told(nvml_binding: Any, nvml_stub: Stub) -> None:
    nvml_stub.add_gpu(15360, reserved_mib=300)
    nvml_binding.nvmlInit()
    handle = nvml_binding.nvmlDeviceGetHandleByIndex(0)
    old = nvml_binding.nvmlDeviceGetMemoryInfo(handle)
    new = nvml_binding.nvmlDeviceGetMemoryInfo(handle, version=nvml_binding.nvmlMemory_v2)
    assert (old.total, old.used) == (15360 * MIB, 300 * MIB)
    assert (new.total, new.reserved, new.used, new.free) == (15360 * MIB, 300 * MIB, 0, 15060 * MIB)
    assert nvml_binding.nvmlDeviceGetPciInfo(handle).busId == "00000000:01:00.0"
    assert nvml_binding.nvmlDeviceGetMinorNumber(handle) == 0
    assert nvml_binding.nvmlSystemGetDriverVersion() == "580.95.05"
    with pytest.raises(nvml_binding.NVMLError_NotSupported, match="Not Supported"):
        nvml_binding.nvmlDeviceGetMigMode(handle)
    nvml_stub.set({"0.fail.nvmlDeviceGetName": stub.GPU_IS_LOST})
    with pytest.raises(nvml_binding.NVMLError_GpuIsLost):
        nvml_binding.nvmlDeviceGetName(handle)


def test_mig_devices_are_listed(nvml_binding: Any, nvml_stub: Stub) -> None:
    uuid = nvml_stub.add_mig(nvml_stub.add_gpu(40960), 2, profile="1g.5gb", memory_mib=4864, gi=9)
    nvml_binding.nvmlInit()
    handle = nvml_binding.nvmlDeviceGetHandleByIndex(0)
    assert nvml_binding.nvmlDeviceGetMigMode(handle) == [1, 1]
    with pytest.raises(nvml_binding.NVMLError_NotFound):
        nvml_binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    instance = nvml_binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, 2)
    assert nvml_binding.nvmlDeviceGetUUID(instance) == uuid
    assert nvml_binding.nvmlDeviceGetGpuInstanceId(instance) == 9


def test_a_library_that_was_loaded_stays_the_old_one_in_its_process(nvml_binding: Any, nvml_stub: Stub) -> None:
    nvml_binding.nvmlInit()
    nvml_stub.set({"driver": "590.10", "library": "590.10"})
    with pytest.raises(nvml_binding.NVMLError_LibRmVersionMismatch):
        nvml_binding.nvmlInit()


def test_gpus_are_read_through_the_real_binding(source: NvmlSource, nvml_stub: Stub) -> None:
    nvml_stub.add_gpu()
    nvml_stub.add_gpu()
    nvml_stub.set({"1.fail.all": stub.GPU_IS_LOST})
    assert [(gpu.index, gpu.model) for gpu in source.read()] == [(0, "Tesla T4")]


def test_an_xid_ends_the_wait_and_is_remembered(source: NvmlSource, nvml_stub: Stub) -> None:
    nvml_stub.add_gpu()
    assert [gpu.fault for gpu in source.read()] == [""]
    nvml_stub.happen(0, 79)
    source.wait(threading.Event(), 250.0)
    assert ["Xid 79" in gpu.fault for gpu in source.read()] == [True]


def test_a_driver_that_is_not_loaded_is_reported(source: NvmlSource, nvml_stub: Stub) -> None:
    nvml_stub.set({"fail.all": 9})
    with pytest.raises(GpuSourceError, match="Driver Not Loaded"):
        source.read()
