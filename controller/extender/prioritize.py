"""How good each node is for a pod, by the pod's policy. Pure."""

from collections.abc import Collection, Mapping

from controller.extender.messages import MAX_SCORE
from gpushare.identity import NodeName
from gpushare.model.verdict import Refused


def decide(
    names: Collection[NodeName], answers: Mapping[NodeName, int | Refused], reserved: frozenset[NodeName]
) -> list[int]:
    """A score of 0 to 10 for every node; 0 where the pod does not fit.

    Args:
        names: the scheduler's nodes.
        answers: score or refusal of every known node.
        reserved: nodes where memory is set aside for this very pod; the best, since a Binding may be there already.
    """
    scores = [answer if type(answer) is int else 0 for answer in map(answers.get, names)]
    if reserved:
        return [MAX_SCORE if name in reserved else score for name, score in zip(names, scores, strict=True)]
    return scores
