"""Device resources: what one device of each stands for, and the devices of an inventory. Pure.

A kubelet sees each resource as a plugin of its own, with its own socket. A device stands for one unit of memory, one
per cent of a GPU or one GPU, somewhere on the node. Its ID says nothing about a GPU, because the kubelet picks IDs at
random: which GPU a container gets was decided when its pod was bound.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.model.ledger import Grant
from gpushare.units import MemoryUnit

MAX_DEVICES: Final = 20_000  # of one resource of a node; they fill a tenth of the largest message that a kubelet takes
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    name: str
    socket: str  # file in the kubelet's directory of sockets
    prefix: str  # first letter of its device IDs, so that no two resources have an ID in common
    starts: int  # how many of its containers may start at once
    switch: str = ""  # the setting that leaves it out; memory is always offered
    devices_of_gpu: Callable[[Gpu, MemoryUnit], int] = field(compare=False, repr=False)
    devices_of_grant: Callable[[Grant, MemoryUnit], int | None] = field(compare=False, repr=False)  # None: of another

    def device(self, number: int) -> str:
        """A device's ID: the prefix and three digits to base 36, which count to 46,655."""
        return self.prefix + _DIGITS[number // 1296] + _DIGITS[number // 36 % 36] + _DIGITS[number % 36]

    def is_own_id(self, device: str) -> bool:
        """Whether the ID is one of this plugin's; the plugins that it replaces made other ones."""
        return len(device) == 4 and device[0] == self.prefix and all(digit in _DIGITS for digit in device[1:])


MEMORY: Final = Resource(
    name=names.GPU_MEM,
    socket="gpushare.sock",
    prefix="g",
    starts=112,  # a kubelet runs 110 pods unless told otherwise
    devices_of_gpu=lambda gpu, unit: unit.floor(gpu.grantable_mib),
    devices_of_grant=lambda grant, unit: None if grant.whole else unit.ceil(grant.memory_mib) * len(grant.gpus),
)
PERCENT: Final = Resource(
    name=names.GPU_PERCENT,
    socket="gpushare-percent.sock",
    prefix="p",
    starts=112,
    switch="--gpu-percent",
    devices_of_gpu=lambda _gpu, _unit: 100,
    devices_of_grant=lambda grant, _unit: None if grant.whole else grant.compute_percent * len(grant.gpus) or None,
)
WHOLE: Final = Resource(
    name=names.GPU,
    socket="gpushare-whole.sock",
    prefix="w",
    starts=24,  # no more containers than GPUs
    switch="--whole-gpus",
    devices_of_gpu=lambda _gpu, _unit: 1,
    devices_of_grant=lambda grant, _unit: len(grant.gpus) if grant.whole else None,
)


def offered(*, percent: bool, whole_gpus: bool) -> tuple[Resource, ...]:
    return (MEMORY, *((PERCENT,) if percent else ()), *((WHOLE,) if whole_gpus else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertisement:
    """Device IDs by health. Every inventory of equal sizes gives the same IDs, so they survive a restart."""

    healthy: tuple[str, ...]
    unhealthy: tuple[str, ...] = ()


def devices(inventory: NodeInventory, resource: Resource) -> Advertisement:
    """Raises SettingsError: a setting makes too many or none; names a better one."""
    _check(inventory, resource)
    ids: dict[bool, list[str]] = {True: [], False: []}
    start = 0
    for gpu in inventory.gpus:
        end = start + resource.devices_of_gpu(gpu, inventory.unit)
        ids[gpu.health is GpuHealth.HEALTHY].extend(resource.device(number) for number in range(start, end))
        start = end
    return Advertisement(healthy=tuple(ids[True]), unhealthy=tuple(ids[False]))


def _check(inventory: NodeInventory, resource: Resource) -> None:
    total = sum(resource.devices_of_gpu(gpu, inventory.unit) for gpu in inventory.gpus)
    if total > MAX_DEVICES and resource.switch:
        raise SettingsError(
            f"this node's {len(inventory.gpus)} GPUs are {total} devices of {resource.name}, more than the"
            f" {MAX_DEVICES} that a kubelet can count; leave it out with {resource.switch}=false"
        )
    if total > MAX_DEVICES:
        mib = 1
        while sum(gpu.grantable_mib // mib for gpu in inventory.gpus) > MAX_DEVICES:
            mib *= 2
        raise SettingsError(
            f"in units of {inventory.unit.name} this node's GPUs are {total} devices, more than the"
            f" {MAX_DEVICES} that a kubelet can count; --memory-unit={mib}MiB would fit"
        )
    if inventory.gpus and not total:
        largest = max(gpu.memory_mib for gpu in inventory.gpus)
        raise SettingsError(
            f"a unit of {inventory.unit.name} is larger than the largest GPU ({largest} MiB); choose a smaller"
            " --memory-unit, such as GiB"
        )
