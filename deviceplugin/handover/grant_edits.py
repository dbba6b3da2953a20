"""What a container gets for the GPUs of its grant. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.edits import ContainerEdits, DeviceNode
from deviceplugin.handover.choice import Choice
from deviceplugin.handover.pick import pick
from deviceplugin.handover.vendor_spec import VendorSpec
from deviceplugin.source import RawGpu
from gpushare import names
from gpushare.errors import GpuShareError
from gpushare.identity import ContainerName, GpuUuid

_MADE_UP_MAJOR: Final = 60
"""Character devices 60 to 63 are for local use (Documentation/admin-guide/devices.txt of Linux), so no driver answers:
what opens one is told ENXIO, and EPERM without a right to it. NVIDIA's own number would be a real GPU where there is
one."""


class HandOverError(GpuShareError):
    """A container cannot get its GPUs; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """A container that may be about to start, and what it was granted."""

    uid: str
    """Of its pod."""
    container: ContainerName
    runtime_class: str = ""
    """Of its pod."""
    names: tuple[str, ...]
    """Of CDI devices that Allocate has told the kubelet; empty if it was admitted under another way."""
    gpus: tuple[GpuUuid, ...]
    extra: ContainerEdits = field(default_factory=ContainerEdits)
    """What holds it to its share."""


def of(
    recipient: Recipient, known: Mapping[GpuUuid, RawGpu], choice: Choice, specs: Sequence[VendorSpec]
) -> ContainerEdits:
    """All edits of one container. Args: specs: of the node, those that count most first.

    Raises:
        HandOverError: a GPU is not known, or in no spec.
    """
    gpus = [_known(uuid, known) for uuid in recipient.gpus]
    edits = ContainerEdits()
    for gpu in gpus:
        edits = edits.merge(_made_up(gpu) if gpu.simulated else _picked(gpu, specs))
    return edits.merge(recipient.extra).merge(ContainerEdits(env=_variables(recipient, gpus, choice)))


def _known(uuid: GpuUuid, known: Mapping[GpuUuid, RawGpu]) -> RawGpu:
    if uuid not in known:
        raise HandOverError(f"GPU {uuid} was not found at the last reading; the kubelet will try again")
    return known[uuid]


def _made_up(gpu: RawGpu) -> ContainerEdits:
    node = DeviceNode(path=f"/dev/nvidia{gpu.index}", kind="c", major=_MADE_UP_MAJOR, minor=gpu.index)
    return ContainerEdits(device_nodes=(node,))


def _picked(gpu: RawGpu, specs: Sequence[VendorSpec]) -> ContainerEdits:
    picked = pick(gpu, specs)
    if picked is None:
        raise HandOverError(
            f"no CDI spec of NVIDIA's on this node has GPU {gpu.uuid}; write one there with nvidia-ctk cdi generate"
            " --output=/var/run/cdi/nvidia.yaml, or let the GPU Operator write it"
        )
    return picked.edits


def _variables(recipient: Recipient, gpus: Sequence[RawGpu], choice: Choice) -> tuple[tuple[str, str], ...]:
    uuids = ",".join(recipient.gpus)
    # NVIDIA's runtime would look for these GPUs once more, and in some of its modes refuse the container.
    read_again = (choice.nvidia_default or recipient.runtime_class.startswith(names.RUNTIME_CLASS)) and not all(
        gpu.simulated for gpu in gpus
    )
    visible = names.VISIBLE_DEVICES_NONE if read_again else uuids
    return ((names.ENV_VISIBLE_DEVICES, visible), (names.ENV_GRANTED_DEVICES, uuids))
