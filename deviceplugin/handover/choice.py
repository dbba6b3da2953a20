"""Which way of handing over this node takes, and what Allocate answers under it.

A way is a branch in `choose` and in `respond`, and a member of HandOver; `in_response` must find its names in what the
kubelet keeps, or PreStartContainer cannot prepare them.

The first half of a CDI device's name comes from the device IDs, so that PreStartContainer, which knows only these,
finds what was prepared for them. The second half is new in every answer, so that no name ever stands for two
containers: not for a later holder of the same IDs, and not for an init container and the container that takes its IDs
over.
"""

import base64
import binascii
import hashlib
import logging
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from google.protobuf.message import DecodeError

from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.causes import Cause, Code
from deviceplugin.handover.spec_files import SpecFiles
from deviceplugin.node import NodeFacts, read_node
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import GpuHealth, HandOver, NodeInventory
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
AUTO: Final = "auto"
SETTINGS: Final = (AUTO, *(way.value for way in HandOver))
_CDI_FIELD: Final = (1, 29)  # from this kubelet on, Allocate names CDI devices in a field of their own
_INJECTS: Final = {"containerd": (2, 0), "cri-o": (1, 28)}  # from these on, unless they are configured otherwise
_MAY_INJECT: Final = {"containerd": (1, 7), "cri-o": (1, 23)}  # before these never, however they are configured
_LABEL_CDI: Final = f"{names.LABEL_HAND_OVER}={HandOver.CDI.value}"
_TIMEOUT_S: Final = 3.0
_FIRST_S: Final = 2.0  # for which the first reading of the GPUs waits for the Node
_LOOK_S: Final = 10.0  # between looks at the directories
_NEW_S: Final = 30.0  # for which a node that has never shared waits for NVIDIA's specs to be written
_AWAY_S: Final = 600.0  # for which specs may be missing: they go at a reboot, or when driver or toolkit are replaced
_MISSING: Final = "NVIDIA's CDI specs are missing, without which no container starts"
MOUNTS: Final = "/var/run/nvidia-container-devices/cdi/"  # mounts of /dev/null below it name CDI devices
_NAME: Final = re.compile(r"c[0-9a-f]{16}-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    node: NodeFacts = field(default_factory=NodeFacts)
    setting: str = AUTO
    nvidia_default: bool = False  # the setting; a label of the node overrides it
    directory: str = ""  # where specs are written
    writable: bool = False  # whether that can be done
    simulated: bool = False
    nvidia_specs: bool = False  # whether the node has CDI specs of NVIDIA's


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverChoice:
    way: HandOver
    reason: str
    by_field: bool = True  # CDI devices are named in the answer's own field
    by_annotation: bool = False  # they are named in the answer's annotations, which older kubelets pass on as well
    nvidia_default: bool = False  # NVIDIA's runtime runs also the containers of pods without a RuntimeClass
    never_injects: str = ""  # why the container runtime injects no CDI device, however it is configured
    impossible: str = ""  # why nothing can be handed over in the way that an administrator demands


def choose(facts: Facts) -> HandOverChoice:
    """The way, by the label, else by the setting, else by what the node can. Pure."""
    way, reason = _way(facts)
    kubelet = _version(facts.node.kubelet)
    return HandOverChoice(
        way=way,
        reason=reason,
        # A kubelet passes over what it does not know, and a runtime takes a name that comes twice once.
        by_field=kubelet is None or kubelet >= _CDI_FIELD,
        by_annotation=kubelet is None or kubelet < _CDI_FIELD,
        nvidia_default=facts.node.default_label == "true" if facts.node.default_label else facts.nvidia_default,
        never_injects=_never_injects(facts.node.runtime),
        impossible=reason if way is HandOver.CDI and _problem_of_demanding_cdi(facts) else "",
    )


def _way(facts: Facts) -> tuple[HandOver, str]:
    if facts.node.hand_over_label in set(SETTINGS) - {AUTO}:
        return _demanded(HandOver(facts.node.hand_over_label), f"the node's label {names.LABEL_HAND_OVER}", facts)
    if facts.setting != AUTO:
        return _demanded(HandOver(facts.setting), f"the setting --hand-over={facts.setting}", facts)
    problem = _why_not_cdi(facts)
    way, reason = HandOver.CDI, f"{_product(facts.node.runtime)} injects CDI devices"
    if problem:
        way, reason = HandOver.ENVVAR, problem
    elif not facts.node.runtime:
        reason = "the Node was not read yet; a container runtime without CDI ignores CDI devices"
    if facts.node.hand_over_label not in {"", AUTO}:
        known = ", ".join(SETTINGS)
        reason += f"; the node's label {names.LABEL_HAND_OVER}={facts.node.hand_over_label:.63} is none of {known}"
    return way, reason


def _demanded(way: HandOver, by: str, facts: Facts) -> tuple[HandOver, str]:
    if way is HandOver.CDI and (problem := _problem_of_demanding_cdi(facts)):
        # Not another way: containers would start without a GPU where NVIDIA's runtime does not read the variable.
        return way, f"{by} demands CDI, but {problem}; label the node {names.LABEL_HAND_OVER}={HandOver.ENVVAR.value}"
    return way, f"{by} says so"


def _problem_of_demanding_cdi(facts: Facts) -> str:
    return _never_injects(facts.node.runtime) if facts.writable else _unwritable(facts)


def _never_injects(runtime: str) -> str:
    name, version = _named(runtime)
    first = _MAY_INJECT.get(name)
    return _too_old(runtime) if first and version and version < first else ""


def _unwritable(facts: Facts) -> str:
    return (
        f"{facts.directory} is not mounted into the device plugin, not writable, or was removed since its pod started"
    )


def _too_old(runtime: str) -> str:
    return f"{_product(runtime)} does not inject CDI devices; containerd does from 2.0 on, CRI-O from 1.28"


def _why_not_cdi(facts: Facts) -> str:
    if not facts.writable:
        return _unwritable(facts)
    if facts.node.runtime and (problem := _runtime_problem(facts.node.runtime)):
        return problem
    if not facts.simulated and not facts.nvidia_specs:
        return (
            "the node has no CDI spec of NVIDIA's; nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml or the GPU"
            " Operator writes one"
        )
    return ""


def _runtime_problem(runtime: str) -> str:
    name, version = _named(runtime)
    least, product = _INJECTS.get(name), _product(runtime)
    if least is None or version is None:
        return f"{product} is not known to inject CDI devices; if it does, label the node {_LABEL_CDI}"
    if version >= least:
        return ""
    if (name, version) == ("containerd", (1, 7)):
        return (
            f"{product} injects CDI devices only with enable_cdi = true in its configuration; if it has that, label the"
            f" node {_LABEL_CDI}"
        )
    return _too_old(runtime)


def _named(runtime: str) -> tuple[str, tuple[int, int] | None]:
    name, _, text = runtime.partition("://")
    return name, _version(text)


def _product(runtime: str) -> str:
    name, _, version = runtime.partition("://")
    return f"{name:.40} {version:.40}".strip()


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})(?!\d)", text)
    return (int(found[1]), int(found[2])) if found else None


@dataclass(kw_only=True)
class Chooser:
    api: KubeApi
    node: NodeName
    clock: Clock
    files: SpecFiles
    settings: Facts  # what does not change of what the choice depends on
    has_nvidia_specs: Callable[[], bool]
    recheck_s: float  # between readings of the Node
    known: threading.Event = field(default_factory=threading.Event)  # the Node was read, and nothing is waited for
    _latest: HandOverChoice = field(init=False)
    _asked: bool = field(init=False, default=False)
    _facts: NodeFacts = field(init=False, default_factory=NodeFacts)
    _read_at: float = field(init=False, default=float("-inf"))
    _specs_by: float | None = field(init=False, default=None)  # until when NVIDIA's specs may be missing

    def __post_init__(self) -> None:
        self._latest = choose(self._gathered())

    def latest(self) -> HandOverChoice:
        """Before the Node was read, what is right on most nodes."""
        return self._latest

    def assess(self, inventory: NodeInventory) -> NodeInventory:
        """The inventory with the way; where it is demanded and cannot work, no GPU takes containers.

        The first call waits a little for the Node to be read, so that others are told once.
        """
        if not self._asked:
            self._asked = True
            self.known.wait(_FIRST_S)
        chosen = self._latest
        found = replace(inventory, hand_over=chosen.way, hand_over_reason=chosen.reason)
        if not chosen.impossible:
            return found
        why = Cause(Code.NOT_HANDED_OVER, chosen.impossible)
        gpus = (replace(gpu, health=GpuHealth.UNHEALTHY, reason=why) for gpu in inventory.gpus)
        return replace(found, gpus=tuple(gpus))

    def agrees(self, inventory: NodeInventory) -> bool:
        """Whether an inventory says of the hand-over what the Node was read for: before, it is a guess."""
        return self.known.is_set() and inventory.hand_over is self._latest.way

    def limits_label(self) -> str | None:
        """`gpushare.dev/limits` of the Node; None until it was read."""
        return self._facts.limits_label if self.known.is_set() else None

    def oversubscription_label(self) -> str | None:
        return self._facts.oversubscription_label if self.known.is_set() else None

    def node_facts(self) -> NodeFacts | None:
        """The Node as it was read last; None until it was."""
        return self._facts if self.known.is_set() else None

    def run(self, stop: threading.Event) -> None:
        backoff = Backoff()
        while not stop.is_set():
            try:
                self.look()
                backoff.reset()
                delay = _LOOK_S if self.known.is_set() else _FIRST_S
            except (kube.KubeError, WireError) as error:
                delay = backoff.next_s()
                logs.event(_LOG, "node not read", level=logging.WARNING, error=str(error), retry_s=delay)
            self.clock.wait(stop, delay)

    def look(self) -> None:
        """Look once. May raise KubeError, or WireError if what was read is no Node."""
        if self.clock.monotonic() - self._read_at >= self.recheck_s:
            self._facts = read_node(self.api.get(kube.node_path(self.node), timeout_s=_TIMEOUT_S))
            self._read_at = self.clock.monotonic()
        chosen = self._chosen(self._gathered())
        if chosen is None:
            return
        if chosen != self._latest or not self.known.is_set():
            logs.event(_LOG, "hand-over", way=chosen.way.value, reason=chosen.reason)
        self._latest = chosen
        self.known.set()

    def _gathered(self) -> Facts:
        writable, nvidia_specs = self.files.writable(), self.has_nvidia_specs()
        return replace(self.settings, node=self._facts, writable=writable, nvidia_specs=nvidia_specs)

    def _chosen(self, facts: Facts) -> HandOverChoice | None:
        """The choice; None while a new node may still get what a better one needs: a container keeps its first way."""
        now, chosen = self.clock.monotonic(), choose(facts)
        if facts.nvidia_specs:
            self._specs_by = now + _AWAY_S
        elif self._specs_by is None:
            self._specs_by = now + {None: _NEW_S, HandOver.CDI: _AWAY_S}.get(facts.node.published, 0.0)
        with_specs = choose(replace(facts, nvidia_specs=True))
        if with_specs.way is chosen.way or now >= self._specs_by:
            return chosen
        if facts.node.published is None and not self.known.is_set():
            return None
        return replace(with_specs, reason=f"{with_specs.reason}; {_MISSING}")


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
    """What all names for these device IDs begin with; 16 hexadecimal digits that no one can guess follow."""
    return "c" + hashlib.sha256(",".join(sorted(ids)).encode()).hexdigest()[:16] + "-"


def in_response(response: str) -> tuple[tuple[str, ...], bool]:
    """The names in an answer of Allocate, and whether the container runtime is told of one: mounts are for NVIDIA's.

    Args: response: as the kubelet's checkpoint keeps it: base64. May raise WireError.
    """
    try:
        answer = api.ContainerAllocateResponse.FromString(base64.b64decode(response, validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise WireError(f"AllocResp is not an answer of Allocate ({error})") from error
    injected = [device.name for device in answer.cdi_devices]
    injected += [name for value in answer.annotations.values() for name in value.split(",")]
    mounted = [mount.container_path.removeprefix(MOUNTS) for mount in answer.mounts]
    found = tuple(dict.fromkeys(filter(None, map(_own_name, [*injected, *mounted]))))
    return found, any(map(_own_name, injected))


def _own_name(told: str) -> str:
    name = told.removeprefix(names.CDI_KIND)[1:] if told.startswith(names.CDI_KIND) else ""
    return name if _NAME.fullmatch(name) else ""
