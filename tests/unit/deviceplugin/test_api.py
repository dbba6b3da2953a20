"""The messages are the kubelet's: bytes that a kubelet sends and expects."""

import shutil
import subprocess
import sys
from pathlib import Path

from deviceplugin.api import deviceplugin_pb2 as api

PACKAGE = Path(__file__).parents[3] / "deviceplugin" / "api"


def test_messages_have_the_kubelets_field_numbers() -> None:
    request = api.RegisterRequest(
        version="v1beta1", endpoint="e", resource_name="r", options=api.DevicePluginOptions(pre_start_required=True)
    )
    assert request.SerializeToString() == b"\n\x07v1beta1\x12\x01e\x1a\x01r\x22\x02\x08\x01"
    device = api.Device(ID="a", health="Healthy")
    assert api.ListAndWatchResponse(devices=[device]).SerializeToString() == b"\n\x0c\n\x01a\x12\x07Healthy"
    answer = api.ContainerAllocateResponse(envs={"k": "v"})
    assert api.AllocateResponse(container_responses=[answer]).SerializeToString() == b"\n\x08\n\x06\n\x01k\x12\x01v"
    assert api.PreStartContainerRequest.FromString(b"\n\x01a\n\x01b").devices_ids == ["a", "b"]


def test_the_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    copy = tmp_path / "deviceplugin" / "api"
    copy.mkdir(parents=True)
    for file in PACKAGE.glob("*.proto"):
        shutil.copy(file, copy)
    subprocess.run([sys.executable, "-m", "release.proto", str(tmp_path)], check=True)
    here, made = ({file.name: file.read_text() for file in at.glob("*_pb2.py")} for at in (PACKAGE, copy))
    assert made
    assert here == made
