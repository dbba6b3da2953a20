"""What nodes answer to a pod, alone and together, and what becomes of one that bypassed the scheduler. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names
from gpushare.cluster import bypass
from gpushare.cluster.bypass import AskAuthor, Hopeless, Invalid, Recreate, TooLate
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.pod_records import Bypassed
from gpushare.cluster.reasons import NODES_NAMED, largest_free, together
from gpushare.identity import NodeName
from gpushare.model.allocation import Grant, Placed, RefusalReason, Refused, Verdict
from gpushare.model.request import ContainerKind, ContainerRequest
from gpushare_cli import schedulable
from gpushare_cli.nodefacts import NodeFacts

_NOT_MUTATED: Final = "the webhook did not change it, so its containers would not see GPUs that they are given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One node's."""

    node: NodeName
    verdict: Verdict
    """Of the GPUs, as the controller decides."""
    blockers: tuple[str, ...] = ()
    """What Kubernetes itself has against the node, in a few words each."""
    score: int | None = None
    """What kube-scheduler is told of it: 10 for the best node, 1 to 8 for others; None if it does not fit."""

    @property
    def fits(self) -> bool:
        """Whether the pod can go there, as far as anybody looked."""
        return isinstance(self.verdict, Placed) and not self.blockers

    @property
    def has_gpus(self) -> bool:
        """Whether the node has GPUs to share at all."""
        return not (isinstance(self.verdict, Refused) and self.verdict.reason is RefusalReason.NO_INVENTORY)

    @property
    def why_not(self) -> str:
        """In words; empty if it fits."""
        match self.verdict:
            case Refused(message=message):
                return "; and ".join([message, *([_joined(self.blockers)] if self.blockers else [])])
            case Placed():
                return f"{self.node} has room, but: {_joined(self.blockers)}" if self.blockers else ""


def of_node(pod: Mapping[str, Any], node: NodeFacts, requested: Mapping[str, int], verdict: Verdict) -> Answer:
    """The answer of one node. A verdict that is a refusal has better numbers than the sums of what is requested."""
    short = schedulable.short(pod, node, requested) if isinstance(verdict, Placed) else []
    return Answer(node=node.name, verdict=verdict, blockers=(*schedulable.misplaced(pod, node), *short))


def closest_first(answers: Iterable[Answer], ledgers: Mapping[NodeName, LedgerOrRefused]) -> list[Answer]:
    """Nodes that take the pod as the scheduler ranks them, then those that lack the least."""
    return sorted(answers, key=lambda answer: (*_distance(answer, ledgers.get(answer.node)), answer.node))


def summary(answers: Sequence[Answer]) -> str:
    """Why a pod fits on none of these nodes: what the first of them say, and how many there are beside them."""
    if not answers:
        return "there are no nodes"
    relevant = [answer for answer in answers if answer.has_gpus]
    meant, which = (relevant, " with GPUs") if relevant else (answers, "")
    return together([answer.why_not for answer in meant[:NODES_NAMED]], len(meant), which)


def why_not(outcome: Hopeless, pod: Bypassed) -> str:
    """Why this pod gets no GPUs, and what is done about it."""
    again = bypass.again(pod)
    match outcome:
        case Invalid(problem):
            return f"what it asks for cannot be understood: {problem}; fix that and {again}"
        case TooLate():
            return (
                "its containers have started without GPUs from gpushare, and cannot be given any more;"
                f" {again} without spec.nodeName and with the scheduler {names.SCHEDULER}"
            )
        case Recreate():
            return f"{_NOT_MUTATED}; the controller deletes it, so that its owner recreates it"
        case AskAuthor(""):
            return f"{_NOT_MUTATED}; {again}"
        case AskAuthor(advice):
            return f"{_NOT_MUTATED}; {advice} while {names.WEBHOOK} is running"


def named(part: ContainerRequest | Grant) -> str:
    """A container, with its kind unless it is an ordinary one."""
    return part.container if part.kind is ContainerKind.APP else f"{part.container} ({part.kind.value})"


def as_json(answer: Answer) -> dict[str, Any]:
    """For programs."""
    refused = answer.verdict if isinstance(answer.verdict, Refused) else None
    return {
        "node": answer.node,
        "fits": answer.fits,
        "gpusFit": refused is None,
        "score": answer.score,
        "reason": refused.reason.value if refused else None,
        "message": refused.message if refused else None,
        "blockers": answer.blockers,
    }


def _joined(blockers: Sequence[str]) -> str:
    return ", ".join(blockers)


def _distance(answer: Answer, ledger: LedgerOrRefused | None) -> tuple[int, int]:
    match answer.verdict:
        case Placed():
            return (0, -(answer.score or 0)) if answer.fits else (1, 0)
        case Refused(permanent=permanent):
            kind = 4 if not answer.has_gpus else 3 if permanent else 2
            return kind, -largest_free(ledger)
