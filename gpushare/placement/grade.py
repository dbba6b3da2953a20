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
    distinct = sorted({cost for cost in costs if cost is not None})
    span = max(len(distinct) - 1, 1)
    grade = {cost: NEXT - (NEXT - _LEAST) * rank // span for rank, cost in enumerate(distinct)}
    best: Collection[NodeName] = reserved
    if distinct and not reserved:
        best = (min(name for name, cost in zip(names, costs, strict=True) if cost == distinct[0]),)
    return [
        BEST if name in best else 0 if cost is None else grade[cost] for name, cost in zip(names, costs, strict=True)
    ]
