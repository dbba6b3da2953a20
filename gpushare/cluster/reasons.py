"""What many nodes say about one pod, in one sentence. Pure."""

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.identity import NodeName
from gpushare.model.ledger import NodeLedger, RefusalReason, Refused

NODES_NAMED: Final = 3


def together(messages: Sequence[str], nodes: int, which: str) -> str:
    """`needs X; free ... on a: 1; free ... on b: 2; and 7 more nodes`: what all begin with is said once."""
    # The messages are those of the closest of so many nodes; `which` says what they are, such as ` with GPUs`.
    more = nodes - len(messages)
    heads = {message.partition("; ")[0] for message in messages}
    if len(heads) == 1:
        messages = [*heads, *(tail for message in messages if (tail := message.partition("; ")[2]))]
    text = "; ".join(messages)
    return f"{text}; and {more} more node{'s' if more > 1 else ''}{which}" if more else text


def closest(answers: Mapping[NodeName, Refused | None], ledgers: Mapping[NodeName, LedgerOrRefused]) -> str:
    """What the nodes that come closest lack, with numbers; every node has refused the pod."""
    without = RefusalReason.NO_INVENTORY
    refused = {name: answer for name, answer in answers.items() if answer is not None and answer.reason is not without}
    if not answers:
        return "the cluster has no nodes"
    if not refused:
        return f"none of the {len(answers)} nodes has reported GPUs; is the gpushare device plugin running?"
    names = heapq.nsmallest(
        NODES_NAMED, refused, key=lambda name: (refused[name].permanent, -largest_free(ledgers.get(name)), name)
    )
    return together([refused[name].message for name in names], len(refused), " with GPUs")


def largest_free(ledger: LedgerOrRefused | None) -> int:
    """MiB on the node's freest GPU: what says how close it comes."""
    if not isinstance(ledger, NodeLedger):
        return 0
    return max((ledger.free_mib(gpu) for gpu in ledger.inventory.gpus), default=0)


def some(names: Sequence[str], beside: int = 0) -> str:
    """The first few of them, and how many more there are, with those beside."""
    more = len(names) + beside - NODES_NAMED
    return ", ".join(names[:NODES_NAMED]) + (f" and {more} more" if more > 0 else "")


def by_sum(nodes: Sequence[NodeName], beside: int = 0) -> str:
    """What an autoscaler's owner needs to know of a pod for which these nodes, and so many more, have room as a sum."""
    total = f"what is free on {some(sorted(nodes), beside)} is enough in total, but no single GPU has room"
    return f"{total}; autoscalers count totals, so they add no node"
