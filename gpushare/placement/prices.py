"""What the free part of a GPU is worth, given which shares pods ask for. Pure.

A remainder that no usual share fills is worth nothing, and two halves are worth a whole GPU. The prices of shares are
those of the linear program that packs the demand into the fewest GPUs (its dual), or very near to them: taking the
usual sizes one after another, the most frequent first, each gets the highest price at which no set of shares that fits
on one GPU costs more than the GPU. The value of a remainder is then the most that shares on it can bring.
"""

from collections.abc import Iterable
from typing import Final

SLOTS: Final = 720
"""Parts of a GPU that are told apart. Halves, thirds, quarters and so on are whole numbers of them."""
WHOLE: Final = 720_720
"""Value of a GPU on which everything is free: it divides by all numbers up to 16."""
_USUAL: Final = (SLOTS // 2, SLOTS // 3, SLOTS // 4, SLOTS // 8)
"""Sizes that have a price also where no pod asks for them."""

Prices = tuple[int, ...]
"""Value of a GPU by the number of its free slots, 0 to SLOTS; it never falls."""


def slots(mib: int, total_mib: int) -> int:
    """Slots of a share or of a remainder. Rounded down: what fits together on a GPU still does in slots."""
    return min(SLOTS, mib * SLOTS // total_mib) if total_mib > 0 else 0


def prices(sizes: Iterable[int]) -> Prices:
    """What remainders are worth. If no shares are known, as much as is free: then the fullest GPU is taken.

    Args:
        sizes: of shares, in slots, the most frequent first.
    """
    known = [size for size in sizes if 0 < size < SLOTS]
    if not known:
        return tuple(WHOLE // SLOTS * free for free in range(SLOTS + 1))
    value = [0] * (SLOTS + 1)
    for size in dict.fromkeys([*known, *_USUAL, SLOTS]):
        price = min((WHOLE - value[SLOTS - count * size]) // count for count in range(1, SLOTS // size + 1))
        for free in range(size, SLOTS + 1):
            value[free] = max(value[free], value[free - size] + price)
    return tuple(value)
