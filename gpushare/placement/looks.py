"""When placement looks at a cluster again to see what is typical of it. Pure."""

from typing import Final

EVERY: Final = 128
"""Pods, at most. Fewer in the beginning, when each of them tells more."""
_PART: Final = 4


def due_after(known: int) -> int:
    """How many pods have to come after a look at a cluster before the next one is due: a quarter of the known ones.

    Args:
        known: pods whose requests were known at that look.
    """
    return min(max(known // _PART, 1), EVERY)
