"""Whatever is advertised can be allocated in full: no share is larger than the memory that CUDA can give."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin import inventory, resources
from deviceplugin.nvml.source import NvmlSource
from deviceplugin.simulated import SimulatedSource
from gpushare.identity import NodeName
from gpushare.model.gpu import Gpu
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import profile as wire
from testing.nvml.stub import Stub

PROFILES = sorted((Path(__file__).parents[3] / "testing" / "profiles").glob("*.yaml"))
CASES = [
    pytest.param(path, NodeName(node), id=f"{path.stem}-{node}")
    for path in PROFILES
    for node in ("node-a", *wire.nodes(yaml.safe_load(path.read_text(encoding="utf-8"))))
]
UNITS = [GIB, MemoryUnit(256), MemoryUnit(1000)]


def usable_mib(nvml: Any, gpu: Gpu) -> int:
    """What CUDA can give of a device, as the driver says."""
    handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode())
    info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return int((info.total - info.reserved) >> 20)


@pytest.mark.parametrize(("path", "node"), CASES)
def test_the_shares_of_every_profile_can_be_allocated_in_full(
    nvml_binding: Any, nvml_stub: Stub, tmp_path: Path, path: Path, node: NodeName
) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    nvml_stub.add_profile(wire.parse(document, node), node)
    raw = NvmlSource(nvml=nvml_binding, clock=SystemClock()).read()
    for unit in UNITS:
        found = inventory.build(raw, node=node, unit=unit)
        assert found.gpus
        shares = [resources.MEMORY.devices_of_gpu(gpu, unit) for gpu in found.gpus]
        devices = resources.devices(found, resources.MEMORY)
        assert len(devices.healthy) == sum(shares)
        for gpu, units in zip(found.gpus, shares, strict=True):
            assert unit.to_mib(units) <= usable_mib(nvml_binding, gpu), gpu

    # And a profile is the same simulated and through the library.
    without_faults = tmp_path / "profile.yaml"
    for part in (document, *document.get("nodes", {}).values()):
        part.pop("faults", None)
    without_faults.write_text(yaml.safe_dump(document))
    read, simulated = (
        [(gpu.uuid, gpu.index, gpu.model, gpu.memory_bytes, gpu.mig) for gpu in source.read()]
        for source in (
            NvmlSource(nvml=nvml_binding, clock=SystemClock()),
            SimulatedSource(path=without_faults, node=node, clock=SystemClock()),
        )
    )
    assert read == simulated
