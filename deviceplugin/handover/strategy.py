"""What Allocate answers under each way of handing over. Pure: no look-up, no knowledge of the pod."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from deviceplugin.handover import share_name
from deviceplugin.handover.choice import Choice
from gpushare import names
from gpushare.model.gpu import HandOver


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """For one container."""

    cdi_devices: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    """Of the container, for its runtime."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Paths in the container and on the host."""

    @property
    def env(self) -> Mapping[str, str]:
        """Weaker than the pod's own variables and stronger than the image's.

        A pod that the webhook did not change sees no GPU, also when its image says `all`. In every other pod the
        webhook's variable, or that of the CDI device, wins.
        """
        return {names.ENV_VISIBLE_DEVICES: names.VISIBLE_DEVICES_NONE}


HandOverStrategy = Callable[[Choice, str, str], Answer]
"""How the node's kubelet is told of CDI devices, the name of the one whose spec is written before the container starts,
and the first letter of the resource's device IDs (a container may have devices of several resources) -> the answer."""


def by_cdi(choice: Choice, name: str, prefix: str) -> Answer:
    """The container runtime injects the device."""
    device = share_name.qualified(name)
    return Answer(
        cdi_devices=(device,) if choice.by_field else (),
        annotations=((f"{names.CDI_DOMAIN}/gpushare-{prefix}", device),) if choice.by_annotation else (),
    )


def by_variable(_choice: Choice, _name: str, _prefix: str) -> Answer:
    """NVIDIA's runtime reads the pod's variable."""
    return Answer()


def by_mounts(_choice: Choice, name: str, _prefix: str) -> Answer:
    """NVIDIA's runtime reads mounts of /dev/null; here they name the CDI device, as the GPUs are not known yet."""
    return Answer(mounts=((share_name.mount_path(name), "/dev/null"),))


STRATEGIES: Final[Mapping[HandOver, HandOverStrategy]] = MappingProxyType(
    {HandOver.CDI: by_cdi, HandOver.ENVVAR: by_variable, HandOver.VOLUME_MOUNTS: by_mounts}
)
