"""Answers to a kubelet's calls, without a socket, and the bytes that it sends and expects."""

import dataclasses
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from deviceplugin import resources
from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.decide import Accept, Decision, Reason, Refuse
from deviceplugin.resources import Resource
from deviceplugin.server import PluginServer, StartCheck
from testing.deviceplugin.running import feed_with, no_devices


class Aborted(Exception):  # noqa: N818 - no error of the code under test
    pass


class Context:
    """The part of a gRPC context that is used."""

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code, details)


def servicer(start_check: StartCheck, resource: Resource = resources.MEMORY) -> PluginServer:
    return PluginServer(
        resource=resource, directory=Path(), feed=feed_with(), start_check=start_check, answer=no_devices
    )


def answering(decision: Decision) -> StartCheck:
    return lambda _resource, _ids: decision


def pre_start(asked: PluginServer, *ids: str) -> Any:
    return asked.pre_start(api.PreStartContainerRequest(devices_ids=ids), Context())


FAILED, LATER = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE


def test_a_refusal_becomes_a_status_with_a_message_that_a_header_holds() -> None:
    passing = {Reason.API_SILENT, Reason.KUBELET_SILENT, Reason.LATE}
    for reason in Reason:
        with pytest.raises(Aborted) as caught:
            pre_start(servicer(answering(Refuse(reason, "x" * 100_000))))
        assert caught.value.args == (LATER if reason in passing else FAILED, "x" * 2048), reason


def test_too_many_starts_at_once_are_put_off() -> None:
    asked, begun, go = list[tuple[str, Sequence[str]]](), threading.Event(), threading.Event()

    def wait(resource: Resource, device_ids: Sequence[str]) -> Decision:
        asked.append((resource.name, device_ids))
        begun.set()
        go.wait()
        return Accept(())

    one = servicer(wait, dataclasses.replace(resources.WHOLE, starts=1))
    first = threading.Thread(target=pre_start, args=(one, "a"))
    first.start()
    begun.wait()
    with pytest.raises(Aborted) as caught:
        pre_start(one, "b")
    go.set()
    first.join()
    assert caught.value.args == (LATER, "too many containers start at once; the kubelet will try again")
    assert pre_start(one, "c") == api.PreStartContainerResponse()
    assert asked == [("nvidia.com/gpu", ["a"]), ("nvidia.com/gpu", ["c"])]


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
