"""Names of CDI devices, and where they are found again."""

import base64

import pytest

from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.handover import strategy
from gpushare.errors import WireError

NONCE = "0123456789abcdef"
NAME = strategy.make(["g001", "g000"], NONCE)


def response(**fields: object) -> str:
    return base64.b64encode(api.ContainerAllocateResponse(**fields).SerializeToString()).decode()


def test_a_name_begins_with_the_ids_whatever_their_order() -> None:
    assert strategy.stem(["g000", "g001"]) + NONCE == NAME
    assert strategy.stem(["g000"]) != strategy.stem(["g000", "g001"])
    assert len(NAME) == 34


def test_a_file_says_whose_device_it_has() -> None:
    file = strategy.file_name("uid-1", NAME)
    assert file == f"gpushare.dev-share_uid-1_{NAME}.json"
    assert strategy.read_file_name(file) == ("uid-1", NAME)


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "a_b", "x" * 65, "a\0"])
def test_a_uid_that_would_lead_elsewhere_is_refused(uid: str) -> None:
    with pytest.raises(ValueError, match="is not the UID of a pod"):
        strategy.file_name(uid, NAME)


@pytest.mark.parametrize(
    "file", ["nvidia.yaml", f"gpushare.dev-share_{NAME}.json", f"gpushare.dev-share_u_{NAME}.yaml"]
)
def test_other_files(file: str) -> None:
    assert strategy.read_file_name(file) is None


OWN = f"gpushare.dev/share={NAME}"
FIELD = {"cdi_devices": [api.CDIDevice(name=OWN)]}
PATH = f"/var/run/nvidia-container-devices/cdi/gpushare.dev/share/{NAME}"


@pytest.mark.parametrize(
    "fields",
    [
        FIELD,
        {"annotations": {"cdi.k8s.io/gpushare-g": f"other.dev/x=1,{OWN}"}},
        {**FIELD, "annotations": {"cdi.k8s.io/gpushare-g": OWN}},
        {"mounts": [api.Mount(host_path="/dev/null", container_path=PATH)]},
    ],
)
def test_names_are_found_in_what_allocate_has_said(fields: dict[str, object]) -> None:
    assert strategy.in_response(response(**fields)) == (NAME,)


@pytest.mark.parametrize(
    "fields",
    [
        {"envs": {"NVIDIA_VISIBLE_DEVICES": "void"}},
        {"cdi_devices": [api.CDIDevice(name="gpushare.dev/share=../../etc/passwd")]},
        {"cdi_devices": [api.CDIDevice(name=f"nvidia.com/gpu={NAME}")]},
        {"cdi_devices": [api.CDIDevice(name=NAME)]},
    ],
)
def test_nothing_else_is_a_name(fields: dict[str, object]) -> None:
    assert strategy.in_response(response(**fields)) == ()
    assert strategy.in_response("") == ()


@pytest.mark.parametrize("text", ["!", "AAA", base64.b64encode(b"\xff\xff").decode()])
def test_something_else_in_the_checkpoint(text: str) -> None:
    with pytest.raises(WireError, match=r"^AllocResp is not an answer of Allocate"):
        strategy.in_response(text)
