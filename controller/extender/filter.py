"""Which of the scheduler's nodes a pod fits on. Pure: it only sorts answers that were computed before."""

from collections.abc import Iterable, Mapping

from controller.extender.messages import FilterResult
from gpushare.cluster import node_records
from gpushare.identity import NodeName
from gpushare.model.verdict import Refused


def decide(
    names: Iterable[NodeName], answers: Mapping[NodeName, int | Refused], reserved: frozenset[NodeName]
) -> FilterResult:
    """Every node that fits, and a reason for each that does not.

    Args:
        names: the scheduler's nodes.
        answers: score or refusal of every known node.
        reserved: nodes where memory is set aside for this very pod by an earlier try; it fits there.
    """
    fits: list[NodeName] = []
    failed: dict[NodeName, str] = {}
    unresolvable: dict[NodeName, str] = {}
    for name in names:
        answer = answers.get(name)
        if isinstance(answer, int) or name in reserved:
            fits.append(name)
        elif answer is None:
            failed[name] = node_records.unknown(name)
        elif answer.permanent:
            unresolvable[name] = answer.message
        else:
            failed[name] = answer.message
    return FilterResult(fits=fits, failed=failed, unresolvable=unresolvable)
