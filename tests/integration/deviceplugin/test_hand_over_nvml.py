"""From the driver's library and NVIDIA's CDI specs on the node to the spec of one container."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.handover import strategy
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.handover.devices import DeviceHandOver
from deviceplugin.handover.pick import Recipient
from deviceplugin.handover.spec_files import SpecFiles, SpecReader
from deviceplugin.nvml.source import NvmlSource
from gpushare.identity import ContainerName, GpuUuid
from gpushare.model.gpu import HandOver
from gpushare.runtime.clock import SystemClock
from testing.deviceplugin import nvidia
from testing.nvml.stub import Stub

IDS = frozenset({"g000"})
MINORS = ("gpu4/gi7/access 66", "gpu4/gi7/ci0/access 67", "gpu4/gi8/access 75", "gpu4/gi8/ci0/access 76")


@pytest.fixture
def devices(nvml_binding: Any, nvml_stub: Stub, tmp_path: Path) -> DeviceHandOver:
    """Two whole GPUs, whose minor numbers are not their indices, and one in two instances."""
    nvml_stub.add_gpu(minor=1)
    nvml_stub.add_gpu(minor=0)
    nvml_stub.add_gpu(minor=4)
    for number, gi in ((0, 7), (1, 8)):
        nvml_stub.add_mig(2, number, profile="1g.5gb", memory_mib=4864, gi=gi)
    (tmp_path / "mig-minors").write_text("".join(f"{line}\n" for line in MINORS))
    (tmp_path / "cdi").mkdir()
    source = NvmlSource(
        nvml=nvml_binding, clock=SystemClock(), pci_devices=tmp_path, mig_minors=tmp_path / "mig-minors"
    )
    read = {GpuUuid(gpu.uuid): gpu for gpu in source.read()}
    source.close()
    return DeviceHandOver(
        choice=lambda: HandOverChoice(way=HandOver.CDI, reason=""),
        gpus=lambda: read,
        files=SpecFiles(tmp_path / "cdi"),
        specs=SpecReader(directories=(tmp_path / "cdi",), own=tmp_path / "cdi").specs,
    )


GPU = "GPU-00000000-0000-0000-0000-00000000000{}"
MIG = "MIG-00000000-0000-0000-0002-00000000000{}"
CAPS = [nvidia.cap(number) for number in (66, 67, 75, 76)]
SPEC = nvidia.document(nvidia.device("all", *map(nvidia.node, (0, 1, 4)), *CAPS), kind="management.nvidia.com/gpu")


@pytest.mark.parametrize(
    ("uuid", "nodes"),
    [
        (GPU.format(0), ["/dev/nvidia1"]),
        (GPU.format(1), ["/dev/nvidia0"]),
        (MIG.format(0), ["/dev/nvidia4", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"]),
        (MIG.format(1), ["/dev/nvidia4", "/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap76"]),
    ],
)
def test_a_container_gets_the_nodes_that_the_driver_says_of_its_gpu(
    devices: DeviceHandOver, tmp_path: Path, uuid: str, nodes: list[str]
) -> None:
    file = tmp_path / "cdi" / "nvidia.yaml"
    file.write_text(yaml.safe_dump(SPEC))
    file.chmod(0o644)
    name = strategy.make(IDS, "0" * 16)
    recipient = Recipient(uid="u", container=ContainerName("main"), names=(name,), gpus=(GpuUuid(uuid),))
    devices.prepare(IDS, [recipient])
    (written,) = (tmp_path / "cdi").glob("*.json")
    (device,) = json.loads(written.read_text())["devices"]
    edits = device["containerEdits"]
    assert [node["path"] for node in edits["deviceNodes"]] == [*nvidia.CONTROL, *nodes]
    assert f"NVIDIA_VISIBLE_DEVICES={uuid}" in edits["env"]
    assert len(edits["mounts"]) == len(edits["hooks"]) == 1
