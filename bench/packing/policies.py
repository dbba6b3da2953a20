"""Policies as a replay asks them: where does this pod cost least on this node?"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from bench.packing.workload import Workload
from gpushare.model.room import Ask, NodeRoom
from gpushare.model.selector import Choice, is_model
from gpushare.placement import demand, outlook
from gpushare.placement.dense import Dense
from gpushare.placement.fgd import Fgd
from gpushare.placement.outlook import Outlook
from gpushare.placement.packing import Binpack, Spread
from gpushare.placement.ranking import Ranking
from gpushare.placement.tally import Tally


class Scheduler(Protocol):
    @property
    def epoch(self) -> int:
        """Changes when costs that were given before may be different."""

    @property
    def ranking(self) -> Ranking:
        """For the next pod."""

    def came(self, ask: Ask, rooms: list[NodeRoom]) -> None:
        """A pod came to a cluster that looks like this."""


@dataclass(frozen=True)
class Fixed:
    """A policy that learns nothing."""

    ranking: Ranking
    epoch: int = 0

    def came(self, ask: Ask, rooms: list[NodeRoom]) -> None: ...


class Learning:
    """`dense` with what it has seen, or with a list that it knows."""

    EVERY = 128  # pods, after which the outlook is looked at again

    def __init__(self, workload: Workload, *, known: bool) -> None:
        self.epoch = 0
        self._empty = workload.nodes
        self._sizes = outlook.sizes(workload.nodes)
        self._seen = Counter(workload.pods) if known else Counter[Ask]()
        self._known = known
        self._widest = demand.widest(workload.nodes)
        self._pods = 0
        self._tally = Tally(())
        self._demand = demand.Demand()
        self._outlook = Outlook()
        self.ranking = Dense(self._outlook)
        self._look(list(workload.nodes))

    def came(self, ask: Ask, rooms: list[NodeRoom]) -> None:
        self._pods += 1
        if not self._known:
            self._seen[ask] += 1
        young = self._pods < self.EVERY and self._pods & (self._pods - 1) == 0
        if young or self._pods % self.EVERY == 0:
            self._look(rooms)

    def _look(self, rooms: list[NodeRoom]) -> None:
        usual = outlook.usual_mib(self._sizes)
        self._demand = demand.of([*self._seen.elements(), *self._widest], usual)
        kinds = tuple(kind.ask for kind in self._demand.kinds)
        if kinds != self._tally.kinds:
            self._tally = Tally(kinds)
        empty, now = outlook.totals(self._tally, self._empty), outlook.totals(self._tally, rooms)
        found = outlook.of(self._demand, empty, now, self._sizes, self.epoch + 1)
        if (found.kinds, found.weights, found.accepted, found.prices) != (
            self._outlook.kinds,
            self._outlook.weights,
            self._outlook.accepted,
            self._outlook.prices,
        ):
            self.epoch += 1
            self._outlook = found
            self.ranking = Dense(found, self._tally)


def admits(choice: Choice, model: str) -> bool:
    return choice.admits(lambda meant: is_model(model, meant))


class First(Binpack):
    """The first node that fits."""

    def cost(self, before: NodeRoom, after: NodeRoom) -> int:  # noqa: ARG002 - of the protocol
        return 0


POLICIES: Mapping[str, Callable[[Workload], Scheduler]] = {
    "dense": lambda workload: Learning(workload, known=False),
    "dense-known": lambda workload: Learning(workload, known=True),
    "fgd": lambda workload: Fixed(Fgd(demand.typical(Counter(workload.pods)))),
    "binpack": lambda _: Fixed(Binpack()),
    "spread": lambda _: Fixed(Spread()),
    "first": lambda _: Fixed(First()),
}


def make(name: str, workload: Workload) -> Scheduler:
    if name not in POLICIES:
        raise SystemExit(f"no policy {name!r}: write some of {', '.join(POLICIES)}")
    return POLICIES[name](workload)
