"""How good each node is for a pod, by the pod's policy. Pure."""

from collections.abc import Mapping, Sequence

from gpushare.identity import NodeName
from gpushare.model.verdict import Refused
from gpushare.placement import grade


def decide(
    names: Sequence[NodeName], answers: Mapping[NodeName, int | Refused], reserved: frozenset[NodeName]
) -> list[int]:
    """The grade of each node (`gpushare.placement.grade`).

    Args:
        names: the scheduler's nodes.
        answers: cost or refusal of every known node.
        reserved: nodes where memory is set aside for this very pod; the best, since a Binding may be there already.
    """
    costs = [answer if type(answer) is int else None for answer in map(answers.get, names)]
    return grade.grades(names, costs, reserved)
