"""Compute modes through the real NVML binding: on which GPUs programs cannot run side by side."""

from dataclasses import replace
from typing import Any

import pytest

from deviceplugin.nvml.driver import ComputeModes
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu, MigInstance
from testing.builders import make_gpu
from testing.nvml import stub
from testing.nvml.stub import Stub


@pytest.fixture
def gpu(nvml_stub: Stub) -> Gpu:
    nvml_stub.add_gpu(15360)
    return replace(make_gpu(0), uuid=GpuUuid(str(nvml_stub.keys["0.uuid"])))


@pytest.mark.parametrize(("mode", "name"), [(1, "EXCLUSIVE_THREAD"), (2, "PROHIBITED"), (3, "EXCLUSIVE_PROCESS")])
def test_a_mode_that_keeps_programs_out_is_told_with_the_way_out(
    nvml_binding: Any, nvml_stub: Stub, gpu: Gpu, mode: int, name: str
) -> None:
    nvml_stub.set({"0.mode": mode})
    assert ComputeModes(nvml_binding).exclusive([gpu]) == {
        gpu.uuid: f"its compute mode is {name}, so that without MPS it serves one program at a time or none; nvidia-smi"
        " -i 0 -c DEFAULT lets others in"
    }


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
    nvml_binding: Any, nvml_stub: Stub, gpu: Gpu, keys: dict[str, object]
) -> None:
    nvml_stub.set(keys)
    assert ComputeModes(nvml_binding).exclusive([gpu]) == {}


def test_mig_instances_have_no_mode_of_their_own(nvml_binding: Any, nvml_stub: Stub, gpu: Gpu) -> None:
    nvml_stub.set({"0.mode": 3})
    instance = replace(gpu, mig=MigInstance(gpu=0, number=0, profile="1g.5gb"))
    assert ComputeModes(nvml_binding).exclusive([instance]) == {}
