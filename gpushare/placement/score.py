"""Policies: how the GPUs of a node, and nodes among each other, are ranked. Adding a policy is adding a row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy

MAX_SCORE: Final = 1_000_000
"""Fine enough that of a cluster's nodes few are alike. An extender has 0 to 10, in which most would be."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """One policy."""

    gpu: Callable[[int, int], tuple[int, int]]
    """Free MiB and index of a GPU -> sort key; the smallest is tried first. The index makes ties stable."""
    node: Callable[[int, int], int]
    """MiB used after placement and MiB in all -> 0 to MAX_SCORE."""


def _fullest_first(free_mib: int, index: int) -> tuple[int, int]:
    return free_mib, index


def _emptiest_first(free_mib: int, index: int) -> tuple[int, int]:
    return -free_mib, index


def _full_node(used_mib: int, total_mib: int) -> int:
    return min(MAX_SCORE, MAX_SCORE * used_mib // max(total_mib, 1))


def _empty_node(used_mib: int, total_mib: int) -> int:
    return MAX_SCORE - _full_node(used_mib, total_mib)


POLICIES: Final[Mapping[Policy, Ranking]] = {
    Policy.BINPACK: Ranking(_fullest_first, _full_node),
    Policy.SPREAD: Ranking(_emptiest_first, _empty_node),
}


def score(ledger: NodeLedger, added_mib: int, policy: Policy) -> int:
    """Rank of a node for a pod that would add so many MiB to it, 0 to MAX_SCORE."""
    used = sum(ledger.used_mib.values()) + added_mib
    return POLICIES[policy].node(used, sum(gpu.memory_mib for gpu in ledger.inventory.gpus))
