"""What Allocate answers under each way of handing over, and the names of the CDI devices in it. Pure.

The first half of a name comes from the device IDs, so that PreStartContainer, which knows only these, finds what was
prepared for them. The second half is new in every answer, so that no name ever stands for two containers: not for a
later holder of the same IDs, and not for an init container and the container that takes its IDs over.

A way is a branch in `respond` and in `choice`, and a member of HandOver; `in_response` must find its names in what the
kubelet keeps, or PreStartContainer cannot prepare them.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError

from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.handover.choice import HandOverChoice
from gpushare import names
from gpushare.errors import WireError
from gpushare.model.gpu import HandOver

MOUNTS: Final = "/var/run/nvidia-container-devices/cdi/"  # mounts of /dev/null below it name CDI devices
_NAME: Final = re.compile(r"c[0-9a-f]{16}-[0-9a-f]{16}")


def respond(choice: HandOverChoice, name: str, prefix: str) -> Any:
    """What a container is told of a device whose spec is written before it starts. Args: prefix: of the resource."""
    # Weaker than the pod's own variables and stronger than the image's: who was not mutated sees no GPU.
    answer = api.ContainerAllocateResponse(envs={names.ENV_VISIBLE_DEVICES: names.VISIBLE_DEVICES_NONE})
    device = f"{names.CDI_KIND}={name}"
    if choice.way is HandOver.VOLUME_MOUNTS:
        path = f"{MOUNTS}{names.CDI_KIND}/{name}"
        answer.mounts.add(container_path=path, host_path="/dev/null", read_only=True)
    if choice.way is HandOver.CDI and choice.by_field:
        answer.cdi_devices.add(name=device)
    if choice.way is HandOver.CDI and choice.by_annotation:
        answer.annotations[f"{names.CDI_DOMAIN}/gpushare-{prefix}"] = device
    return answer


def stem(ids: Iterable[str]) -> str:
    """What all names for these device IDs begin with."""
    return "c" + hashlib.sha256(",".join(sorted(ids)).encode()).hexdigest()[:16] + "-"


def make(ids: Iterable[str], nonce: str) -> str:
    """A name. Args: nonce: 16 hexadecimal digits that no one can guess."""
    return stem(ids) + nonce


def in_response(response: str) -> tuple[str, ...]:
    """The names in an answer of Allocate, as the kubelet's checkpoint keeps it: base64. May raise WireError."""
    answer = _decoded(response)
    mounts = [mount.container_path.removeprefix(MOUNTS) for mount in answer.mounts]
    return tuple(dict.fromkeys(filter(None, map(_own_name, [*_injected(answer), *mounts]))))


def is_injected(response: str) -> bool:
    """Whether a container runtime is told of a device; of a mount only NVIDIA's makes one. See `in_response`."""
    return any(map(_own_name, _injected(_decoded(response))))


def _decoded(response: str) -> Any:
    try:
        return api.ContainerAllocateResponse.FromString(base64.b64decode(response, validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise WireError(f"AllocResp is not an answer of Allocate ({error})") from error


def _injected(answer: Any) -> list[str]:
    named = [device.name for device in answer.cdi_devices]
    return [*named, *(name for value in answer.annotations.values() for name in value.split(","))]


def _own_name(told: str) -> str:
    name = told.removeprefix(names.CDI_KIND)[1:] if told.startswith(names.CDI_KIND) else ""
    return name if _NAME.fullmatch(name) else ""
