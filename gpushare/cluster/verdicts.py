"""What nodes answer to kinds of pods, kept up to date node by node. Pure; not thread-safe.

Replicas of a workload ask for the same, and between two questions few nodes change; a node's ledger is immutable, so
the verdict for a node that has not changed is still right.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.identity import NodeName
from gpushare.model.request import RequestShape

MAX_SHAPES: Final = 64
MAX_ENTRIES: Final = 160_000  # verdicts in all, some 40 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed since somebody asked last."""

    ledgers: dict[NodeName, LedgerOrRefused | None]
    """None for nodes that are gone."""
    complete: bool = False
    """These are all nodes that there are: some that went are forgotten, and others may not be known any more."""
    sequence: int
    """To ask with next; more than 0."""


V = TypeVar("V")


class Answers(Generic[V]):
    """What every node answers to one kind of pod."""

    def __init__(self, judge: Callable[[LedgerOrRefused], V]) -> None:
        self.by_node: dict[NodeName, V] = {}
        self.sequence = 0
        """Of the last change that was noted; 0 before the first."""
        self._judge = judge
        self._stale: dict[NodeName, LedgerOrRefused] = {}
        """Nodes that have changed and are not judged yet."""

    def note(self, changes: Changes) -> None:
        """Remember which nodes have to be judged again."""
        self.sequence = changes.sequence
        if changes.complete:
            for name in self.by_node.keys() - changes.ledgers.keys():
                del self.by_node[name]
            self._stale.clear()
        for name, ledger in changes.ledgers.items():
            if ledger is None:
                self.by_node.pop(name, None)
                self._stale.pop(name, None)
            else:
                self._stale[name] = ledger

    def refresh(self, first: Iterable[NodeName] = (), *, in_time: Callable[[], bool] = lambda: True) -> list[NodeName]:
        """Judge the nodes that have changed, some before all others, while there is time. Those that are left."""
        for name in dict.fromkeys(name for name in first if name in self._stale) | dict.fromkeys(self._stale):
            if not in_time():
                break
            self.by_node[name] = self._judge(self._stale.pop(name))
        return list(self._stale)


A = TypeVar("A", bound=Answers)  # type: ignore[type-arg] # of whatever


class ShapeCache(Generic[A]):
    """Answers to the kinds of pods that were asked about last."""

    def __init__(self, make: Callable[[RequestShape], A], *, part: int = 1) -> None:
        """An empty cache, which makes answers that know nothing yet; `part` divides its limits."""
        self._make = make
        self._part = part
        self._kinds: OrderedDict[RequestShape, A] = OrderedDict()

    def of(self, shape: RequestShape) -> A:
        """The answers to a kind of pod, as they were left."""
        answers = self._kinds.get(shape)
        if answers is None:
            answers = self._kinds[shape] = self._make(shape)
        self._kinds.move_to_end(shape)
        while len(self._kinds) > 1 and self._crowded():
            self._kinds.popitem(last=False)
        return answers

    def _crowded(self) -> bool:
        entries = sum(len(answers.by_node) for answers in self._kinds.values())
        return len(self._kinds) > MAX_SHAPES // self._part or entries > MAX_ENTRIES // self._part
