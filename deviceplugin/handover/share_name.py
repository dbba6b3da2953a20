"""Names of the CDI devices of this plugin, one for each answer of Allocate. Pure.

The first half comes from the device IDs, so that PreStartContainer, which knows only these, finds what was prepared
for them. The second half is new in every answer, so that no name ever stands for two containers: not for a later
holder of the same IDs, and not for an init container and the container that takes its IDs over.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError

from deviceplugin.api import deviceplugin_pb2 as api
from gpushare import names
from gpushare.errors import WireError

MOUNTS: Final = "/var/run/nvidia-container-devices/cdi/"
"""Below this path NVIDIA's runtime reads mounts of /dev/null as names of CDI devices."""
_NAME: Final = re.compile(r"c[0-9a-f]{16}-[0-9a-f]{16}")
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_FILE: Final = re.compile(r"gpushare\.dev-share_([0-9A-Za-z-]{1,64})_(c[0-9a-f]{16}-[0-9a-f]{16})\.json")


def stem(ids: Iterable[str]) -> str:
    """What all names for these device IDs begin with."""
    return "c" + hashlib.sha256(",".join(sorted(ids)).encode()).hexdigest()[:16] + "-"


def make(ids: Iterable[str], nonce: str) -> str:
    """A name. Args: nonce: 16 hexadecimal digits that no one can guess."""
    return stem(ids) + nonce


def qualified(name: str) -> str:
    """As container runtimes are told."""
    return f"{names.CDI_KIND}={name}"


def mount_path(name: str) -> str:
    """As NVIDIA's runtime is told by a mount."""
    return f"{MOUNTS}{names.CDI_KIND}/{name}"


def file_name(uid: str, name: str) -> str:
    """The file with the device's spec; it says whose it is.

    Raises:
        ValueError: no UID.
    """
    if not _UID.fullmatch(uid):
        raise ValueError(f"{uid!r:.100} is not the UID of a pod")
    return f"gpushare.dev-share_{uid}_{name}.json"


def read_file_name(file: str) -> tuple[str, str] | None:
    """UID and device name; None for a file of another name."""
    found = _FILE.fullmatch(file)
    return (found[1], found[2]) if found else None


def in_response(response: str) -> tuple[str, ...]:
    """The names in an answer of Allocate, as the kubelet's checkpoint keeps it: base64 of the message.

    Raises:
        WireError: it is not one.
    """
    answer = _decoded(response)
    mounts = [mount.container_path.removeprefix(MOUNTS) for mount in answer.mounts]
    return tuple(dict.fromkeys(filter(None, map(_own, [*_injected(answer), *mounts]))))


def is_injected(response: str) -> bool:
    """Whether a container runtime is told of a device; of a mount only NVIDIA's runtime makes one.

    Raises:
        WireError: it is not an answer of Allocate.
    """
    return any(map(_own, _injected(_decoded(response))))


def _decoded(response: str) -> Any:
    try:
        return api.ContainerAllocateResponse.FromString(base64.b64decode(response, validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise WireError(f"AllocResp is not an answer of Allocate ({error})") from error


def _injected(answer: Any) -> list[str]:
    named = [device.name for device in answer.cdi_devices]
    return [*named, *(name for value in answer.annotations.values() for name in value.split(","))]


def _own(told: str) -> str:
    name = told.removeprefix(names.CDI_KIND)[1:] if told.startswith(names.CDI_KIND) else ""
    return name if _NAME.fullmatch(name) else ""
