"""Which way of handing over this node takes. Pure."""

import re
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.node import NodeFacts
from gpushare import names
from gpushare.model.gpu import HandOver

AUTO: Final = "auto"
SETTINGS: Final = (AUTO, *(way.value for way in HandOver))
_CDI_FIELD: Final = (1, 29)  # from this kubelet on, Allocate names CDI devices in a field of their own
_INJECTS: Final = {"containerd": (2, 0), "cri-o": (1, 28)}  # from these on, unless they are configured otherwise
_MAY_INJECT: Final = {"containerd": (1, 7), "cri-o": (1, 23)}  # before these never, however they are configured
_LABEL_CDI: Final = f"{names.LABEL_HAND_OVER}={HandOver.CDI.value}"


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
    """The way, by the label, else by the setting, else by what the node can."""
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
    if facts.node.label in set(SETTINGS) - {AUTO}:
        return _demanded(HandOver(facts.node.label), f"the node's label {names.LABEL_HAND_OVER}", facts)
    if facts.setting != AUTO:
        return _demanded(HandOver(facts.setting), f"the setting --hand-over={facts.setting}", facts)
    problem = _why_not_cdi(facts)
    way, reason = HandOver.CDI, f"{_product(facts.node.runtime)} injects CDI devices"
    if problem:
        way, reason = HandOver.ENVVAR, problem
    elif not facts.node.runtime:
        reason = "the Node was not read yet; a container runtime without CDI ignores CDI devices"
    if facts.node.label not in {"", AUTO}:
        known = ", ".join(SETTINGS)
        reason += f"; the node's label {names.LABEL_HAND_OVER}={facts.node.label:.63} is none of {known}"
    return way, reason


def _demanded(way: HandOver, by: str, facts: Facts) -> tuple[HandOver, str]:
    if way is HandOver.CDI and (problem := _problem_of_demanding_cdi(facts)):
        # Not another way: containers would start without a GPU where NVIDIA's runtime does not read the variable.
        return way, f"{by} demands CDI, but {problem}; label the node {names.LABEL_HAND_OVER}={HandOver.ENVVAR.value}"
    return way, f"{by} says so"


def _problem_of_demanding_cdi(facts: Facts) -> str:
    return _never_injects(facts.node.runtime) if facts.writable else _unwritable(facts)


def _never_injects(runtime: str) -> str:
    name, _, text = runtime.partition("://")
    version, first = _version(text), _MAY_INJECT.get(name)
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
    name, _, text = runtime.partition("://")
    version, product = _version(text), _product(runtime)
    least = _INJECTS.get(name)
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


def _product(runtime: str) -> str:
    name, _, version = runtime.partition("://")
    return f"{name:.40} {version:.40}".strip()


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})(?!\d)", text)
    return (int(found[1]), int(found[2])) if found else None
