"""What was found for pods of several containers, so that filter, prioritize and bind do not search for the same.

A search for many containers takes up to 50 ms on each node. Its result holds for one ledger and one outlook.
"""

import threading
from typing import Final

from gpushare.cluster import node_ledger
from gpushare.cluster.verdicts import ShapeCache
from gpushare.identity import NodeName
from gpushare.model.allocation import Verdict
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.placement.policies import Policies

_PART: Final = 16
"""Of the memory for verdicts: grants are larger than these."""


class _Found:
    """By node: the ledger and the epoch of the outlook for which it was found, and the verdict.

    Not the policies themselves: they remember tens of MiB of what they have counted, and new ones come all the time.
    """

    def __init__(self) -> None:
        self.by_node: dict[NodeName, tuple[NodeLedger, int, Verdict]] = {}


class Searches:
    """Verdicts with their grants. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache = ShapeCache(lambda _: _Found(), part=_PART)

    def verdict(self, shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Verdict:
        """Whether a pod fits, and on which GPUs."""
        name, epoch = ledger.inventory.node, policies.outlook.epoch
        with self._lock:
            known = self._cache.of(shape).by_node.get(name)
        if known is not None and known[0] is ledger and known[1] == epoch:
            return known[2]
        verdict = node_ledger.verdict(shape, ledger, policies)
        with self._lock:
            self._cache.of(shape).by_node[name] = ledger, epoch, verdict
            self._cache.weigh(shape)
        return verdict
