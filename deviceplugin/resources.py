"""The device resources of this plugin: what one device of each stands for, on a GPU and in a grant. Pure.

A kubelet sees each of them as a plugin of its own, with its own socket.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpushare import names
from gpushare.model.allocation import Grant
from gpushare.model.gpu import Gpu
from gpushare.units import MemoryUnit

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One device resource."""

    name: str
    socket: str
    """File in the kubelet's directory of sockets."""
    prefix: str
    """First letter of its device IDs, so that no two resources have an ID in common."""
    starts: int
    """How many of its containers may start at once."""
    switch: str = ""
    """The setting that leaves it out; memory is always offered."""
    of_gpu: Callable[[Gpu, MemoryUnit], int] = field(compare=False, repr=False)
    """How many devices a GPU is."""
    of_grant: Callable[[Grant, MemoryUnit], int | None] = field(compare=False, repr=False)
    """How many devices the holder of a grant has; None if the grant was made for another resource."""

    def device(self, number: int) -> str:
        """A device's ID: the prefix and three digits to base 36, which count to 46,655."""
        return self.prefix + _DIGITS[number // 1296] + _DIGITS[number // 36 % 36] + _DIGITS[number % 36]

    def made(self, device: str) -> bool:
        """Whether the ID is one of this plugin's; the plugins that it replaces made other ones."""
        return len(device) == _ID_LENGTH and device[0] == self.prefix and all(digit in _DIGITS for digit in device[1:])


def _units(grant: Grant, unit: MemoryUnit) -> int | None:
    return None if grant.whole else unit.ceil(grant.memory_mib) * len(grant.gpus)


def _percent(grant: Grant, _unit: MemoryUnit) -> int | None:
    return None if grant.whole or not grant.compute_percent else grant.compute_percent * len(grant.gpus)


def _whole(grant: Grant, _unit: MemoryUnit) -> int | None:
    return len(grant.gpus) if grant.whole else None


MEMORY: Final = Resource(
    name=names.GPU_MEM,
    socket="gpushare.sock",
    prefix="g",
    starts=112,  # a kubelet runs 110 pods unless told otherwise
    of_gpu=lambda gpu, unit: unit.floor(gpu.grantable_mib),
    of_grant=_units,
)
PERCENT: Final = Resource(
    name=names.GPU_PERCENT,
    socket="gpushare-percent.sock",
    prefix="p",
    starts=112,
    switch="--gpu-percent",
    of_gpu=lambda _gpu, _unit: 100,
    of_grant=_percent,
)
WHOLE: Final = Resource(
    name=names.GPU,
    socket="gpushare-whole.sock",
    prefix="w",
    starts=24,  # no more containers than GPUs
    switch="--whole-gpus",
    of_gpu=lambda _gpu, _unit: 1,
    of_grant=_whole,
)


def offered(*, percent: bool, whole_gpus: bool) -> tuple[Resource, ...]:
    """The resources that an administrator wants, memory always first."""
    return (MEMORY, *((PERCENT,) if percent else ()), *((WHOLE,) if whole_gpus else ()))
