"""In which order pods come, and with which seeds. Pure but for chance, which a seed decides."""

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from gpushare.errors import SettingsError
from gpushare_cli.simulate.plan import Pod

MAX_SEEDS: Final = 100


class Order(StrEnum):
    """How pods are put in order. Those that are on a node already always come first."""

    GIVEN = "given"
    """Waiting pods by priority and age, then those of the files in their order."""
    SHUFFLED = "shuffled"
    """By chance, which a seed decides."""
    TIMESTAMPS = "timestamps"
    """By when they were created; those of which that is not known come last."""


def ordered(pods: Sequence[Pod], order: Order, seed: int) -> list[int]:
    """The numbers of the pods as they come."""
    numbers = list(range(len(pods)))
    first, rest = [i for i in numbers if pods[i].bound], [i for i in numbers if not pods[i].bound]
    if order is Order.SHUFFLED:
        random.Random(seed).shuffle(rest)  # noqa: S311 - nothing secret
    elif order is Order.TIMESTAMPS:
        rest.sort(key=lambda i: (pods[i].created == "", pods[i].created))
    return first + rest


def seeds(text: str) -> tuple[int, ...]:
    """`7`, `1-5` or `1,2,9`.

    Raises:
        SettingsError: it is none of these, or too many.
    """
    first, dash, last = text.partition("-")
    try:
        found = tuple(range(int(first), int(last) + 1)) if dash else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"--seeds {text}: write numbers, such as 1-5 or 1,2,9") from None
    if not 0 < len(found) <= MAX_SEEDS:
        raise SettingsError(f"--seeds {text}: write 1 to {MAX_SEEDS} numbers")
    return found
