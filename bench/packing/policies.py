"""Policies as a replay asks them: where does this pod cost least on this node?"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from bench.packing.workload import Workload
from gpushare.model.room import Ask, NodeRoom
from gpushare.model.selector import Choice, is_model
from gpushare.placement import demand, outlook
from gpushare.placement.dense import Best, Dense, choices
from gpushare.placement.fgd import Fgd
from gpushare.placement.outlook import Outlook
from gpushare.placement.tally import Tally


class Ranking(Protocol):
    epoch: int
    """Changes when costs that were given before may be different."""

    def best(self, ask: Ask, room: NodeRoom) -> Best | None: ...

    def came(self, ask: Ask, rooms: list[NodeRoom]) -> None:
        """A pod came to a cluster that looks like this."""


class Fixed:
    """A policy that learns nothing."""

    epoch = 0

    def __init__(self, best: Callable[[Ask, NodeRoom], Best | None]) -> None:
        self._best = best

    def best(self, ask: Ask, room: NodeRoom) -> Best | None:
        return self._best(ask, room)

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
        self._dense = Dense(self._outlook)
        self._look(list(workload.nodes))

    def best(self, ask: Ask, room: NodeRoom) -> Best | None:
        return self._dense.best(ask, room)

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
        if (found.kinds, found.weights, found.prices) != (
            self._outlook.kinds,
            self._outlook.weights,
            self._outlook.prices,
        ):
            self.epoch += 1
            self._outlook = found
            self._dense = Dense(found, self._tally)


def admits(choice: Choice, model: str) -> bool:
    return choice.admits(lambda meant: is_model(model, meant))


def _binpack(ask: Ask, room: NodeRoom) -> Best | None:
    if not ask.fits_host(room.host):
        return None
    free = sum(gpu.free_mib for gpu in room.gpus) * 1000 // sum(gpu.total_mib for gpu in room.gpus)
    return min((Best(free, gpus) for gpus in choices(ask, room)), default=None)


def _spread(ask: Ask, room: NodeRoom) -> Best | None:
    found = _binpack(ask, room)
    return None if found is None else Best(-found.cost, max(choices(ask, room)))


def _first(ask: Ask, room: NodeRoom) -> Best | None:
    found = _binpack(ask, room)
    return None if found is None else Best(0, found.gpus)


POLICIES: Mapping[str, Callable[[Workload], Ranking]] = {
    "dense": lambda workload: Learning(workload, known=False),
    "dense-known": lambda workload: Learning(workload, known=True),
    "fgd": lambda workload: Fixed(Fgd(workload.pods, admits).best),
    "binpack": lambda _: Fixed(_binpack),
    "spread": lambda _: Fixed(_spread),
    "first": lambda _: Fixed(_first),
}


def make(name: str, workload: Workload) -> Ranking:
    if name not in POLICIES:
        raise SystemExit(f"no policy {name!r}: write some of {', '.join(POLICIES)}")
    return POLICIES[name](workload)
