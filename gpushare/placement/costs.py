"""What nodes cost a pod that gets GPUs of them, and how an extender says it. Pure.

The node that ranks first is judged by the very GPUs that `place` chooses there.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpushare.identity import NodeName
from gpushare.model.capacity import NOTHING, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.ledger import Grant, NodeLedger, footprint
from gpushare.model.request import Need
from gpushare.placement.columns import Bools, Ints, Nodes
from gpushare.placement.policies import Scoring
from gpushare.placement.table import FITS, MEMORY, STATE, Fits, Table, grown, with_gpus

BEST: Final = 10
NEXT: Final = 8
_LEAST: Final = 1
_TOO_MUCH: Final = 2**62
_MOST_ALIKE: Final = 128  # looks of nodes of which a kind of pod remembers the costs
_ALIKE: Final = 700  # bytes of one
Cost = tuple[int, int, int]  # three numbers, the first of which counts most


@dataclass(frozen=True, slots=True)
class Change:
    """A node before and after it gets the pod."""

    before: NodeCapacity
    after: NodeCapacity

    @property
    def remainders(self) -> tuple[FreeGpu, ...]:
        """The GPUs that the pod gets, as they are after it."""
        return tuple((Counter(self.after.gpus) - Counter(self.before.gpus)).elements())


def change_of(
    grants: Iterable[Grant], ledger: NodeLedger, *, host: FreeHost | None = None, takes: FreeHost = NOTHING
) -> Change:
    """What a pod makes of a node that gets these grants of it, as `place` found them; the ledger is without the pod.

    GPUs that no longer take pods are left out. A host, of which pods leave so much, counts as having at least what the
    pod takes: whether it does is for kube-scheduler to say, which may know of a change earlier.
    """
    if host is not None and not takes.fits(host):
        host = takes
    before, left = NodeCapacity.of(ledger, host), []
    held = footprint(grants, ledger.inventory)
    for gpu in ledger.inventory.healthy:
        free, given = FreeGpu.of(gpu, ledger), held.get(gpu.uuid)
        if given is not None:
            all_of_it = Need(free.total_mib, 100)
            free = free.without(all_of_it if given.whole else Need(given.memory_mib, given.compute_percent))
        left.append(free)
    return Change(before, NodeCapacity(before.model, tuple(sorted(left)), host and host.without(takes)))


def costs_of(changes: Sequence[Change], scoring: Scoring) -> list[Cost]:
    """What each change costs. Less is better; only the order means anything."""
    before, after = (Nodes.of(side) for side in ([each.before for each in changes], [each.after for each in changes]))
    return [(first, then, last) for first, then, last in scoring.costs(before, after).tolist()]


def grades_of(names: Sequence[NodeName], found: Sequence[Cost]) -> list[int]:
    """`grades` of nodes on all of which the pod fits."""
    scores: list[int] = grades(np.array(found, np.int64).reshape(-1, 3), np.ones(len(found), np.bool_), names).tolist()
    return scores


def grades(
    costs: Ints, fits: Bools, names: Sequence[NodeName] | Ints, best: Sequence[int] | Ints = ()
) -> NDArray[np.uint8]:
    """10 for the node that costs least, 8 to 1 for the others by rank, 0 where the pod does not fit.

    Kube-scheduler chooses among equal nodes by chance, and adds what its own plugins think. So one node alone is the
    best, the first by name of equal ones, and 8 leaves a distance to it. Where memory is set aside for this very pod,
    at these positions, is the `best`, since a Binding may be there. Costs are as of `costs_of`: `[nodes, 3]`; names may
    be places in the order of names.
    """
    found, able = np.zeros(len(fits), np.uint8), np.flatnonzero(fits)
    if len(able):
        order = able[np.lexsort((costs[able, 2], costs[able, 1], costs[able, 0]))]
        sorted_costs = costs[order]
        rank = np.zeros(len(order), np.int64)
        rank[1:] = np.cumsum((sorted_costs[1:] != sorted_costs[:-1]).any(axis=1))
        found[order] = NEXT - (NEXT - _LEAST) * rank // max(int(rank[-1]), 1)
        if not len(best):
            best = [min(order[rank == 0].tolist(), key=names.__getitem__)]
    found[np.asarray(best, np.int64)] = BEST
    return found


class Costs:
    """What nodes cost a pod, under one outlook."""

    def __init__(self, takes: FreeHost, scoring: Scoring) -> None:
        self.takes, self._scoring = takes, scoring
        self.costs: Ints = np.zeros((0, 3), np.int64)
        """As of `costs_of`, where `known`."""
        self.known: Bools = np.zeros(0, np.bool_)
        """Of nodes with GPUs on which the pod fits, if it asks for any."""
        self._of_alike: dict[bytes, Cost] = {}
        """By how a row looks."""
        self._seen = 0

    @property
    def nbytes(self) -> int:
        return self.costs.nbytes + self.known.nbytes + _ALIKE * len(self._of_alike)

    def update(self, table: Table, fits: Fits | None) -> None:
        """Follow the table, as `Fits` has done before: where the pod fits; None for pods without GPUs."""
        self.costs, self.known = grown(self.costs, table), grown(self.known, table)
        rows = table.changed(self._seen)
        if self._seen == table.now:
            return
        self._seen = table.now
        self.known[rows] = False
        able = with_gpus(table, rows)
        if fits is not None:
            able = able[fits.codes[able] == FITS] if fits.rules is not None else able[:0]
        if len(able) == 1:
            self.keep(int(able[0]), self._remembered(table, able, fits))
        elif len(able):
            self.costs[able] = self._find(table, able, fits)
            self.known[able] = True

    def _remembered(self, table: Table, row: Ints, fits: Fits | None) -> Cost:
        """Of one row: pods of a kind that come to equal nodes change them equally."""
        looks = table.cells[:, row].tobytes() + table.facts[STATE : MEMORY + 1, row].tobytes()
        found = self._of_alike.get(looks)
        if found is None:
            if len(self._of_alike) == _MOST_ALIKE:
                self._of_alike.clear()
            first, then, last = self._find(table, row, fits)[0].tolist()
            found = self._of_alike[looks] = first, then, last
        return found

    def keep(self, row: int, cost: Cost) -> None:
        """What was found of a row as it is."""
        self.costs[row], self.known[row] = cost, True

    def _find(self, table: Table, rows: Ints, fits: Fits | None) -> Ints:
        before, scoring = table.nodes(rows).at_least(self.takes), self._scoring
        chosen, mib, percent = np.zeros((len(rows), 0), np.int64), np.zeros((len(rows), 0), np.int64), 0
        if fits is not None and (rules := fits.rules) is not None:
            percent = rules.percent
            _, need, _, able = rules.of(table.cells[:, rows])
            takes = before.gpus.total if rules.whole else need.astype(np.int64)
            lost = np.where(able, scoring.gpu_costs(before.gpus, takes, percent), _TOO_MUCH)
            if rules.gpus == 1:
                chosen = lost.argmin(axis=1)[:, None]
            else:
                chosen = lost.argsort(axis=1, kind="stable")[:, : rules.gpus]
            mib = takes[np.arange(len(rows))[:, None], chosen]
            if not rules.whole:  # of GPUs that differ, all give what the smallest does
                mib = mib.min(axis=1, keepdims=True)
        return scoring.costs(before, before.after(chosen, mib, percent, self.takes))
