"""Which of NVIDIA's CDI specs has a GPU, and what of it a container gets. Pure.

A spec names its devices by UUID, by number, or has only one for all of them; and it may be older than the driver's last
start. So nothing is taken from it that the driver does not say of the GPU: of device nodes of GPUs, those whose minor
number is the GPU's, and of no node its numbers, which the container runtime finds at the node itself.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from deviceplugin.edits import ContainerEdits, DeviceNode
from deviceplugin.handover.vendor_spec import VendorSpec
from deviceplugin.source import RawGpu
from gpushare import names

PREFERRED: Final = "nvidia.com/gpu"
_CAPS: Final = "/dev/nvidia-caps/nvidia-cap"
_OWN: Final = re.compile(r".*(/dev/(?:nvidia\d+|nvidia-caps/nvidia-cap\d+))")
"""Device nodes of one GPU or instance; on the host they may lie below the directory of the driver's container."""
_CONTROL: Final = re.compile(r".*(/dev/(?:nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-modeset))")
"""Device nodes of the driver, which each container needs."""
_OF_OTHERS: Final = re.compile(r".*/dev/(?:nvidia\d+|nvidia-caps.*|dri/.*)")
"""Device nodes that stand for some GPU, or for several nodes' GPUs together."""


@dataclass(frozen=True, slots=True)
class Picked:
    """What one GPU needs."""

    spec: VendorSpec
    own: ContainerEdits

    @property
    def edits(self) -> ContainerEdits:
        """With what every device of the file needs, such as the driver's libraries."""
        return _common(self.spec).merge(self.own)


def pick(gpu: RawGpu, specs: Sequence[VendorSpec]) -> Picked | None:
    """The edits of a GPU; None if no spec of NVIDIA's is there, or what is known does not tell the GPU's devices.

    Args:
        gpu: as the driver describes it.
        specs: those that count most first.
    """
    ordered = sorted(filter(lambda spec: spec.is_nvidia, specs), key=lambda spec: spec.kind != PREFERRED)
    for spec in ordered:
        own = _by_name(gpu, spec) or _by_nodes(gpu, spec) or _from_several(gpu, spec)
        if own is not None:
            return Picked(spec, own)
    if ordered and _wanted(gpu):
        # A GPU that came after the spec was written; the driver's libraries are the same.
        return Picked(
            ordered[0], ContainerEdits(device_nodes=tuple(DeviceNode(path=path) for path in sorted(_wanted(gpu))))
        )
    return None


def _by_name(gpu: RawGpu, spec: VendorSpec) -> ContainerEdits | None:
    own = spec.devices.get(gpu.uuid)
    if own is None and not _wanted(gpu):
        own = spec.devices.get(_number(gpu))
    return _cleared(own) if own is not None and _is_of(gpu, own) else None


def _by_nodes(gpu: RawGpu, spec: VendorSpec) -> ContainerEdits | None:
    if not _wanted(gpu):
        return None
    return next((_cleared(own) for own in spec.devices.values() if _is_of(gpu, own)), None)


def _from_several(gpu: RawGpu, spec: VendorSpec) -> ContainerEdits | None:
    """From a device that stands for several GPUs: the nodes of this one, and nothing else."""
    wanted = _wanted(gpu)
    for own in spec.devices.values() if wanted else ():
        found = tuple(node for node in own.device_nodes if _names(node) == {node.path} <= wanted)
        if {node.path for node in found} == wanted:
            return _cleared(ContainerEdits(device_nodes=found))
    return None


def _is_of(gpu: RawGpu, own: ContainerEdits) -> bool:
    """Whether a device has the nodes of this GPU and of no other."""
    found = {name for node in own.device_nodes for name in _names(node)}
    if wanted := _wanted(gpu):
        return found == wanted
    gpus = [name for name in found if not name.startswith(_CAPS)]
    # One of a GPU instance, and one of the compute instance in it.
    return len(gpus) == 1 and len(found) - len(gpus) == (2 if gpu.mig else 0)


def _wanted(gpu: RawGpu) -> set[str]:
    """Its device nodes; none if the driver does not say all of them."""
    if gpu.minor is None or (gpu.mig and not gpu.caps):
        return set()
    return {f"/dev/nvidia{gpu.minor}", *(f"{_CAPS}{cap}" for cap in gpu.caps)}


def _names(node: DeviceNode) -> set[str]:
    """What GPU or capability a node is in the container and on the host: one name, unless the file is wrong."""
    return {found[1] for path in _paths(node) if (found := _OWN.fullmatch(path))}


def _paths(node: DeviceNode) -> tuple[str, str]:
    return node.path, node.host_path or node.path


def _number(gpu: RawGpu) -> str:
    return f"{gpu.mig.gpu}:{gpu.mig.number}" if gpu.mig else str(gpu.index)


def _common(spec: VendorSpec) -> ContainerEdits:
    """What each container needs. A spec for management has the driver's own nodes only with its device of all GPUs."""
    nodes = [node for node in spec.common.device_nodes if not any(map(_OF_OTHERS.fullmatch, _paths(node)))]
    nodes += [node for own in spec.devices.values() for node in own.device_nodes if _is_control(node)]
    once = {node.path: node for node in reversed(nodes)}
    return _cleared(replace(spec.common, device_nodes=tuple(reversed(once.values()))))


def _is_control(node: DeviceNode) -> bool:
    return all((found := _CONTROL.fullmatch(path)) and found[1] == node.path for path in _paths(node))


def _cleared(edits: ContainerEdits) -> ContainerEdits:
    """Without the variable that says what the container was granted, and without numbers of devices."""
    return replace(
        edits,
        env=tuple(pair for pair in edits.env if pair[0] != names.ENV_VISIBLE_DEVICES),
        device_nodes=tuple(replace(node, kind="", major=None, minor=None) for node in edits.device_nodes),
    )
