"""Which nodes have changed since somebody asked last. Not thread-safe: `controller.index` holds the lock."""

import itertools
from typing import Final

from gpushare.identity import NodeName

MAX_GONE: Final = 1000  # nodes that are remembered as gone; scaling a cluster up and down makes ever new names


class ChangeLog:
    """The last change of each node, also of nodes that are gone."""

    def __init__(self) -> None:
        self.sequence = 0
        """Number of the last change of all."""
        self._last: dict[NodeName, int] = {}
        """Number of the last change of each node, the oldest first."""
        self._gone: dict[NodeName, None] = {}
        """Nodes in `_last` that do not exist, in the same order."""
        self._forgotten = 0
        """Number of the last change that was dropped from `_last`."""

    def __len__(self) -> int:
        return len(self._last)

    def note(self, name: NodeName, *, exists: bool) -> None:
        """A node changed, came or went."""
        self.sequence += 1
        self._last.pop(name, None)
        self._last[name] = self.sequence
        self._gone.pop(name, None)
        if exists:
            return
        self._gone[name] = None
        if len(self._gone) > MAX_GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._forgotten = self._last.pop(oldest)

    def since(self, sequence: int) -> list[NodeName] | None:
        """Nodes that changed after a sequence number; None if some that went since then are forgotten."""
        if sequence < self._forgotten:
            return None
        recent = itertools.takewhile(lambda entry: entry[1] > sequence, reversed(self._last.items()))
        return [name for name, _ in recent]
