"""Makes the CDI devices that Allocate has named: before each start, of the granted GPUs' parts of NVIDIA's specs.

A spec names its devices by UUID, by number, or has only one for all of them; and it may be older than the driver's last
start. So nothing is taken from it that the driver does not say of the GPU: of device nodes of GPUs, those whose minor
number is the GPU's, and of no node its numbers, which the container runtime finds at the node itself.
"""

import logging
import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deviceplugin.cdi import ContainerEdits, DeviceNode, VendorSpec
from deviceplugin.decide import Accept
from deviceplugin.handover import choice as ways
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.handover.spec_files import SpecFile, SpecFileError, SpecFiles
from deviceplugin.identify import Owner
from deviceplugin.resources import Resource
from deviceplugin.source import RawGpu
from gpushare import names
from gpushare.errors import GpuShareError, WireError
from gpushare.identity import ContainerName, GpuUuid, PodUid
from gpushare.model.gpu import HandOver
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import hand_over, pods
from gpushare.wire.pods import Pod

_LOG: Final = logging.getLogger(__name__)
_EVERY_S: Final = 10.0
_YOUNG_S: Final = 60.0  # A start may know its pod from the API server itself, before the watch has told of it
Pods = Callable[[], Sequence[Pod] | None]  # those of this node that ask for GPUs; None while that is not known
_PREFERRED: Final = "nvidia.com/gpu"
_LOCAL_USE_MAJOR: Final = 60  # for local use (Linux, admin-guide/devices.txt): no driver answers, as NVIDIA's own might
_CAPS: Final = "/dev/nvidia-caps/nvidia-cap"
_OWN: Final = re.compile(r".*(/dev/(?:nvidia\d+|nvidia-caps/nvidia-cap\d+))")
"""Device nodes of one GPU or instance; on the host they may lie below the directory of the driver's container."""
_CONTROL: Final = re.compile(r".*(/dev/(?:nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-modeset))")  # for each container
_OF_OTHERS: Final = re.compile(r".*/dev/(?:nvidia\d+|nvidia-caps.*|dri/.*)")  # of some GPU, or of several


class HandOverError(GpuShareError):
    """A container cannot get its GPUs; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    uid: str  # of its pod
    container: ContainerName
    runtime_class: str = ""  # of its pod
    names: tuple[str, ...]  # of CDI devices that Allocate has told the kubelet; empty under another way
    gpus: tuple[GpuUuid, ...]
    extra: ContainerEdits = field(default_factory=ContainerEdits)  # what holds it to its share


def recipients(pod: Pod, owner: Owner, accepted: Accept, choice: HandOverChoice) -> Sequence[Recipient]:
    """One for each grant, with what Allocate said when its pod came. HandOverError: not known, or of no use now."""
    only_cdi = pods.annotations(pod).get(names.ANNOTATION_HAND_OVER) == HandOver.CDI.value
    only_cdi = only_cdi and not choice.nvidia_default
    if owner.responses is None:
        if only_cdi and choice.way is not HandOver.CDI:
            raise HandOverError(_other_way(choice))
        if choice.way is not HandOver.ENVVAR:
            raise HandOverError("the kubelet's checkpoint does not know its devices; the kubelet will try again")
        return ()
    try:
        told = [ways.in_response(owner.responses[grant.container]) for grant in accepted.grants]
    except WireError as error:
        raise HandOverError(f"the kubelet's checkpoint: {error}; the kubelet will try again") from error
    if only_cdi and not all(is_injected for _, is_injected in told):
        raise HandOverError(_other_way(choice))
    if any(is_injected for _, is_injected in told) and choice.never_injects:
        raise HandOverError(
            f"the pod came to the node when GPUs were handed over by CDI, and {choice.never_injects}; {hand_over.AGAIN}"
        )
    found = [
        Recipient(
            uid=pods.ref(pod).uid,
            container=grant.container,
            runtime_class=str(pod["spec"].get("runtimeClassName") or ""),
            names=names_told,
            gpus=grant.gpus,
            extra=accepted.limits.get(grant.container, ContainerEdits()),
        )
        for grant, (names_told, _) in zip(accepted.grants, told, strict=True)
    ]
    if lost := [each.container for each in found if each.extra.mounts and not each.names]:
        raise HandOverError(
            f"container {lost[0]} came to the node when GPUs were not handed over by CDI, and what now holds its memory"
            f" limit comes by CDI only; {hand_over.AGAIN}"
        )
    return found


def _other_way(choice: HandOverChoice) -> str:
    if choice.way is HandOver.CDI:
        return (
            "the pod came to the node when GPUs were not handed over by CDI, and was created without the RuntimeClass"
            f" that this needed; {hand_over.AGAIN}"
        )
    return (
        f"this node hands GPUs over by {choice.way.value}, and the pod was created without the RuntimeClass that this"
        f" needs, while all nodes did so by CDI; {hand_over.AGAIN}"
    )


def edits_of(
    recipient: Recipient, known: Mapping[GpuUuid, RawGpu], choice: HandOverChoice, specs: Sequence[VendorSpec]
) -> ContainerEdits:
    """All edits of one container, or HandOverError. Args: specs: of the node, those that count most first."""
    if unknown := [uuid for uuid in recipient.gpus if uuid not in known]:
        raise HandOverError(f"GPU {unknown[0]} was not found at the last reading; the kubelet will try again")
    gpus = [known[uuid] for uuid in recipient.gpus]
    edits = ContainerEdits()
    for gpu in gpus:
        picked = pick(gpu, specs)
        if picked is None:
            raise HandOverError(
                f"no CDI spec of NVIDIA's on this node has GPU {gpu.uuid}; write one there with nvidia-ctk cdi generate"
                " --output=/var/run/cdi/nvidia.yaml, or let the GPU Operator write it"
            )
        edits = edits.merge(picked)
    uuids = ",".join(recipient.gpus)
    # NVIDIA's runtime would look for these GPUs once more, and in some of its modes refuse the container.
    read_again = (choice.nvidia_default or recipient.runtime_class.startswith(names.RUNTIME_CLASS)) and not all(
        gpu.simulated for gpu in gpus
    )
    visible = names.VISIBLE_DEVICES_NONE if read_again else uuids
    env = ((names.ENV_VISIBLE_DEVICES, visible), (names.ENV_GRANTED_DEVICES, uuids))
    return edits.merge(recipient.extra).merge(ContainerEdits(env=env))


def pick(gpu: RawGpu, specs: Sequence[VendorSpec]) -> ContainerEdits | None:
    """The edits of a GPU; None if no spec of NVIDIA's is there, or what is known does not tell the GPU's devices."""
    if gpu.simulated:
        node = DeviceNode(path=f"/dev/nvidia{gpu.index}", kind="c", major=_LOCAL_USE_MAJOR, minor=gpu.index)
        return ContainerEdits(device_nodes=(node,))
    ordered = sorted((spec for spec in specs if spec.is_nvidia), key=lambda spec: spec.kind != _PREFERRED)
    for spec in ordered:
        if own := _by_name(gpu, spec) or _by_nodes(gpu, spec):
            return _common(spec).merge(own)
    if ordered and (wanted := _wanted(gpu)):
        # A GPU that came after the spec was written; the driver's libraries are the same.
        nodes = tuple(DeviceNode(path=path) for path in sorted(wanted))
        return _common(ordered[0]).merge(ContainerEdits(device_nodes=nodes))
    return None


def _by_name(gpu: RawGpu, spec: VendorSpec) -> ContainerEdits | None:
    own = spec.devices.get(gpu.uuid)
    if own is None and not _wanted(gpu):
        own = spec.devices.get(f"{gpu.mig.gpu}:{gpu.mig.number}" if gpu.mig else str(gpu.index))
    return _cleared(own) if own is not None and _is_of(gpu, own) else None


def _by_nodes(gpu: RawGpu, spec: VendorSpec) -> ContainerEdits | None:
    """From the device of this GPU; else from one that stands for several the nodes of this one, and nothing else."""
    wanted = _wanted(gpu)
    candidates = spec.devices.values() if wanted else ()
    if exact := next((own for own in candidates if _is_of(gpu, own)), None):
        return _cleared(exact)
    for own in candidates:
        found = tuple(node for node in own.device_nodes if _names(node) == {node.path} <= wanted)
        if {node.path for node in found} == wanted:
            return _cleared(ContainerEdits(device_nodes=found))
    return None


def _is_of(gpu: RawGpu, own: ContainerEdits) -> bool:
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


def _common(spec: VendorSpec) -> ContainerEdits:
    """What each container needs. A spec for management has the driver's own nodes only with its device of all GPUs."""
    nodes = [node for node in spec.common.device_nodes if not any(map(_OF_OTHERS.fullmatch, _paths(node)))]
    of_devices = (node for own in spec.devices.values() for node in own.device_nodes)
    nodes += [
        node
        for node in of_devices
        if all((found := _CONTROL.fullmatch(path)) and found[1] == node.path for path in _paths(node))
    ]
    once = {node.path: node for node in reversed(nodes)}
    return _cleared(replace(spec.common, device_nodes=tuple(reversed(once.values()))))


def _cleared(edits: ContainerEdits) -> ContainerEdits:
    """Without the variable that says what the container was granted, and without numbers of devices."""
    return replace(
        edits,
        env=tuple(pair for pair in edits.env if pair[0] != names.ENV_VISIBLE_DEVICES),
        device_nodes=tuple(replace(node, kind="", major=None, minor=None) for node in edits.device_nodes),
    )


@dataclass(kw_only=True)
class DeviceHandOver:
    """Safe for use by many threads."""

    choice: Callable[[], HandOverChoice]
    gpus: Callable[[], Mapping[GpuUuid, RawGpu]]  # as they were read last
    files: SpecFiles
    specs: Callable[[], Sequence[VendorSpec]]  # of the node, but for this plugin's own, those that count most first
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def answer(self, resource: Resource, ids: Sequence[str]) -> Any:
        return ways.respond(self.choice(), ways.stem(ids) + secrets.token_hex(8), resource.prefix)

    def prepare(self, ids: frozenset[str], recipients: Sequence[Recipient]) -> None:
        """Make the devices that Allocate has named for these IDs, and unmake earlier ones. May raise HandOverError."""
        self.make(recipients, before=self._of(ids))

    def make(self, recipients: Sequence[Recipient], before: Sequence[SpecFile] = ()) -> None:
        """Make devices, and unmake those before them that are others. May raise HandOverError."""
        is_needed = any(recipient.names for recipient in recipients)
        chosen, known, specs = self.choice(), self.gpus(), self.specs() if is_needed else ()
        wanted = {
            SpecFile(recipient.uid, name): edits_of(recipient, known, chosen, specs)
            for recipient in recipients
            for name in recipient.names
        }
        # A runtime that finds a device twice injects none, or the other one.
        for spec in self.remove_forged(specs):
            if not spec.devices.keys().isdisjoint({file.device for file in wanted}):
                raise HandOverError(f"{spec.path} makes the same CDI device; remove that file")
        try:
            for file in set(before) - wanted.keys():
                self.files.remove(file)
            for file, edits in wanted.items():
                self.files.write(file, edits)
        except SpecFileError as error:
            raise HandOverError(f"{error}; the kubelet will try again") from error

    def withdraw(self, ids: frozenset[str], uid: PodUid | None = None) -> None:
        """Unmake the devices of these IDs, also what others made of them, and all of a pod: a container does not start.

        It may hold devices of other resources, too. A kubelet creates the containers of a pod one after the other, and
        asks before each, so the others no longer need theirs.
        """
        self.remove_forged()
        self.unmake({*self._of(ids), *(file for file in self.files.found() if file.uid == uid)})

    def unmake(self, files: Iterable[SpecFile]) -> None:
        for file in files:
            try:
                self.files.remove(file)
            except SpecFileError as error:
                # No container runs with it: the kubelet asks again before it starts any.
                logs.event(_LOG, "spec not removed", level=logging.ERROR, error=str(error))

    def remove_forged(self, specs: Sequence[VendorSpec] | None = None) -> Sequence[VendorSpec]:
        """Remove the files of others that make devices of this plugin's kind. Returns those that cannot be removed."""
        found = self.specs() if specs is None else specs
        return [spec for spec in found if spec.kind == names.CDI_KIND and not self._removed(spec)]

    def _removed(self, spec: VendorSpec) -> bool:
        try:
            spec.path.unlink(missing_ok=True)
        except OSError as error:
            about = {"path": str(spec.path), "error": str(error)}
            self._problems.say("forged spec not removed", spec.path, level=logging.ERROR, **about)
            return False
        self._problems.clear(spec.path)
        logs.event(_LOG, "forged spec removed", level=logging.WARNING, path=str(spec.path))
        return True

    def _of(self, ids: frozenset[str]) -> Sequence[SpecFile]:
        stem = ways.stem(ids)
        return [file for file in self.files.found() if file.device.startswith(stem)]


@dataclass(kw_only=True)
class SpecSweeper:
    devices: DeviceHandOver
    pods: Pods
    clock: Clock
    claims: Callable[[], Collection[str] | None] = tuple  # UIDs of ResourceClaims, whose specs others remove
    _needed: set[str] = field(init=False, default_factory=set)  # UIDs of the pods that had GPUs at the last look

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.sweep()
            self.clock.wait(stop, _EVERY_S)

    def sweep(self) -> None:
        """Remove specs of pods that are gone or have ended, what others wrote of this plugin's kind, and remains."""
        self.devices.remove_forged()
        before = self.clock.now().timestamp() - _YOUNG_S
        files = self.devices.files
        files.remove_unfinished(before)
        known, claims = self.pods(), self.claims()
        if known is None or claims is None:
            return
        needed: set[str] = {pods.ref(pod).uid for pod in known if pods.holds_gpus(pod)} | {*claims}
        gone, self._needed = self._needed - needed, needed
        for file in files.found():
            if file.uid in gone or (file.uid not in needed and files.written_at(file) < before):
                with suppress(SpecFileError):  # tried again
                    files.remove(file)
