"""Inventory -> the devices that the kubelet counts. Pure.

A device stands for one unit of memory somewhere on the node. Its ID says nothing about a GPU, because the kubelet picks
IDs at random: which GPU a container gets was decided when its pod was bound.
"""

from dataclasses import dataclass
from typing import Final

from gpushare.errors import SettingsError
from gpushare.model.gpu import GpuHealth, NodeInventory

MAX_DEVICES: Final = 20_000
"""Devices of one node. The kubelet takes messages up to 4 MiB; this many fill a tenth of it, and its own bookkeeping of
IDs stays fast."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertisement:
    """Device IDs by health. Every inventory of equal sizes gives the same IDs, so they survive a restart."""

    healthy: tuple[str, ...]
    unhealthy: tuple[str, ...] = ()


def devices(inventory: NodeInventory) -> Advertisement:
    """One ID for each unit; as many unhealthy ones as the unhealthy GPUs have.

    Raises:
        SettingsError: the unit makes too many devices, or none; names the unit that would do.
    """
    if inventory.total_units > MAX_DEVICES:
        raise SettingsError(
            f"in units of {inventory.unit.name} this node's GPUs are {inventory.total_units} devices, more than the"
            f" {MAX_DEVICES} that a kubelet can count; --memory-unit={_smallest_unit(inventory)}MiB would fit"
        )
    if inventory.gpus and not inventory.total_units:
        largest = max(gpu.memory_mib for gpu in inventory.gpus)
        raise SettingsError(
            f"a unit of {inventory.unit.name} is larger than the largest GPU ({largest} MiB); choose a smaller"
            " --memory-unit, such as GiB"
        )
    healthy: list[str] = []
    unhealthy: list[str] = []
    start = 0
    for gpu in inventory.gpus:
        end = start + inventory.unit.floor(gpu.memory_mib)
        (healthy if gpu.health is GpuHealth.HEALTHY else unhealthy).extend(_id(i) for i in range(start, end))
        start = end
    return Advertisement(healthy=tuple(healthy), unhealthy=tuple(unhealthy))


def _smallest_unit(inventory: NodeInventory) -> int:
    """The smallest power of two in MiB that fits."""
    mib = 1
    while sum(gpu.memory_mib // mib for gpu in inventory.gpus) > MAX_DEVICES:
        mib *= 2
    return mib


def _id(number: int) -> str:
    """`g` and three digits to base 36, which count to 46,655."""
    return "g" + _DIGITS[number // 1296] + _DIGITS[number // 36 % 36] + _DIGITS[number % 36]
