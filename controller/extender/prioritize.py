"""How good each node is for a pod, by the pod's policy. Pure."""

from collections.abc import Collection, Mapping
from typing import Final

from controller.extender.messages import MAX_SCORE
from gpushare.identity import NodeName
from gpushare.model.verdict import Refused

_LEAST: Final = 1
_NEXT: Final = 8


def decide(
    names: Collection[NodeName], answers: Mapping[NodeName, int | Refused], reserved: frozenset[NodeName]
) -> list[int]:
    """10 for the best node, 1 to 8 for all others on which the pod fits, 0 where it does not.

    Kube-scheduler chooses among equal nodes by chance, and adds what its own plugins think. So one node alone is the
    best, the first by name of equal ones, and 8 leaves a distance to it.

    Args:
        names: the scheduler's nodes.
        answers: score or refusal of every known node.
        reserved: nodes where memory is set aside for this very pod; the best, since a Binding may be there already.
    """
    found = [answer if type(answer) is int else -1 for answer in map(answers.get, names)]
    high = max(found, default=-1)
    low = min((score for score in found if score >= 0), default=0)
    span = max(high - low, 1)
    best: Collection[NodeName] = reserved
    if not reserved and high >= 0:
        best = (min(name for name, score in zip(names, found, strict=True) if score == high),)
    return [
        MAX_SCORE if name in best else _LEAST + (_NEXT - _LEAST) * (score - low) // span if score >= 0 else 0
        for name, score in zip(names, found, strict=True)
    ]
