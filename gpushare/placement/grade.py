"""Costs of nodes as the few numbers that an extender can say. Pure."""

from collections.abc import Collection, Sequence
from typing import Final

from gpushare.identity import NodeName

BEST: Final = 10
NEXT: Final = 8
_LEAST: Final = 1


def grades(
    names: Sequence[NodeName], costs: Sequence[int | None], reserved: Collection[NodeName] = frozenset()
) -> list[int]:
    """10 for the node that costs least, 8 to 1 for the others by rank, 0 where the pod does not fit.

    Kube-scheduler chooses among equal nodes by chance, and adds what its own plugins think. So one node alone is the
    best, the first by name of equal ones, and 8 leaves a distance to it.

    Args:
        names: of nodes.
        costs: of each; None where the pod does not fit.
        reserved: nodes where memory is set aside for this very pod; the best, since a Binding may be there already.
    """
    distinct = sorted({cost for cost in set(costs) if cost is not None})
    grade: dict[int | None, int] = {None: 0}
    grade.update(zip(distinct, by_rank(len(distinct)), strict=False))
    result = [grade[cost] for cost in costs]
    if reserved:
        best = [position for position, name in enumerate(names) if name in reserved]
    else:
        least = [position for position, cost in enumerate(costs) if cost == distinct[0]] if distinct else []
        best = [min(least, key=names.__getitem__)] if least else []
    for position in best:
        result[position] = BEST
    return result


def by_rank(number: int) -> list[int]:
    """The grade at each of so many ranks, the least cost first, and 0 after them. None is the best."""
    span = max(number - 1, 1)
    return [NEXT - (NEXT - _LEAST) * rank // span for rank in range(number)] + [0]
