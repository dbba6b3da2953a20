"""What is free on every node, as far as it matters for costs. Written under the lock of `controller.index`.

Nodes with equal rooms are alike for nearly every cost, and share a number, which no other room ever has: what was
found for a number stays true. Look-ups need no lock; each sees the newest that there is of one node.
"""

import itertools
from collections.abc import Mapping

from controller.changelog import ChangeLog
from gpushare.cluster import node_ledger
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.identity import NodeName
from gpushare.model.capacity import FreeGpu, FreeHost, NodeCapacity
from gpushare.model.gpu import HandOver
from gpushare.model.ledger import NodeLedger


class NodeRooms:
    """One number for each node, and one room for each number."""

    def __init__(self) -> None:
        self.ids: dict[NodeName, int] = {}
        self.log = ChangeLog()
        """Of nodes whose numbers have changed. Not to be looked at without the lock, but for its `sequence`."""
        self.by_id: dict[int, NodeCapacity] = {}
        self.by_gpu: dict[FreeGpu, set[int]] = {}
        """Numbers of the rooms that have such a GPU. Few GPUs of a cluster differ."""
        self.mixed: set[NodeName] = set()
        """Nodes with GPUs of several models: their rooms do not tell which GPU is of which."""
        self.without_cdi: set[NodeName] = set()
        """Nodes that hand GPUs over in another way than CDI."""
        self._numbers = itertools.count(1)
        self._number_of: dict[NodeCapacity, int] = {}
        self._nodes: dict[int, int] = {}
        """How many nodes have a number."""
        self._ledgers: dict[NodeName, LedgerOrRefused] = {}
        """Of which each room was made."""

    def room(self, name: NodeName) -> NodeCapacity | None:
        """A node's room; None for a node that is not known."""
        number = self.ids.get(name)
        return None if number is None else self.by_id.get(number)

    def rooms(self) -> Mapping[NodeName, NodeCapacity]:
        """All of them; a copy."""
        return {name: self.by_id[number] for name, number in self.ids.items()}

    def set(self, name: NodeName, ledger: LedgerOrRefused, host: FreeHost | None) -> None:
        """A node has another ledger, or its pods leave another part of the host."""
        before = self.room(name)
        if before is not None and self._ledgers[name] is ledger:
            room = NodeCapacity(model=before.model, gpus=before.gpus, host=host)
        else:
            room = node_ledger.room(ledger, host)
            self._note(name, ledger)
        if room != before:
            self._leave(name)
            number = self._number_of.get(room)
            if number is None:
                number = self._number_of[room] = next(self._numbers)
                self.by_id[number] = room
                for gpu in room.gpus:
                    self.by_gpu.setdefault(gpu, set()).add(number)
            self._nodes[number] = self._nodes.get(number, 0) + 1
            self.ids[name] = number
            self.log.note(name, exists=True)

    def forget(self, name: NodeName) -> None:
        """A node is gone."""
        self._leave(name)
        self._unmark(name)
        self._ledgers.pop(name, None)
        self.log.note(name, exists=False)

    def _unmark(self, name: NodeName) -> None:
        self.mixed.discard(name)
        self.without_cdi.discard(name)

    def _note(self, name: NodeName, ledger: LedgerOrRefused) -> None:
        self._unmark(name)
        self._ledgers[name] = ledger
        if isinstance(ledger, NodeLedger):
            if ledger.inventory.is_mixed:
                self.mixed.add(name)
            if ledger.inventory.hand_over is not HandOver.CDI:
                self.without_cdi.add(name)

    def _leave(self, name: NodeName) -> None:
        number = self.ids.pop(name, None)
        if number is None:
            return
        self._nodes[number] -= 1
        if not self._nodes[number]:
            del self._nodes[number]
            room = self.by_id.pop(number)
            del self._number_of[room]
            for gpu in set(room.gpus):
                self.by_gpu[gpu].discard(number)
                if not self.by_gpu[gpu]:
                    del self.by_gpu[gpu]
