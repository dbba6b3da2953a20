"""What pods have requested of the CPU and memory of each node. Not thread-safe: `controller.cluster_cache` locks.

Pods without GPUs are ten times as many as others, so of each only a hash of its UID and a shared amount is kept.
"""

from collections import Counter
from collections.abc import Iterable

from gpushare.cluster.pod_records import NOTHING, NonGpuPod
from gpushare.identity import NodeName
from gpushare.model.capacity import FreeHost


class Hosts:
    """Sums for every node that pods are on, whether the node is known or not."""

    def __init__(self) -> None:
        self.guests: Counter[FreeHost] = Counter()
        """How many pods without GPUs take how much."""
        self._taken: dict[NodeName, FreeHost] = {}
        """By all pods."""
        self._guests: dict[NodeName, dict[int, FreeHost]] = {}
        """By each pod without GPUs. Python seeds its hashes, so no one can make two UIDs collide."""

    def taken_on(self, node: NodeName) -> FreeHost:
        """The sum on a node."""
        return self._taken.get(node, NOTHING)

    def add(self, node: NodeName, takes: FreeHost) -> None:
        """A pod came to a node."""
        self._set(node, self.taken_on(node).plus(takes))

    def subtract(self, node: NodeName, takes: FreeHost) -> None:
        """A pod has left a node."""
        self._set(node, self.taken_on(node).without(takes))

    def set_guest(self, guest: NonGpuPod) -> bool:
        """A pod without GPUs came, changed or ended. Whether the sum of its node is another one."""
        there = self._guests.setdefault(guest.node, {})
        before = there.pop(hash(guest.uid), NOTHING)
        self._count(before, -1)
        self._count(guest.takes, 1)
        if guest.takes != NOTHING:
            there[hash(guest.uid)] = guest.takes
        elif not there:
            del self._guests[guest.node]
        if before == guest.takes:
            return False
        self.subtract(guest.node, before)
        self.add(guest.node, guest.takes)
        return True

    def replace_guests(self, guests: Iterable[NonGpuPod]) -> set[NodeName]:
        """There are these pods without GPUs and no others. Nodes whose sums may be other ones."""
        nodes = set(self._guests)
        for node, there in self._guests.items():
            for takes in there.values():
                self.subtract(node, takes)
        self._guests = {}
        self.guests.clear()
        for guest in guests:
            self.set_guest(guest)
        return nodes | set(self._guests)

    def _count(self, takes: FreeHost, number: int) -> None:
        if takes != NOTHING:
            self.guests[takes] += number
            if not self.guests[takes]:
                del self.guests[takes]

    def _set(self, node: NodeName, taken: FreeHost) -> None:
        if taken == NOTHING:
            self._taken.pop(node, None)
        else:
            self._taken[node] = taken
