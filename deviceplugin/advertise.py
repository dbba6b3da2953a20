"""Inventory -> the devices that the kubelet counts. Pure.

A device stands for one unit of memory, one per cent of a GPU or one GPU, somewhere on the node. Its ID says nothing
about a GPU, because the kubelet picks IDs at random: which GPU a container gets was decided when its pod was bound.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from deviceplugin.resources import Resource
from gpushare.errors import SettingsError
from gpushare.model.gpu import GpuHealth, NodeInventory

MAX_DEVICES: Final = 20_000
"""Devices of one resource of a node. The kubelet takes messages up to 4 MiB; this many fill a tenth of it, and its own
bookkeeping of IDs stays fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertisement:
    """Device IDs by health. Every inventory of equal sizes gives the same IDs, so they survive a restart."""

    healthy: tuple[str, ...]
    unhealthy: tuple[str, ...] = ()


def devices(inventory: NodeInventory, offered: Iterable[Resource]) -> Mapping[str, Advertisement]:
    """The devices of each resource, by its name; as many unhealthy ones as the unhealthy GPUs have.

    Raises:
        SettingsError: a setting makes too many devices, or none; names the one that would do.
    """
    return {resource.name: _devices(inventory, resource) for resource in offered}


def _devices(inventory: NodeInventory, resource: Resource) -> Advertisement:
    _check(inventory, resource)
    healthy: list[str] = []
    unhealthy: list[str] = []
    start = 0
    for gpu in inventory.gpus:
        end = start + resource.of_gpu(gpu, inventory.unit)
        ids = healthy if gpu.health is GpuHealth.HEALTHY else unhealthy
        ids.extend(resource.device(number) for number in range(start, end))
        start = end
    return Advertisement(healthy=tuple(healthy), unhealthy=tuple(unhealthy))


def _check(inventory: NodeInventory, resource: Resource) -> None:
    total = sum(resource.of_gpu(gpu, inventory.unit) for gpu in inventory.gpus)
    if total > MAX_DEVICES and resource.switch:
        raise SettingsError(
            f"this node's {len(inventory.gpus)} GPUs are {total} devices of {resource.name}, more than the"
            f" {MAX_DEVICES} that a kubelet can count; leave it out with {resource.switch}=false"
        )
    if total > MAX_DEVICES:
        raise SettingsError(
            f"in units of {inventory.unit.name} this node's GPUs are {total} devices, more than the"
            f" {MAX_DEVICES} that a kubelet can count; --memory-unit={_smallest_unit(inventory)}MiB would fit"
        )
    if inventory.gpus and not total:
        largest = max(gpu.memory_mib for gpu in inventory.gpus)
        raise SettingsError(
            f"a unit of {inventory.unit.name} is larger than the largest GPU ({largest} MiB); choose a smaller"
            " --memory-unit, such as GiB"
        )


def _smallest_unit(inventory: NodeInventory) -> int:
    """The smallest power of two in MiB that fits."""
    mib = 1
    while sum(gpu.grantable_mib // mib for gpu in inventory.gpus) > MAX_DEVICES:
        mib *= 2
    return mib
