"""What placement knows of the whole cluster: what pods ask for, and how much room is left for it. Pure.

Room is counted in pods: how many more of each kind would fit if no other kind came. The fewer there are, against the
empty cluster, the more each of them weighs: eight times as much for every halving. So the last free nodes that
a wide request fits on, or the GPUs of a model that few have and some need, are left alone for as long as others do as
well, and never withheld.

What the free part of a GPU is worth follows from which shares pods ask for. A remainder that no usual share fills is
worth nothing, and two halves are worth a whole GPU. The prices of shares are those of the linear program that packs the
demand into the fewest GPUs (its dual), or very near to them: taking the usual sizes one after another, the most
frequent first, each gets the highest price at which no set of shares that fits on one GPU costs more than the GPU. The
value of a remainder is then the most that shares on it can bring.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.request import Choice, accepts
from gpushare.placement import demand as demands
from gpushare.placement.columns import Kinds, Nodes, how_many
from gpushare.placement.demand import Demand

SLOTS: Final = 720
"""Parts of a GPU that are told apart. Halves, thirds, quarters and so on are whole numbers of them."""
WHOLE: Final = 720_720
"""Value of a GPU on which everything is free: it divides by all numbers up to 16."""
_USUAL: Final = (SLOTS // 2, SLOTS // 3, SLOTS // 4, SLOTS // 8)
"""Sizes that have a price also where no pod asks for them."""
_SCALE: Final = 720_720
_MOST_HALVINGS: Final = 7

Prices = tuple[int, ...]
"""Value of a GPU by the number of its free slots, 0 to SLOTS; it never falls."""
Counts = tuple[int, ...]
"""For every kind, how many pods fit, in parts."""
Totals = Mapping[str, Counts]
"""Sums over the nodes of a model."""
Chosen = tuple[int, Choice, int]
"""Place of a kind, a choice of models, and how many pods of the kind make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Frozen; a new epoch whenever anything in it has changed, so that verdicts can be kept for one epoch."""

    epoch: int = 0
    kinds: tuple[Ask, ...] = ()
    weights: Mapping[str, Counts] = field(default_factory=dict)
    """What a pod's room is worth, by model and kind."""
    accepted: Mapping[str, Counts] = field(default_factory=dict)
    """How many pods of each kind accept a model."""
    prices: Mapping[int, Prices] = field(default_factory=dict)
    """Value of remainders, by the MiB that a GPU has in all."""
    usual_mib: int = 1
    """Memory of the cluster's usual GPU."""
    typical: Mapping[Ask, int] = field(default_factory=dict)
    """The most frequent requests, and how many pods make each: what `fgd` knows. Memory is in thousandths of the usual
    GPU instead of MiB."""


NOTHING_KNOWN: Final = Outlook()


def look(
    asks: Mapping[Ask, int],
    empty: Nodes,
    now: Nodes,
    epoch: int = 0,
    *,
    pace: Callable[[Iterable[Chosen]], Iterable[Chosen]] = iter,
) -> Outlook:
    """The outlook of a cluster.

    Args:
        asks: what pods ask for, those that hold GPUs and those that wait, and how many ask for the same.
        empty: its nodes as if no pod were there.
        now: as they are.
        epoch: a number that this outlook has for itself.
        pace: hands out choices of models, of which tenants can make thousands; it may pause between them.
    """
    sizes, counts = np.unique(empty.gpus.total[empty.gpus.total > 0], return_counts=True)
    usual = max(int((sizes * counts).sum()) // max(int(counts.sum()), 1), 1)
    asked = Counter(demands.most(demands.possible(asks, empty)))
    asked.update(demands.widest(empty))
    demand = demands.of(asked, usual)
    kinds = tuple(kind.ask for kind in demand.kinds)
    weights, accepted = _weighed(demand, _totals(kinds, empty), _totals(kinds, now), pace)
    return Outlook(
        epoch=epoch,
        kinds=kinds,
        weights=weights,
        accepted=accepted,
        prices={mib: prices(tuple(_slots(demand, mib))) for mib in sizes.tolist()},
        usual_mib=usual,
        typical=_in_parts(demand.typical, usual),
    )


def of_cluster(
    asks: Iterable[Ask], empty: Iterable[NodeCapacity], now: Iterable[NodeCapacity], epoch: int = 0
) -> Outlook:
    """The same from nothing but the pods' requests and the nodes, in any order."""
    return look(Counter(asks), Nodes.of(list(empty)), Nodes.of(list(now)), epoch)


def _totals(kinds: Sequence[Ask], nodes: Nodes) -> Totals:
    """How many pods of each kind fit on the nodes of each model."""
    _, fit = how_many(Kinds(kinds), nodes)
    return {
        nodes.models[model]: tuple(fit[nodes.model == model].sum(axis=0).tolist()) for model in np.unique(nodes.model)
    }


def _weighed(
    demand: Demand, empty: Totals, now: Totals, pace: Callable[[Iterable[Chosen]], Iterable[Chosen]]
) -> tuple[Totals, Totals]:
    """By model and kind, what a pod's room is worth, and how many pods accept the model."""
    kinds = [kind.ask for kind in demand.kinds]
    in_all = [sum(numbers) for numbers in zip(*empty.values(), strict=True)]
    raw = {model: [0] * len(kinds) for model in empty}
    taken = {model: [0] * len(kinds) for model in empty}
    choices = ((at, choice, number) for at, kind in enumerate(demand.kinds) for choice, number in kind.wanted.items())
    for position, choice, number in pace(choices):
        accepted = [model for model in empty if accepts(choice, model)]
        for model in accepted:
            taken[model][position] += number
        at_first = sum(empty[model][position] for model in accepted)
        if at_first:
            left = sum(now[model][position] for model in accepted if model in now)
            halvings = min((at_first // max(left, 1)).bit_length() - 1, _MOST_HALVINGS)
            width = math.isqrt(kinds[position].gpus << 16)  # a pod on 8 GPUs weighs as much as nearly 3 on one
            weight = (number * width * in_all[position] // at_first) << 3 * max(halvings, 0)
            for model in accepted:
                raw[model][position] += weight
    mean = max(sum(map(sum, raw.values())) // max(len(raw), 1), 1)
    return (
        {model: tuple(weight * _SCALE // mean for weight in of_model) for model, of_model in raw.items()},
        {model: tuple(numbers) for model, numbers in taken.items()},
    )


def _in_parts(typical: Mapping[Ask, int], usual: int) -> dict[Ask, int]:
    """Requests for MiB as thousandths of a GPU, as `fgd` compares them; nearly equal ones become one."""
    parts: Counter[Ask] = Counter()
    for ask, count in typical.items():
        parts[replace(ask, memory_mib=min(-(-ask.memory_mib * 1000 // usual), 1000))] += count
    return dict(parts)


def _slots(demand: Demand, total_mib: int) -> list[int]:
    gpu = FreeGpu(total_mib, total_mib)
    return [slots(need, total_mib) for size in demand.sizes if (need := size.need(gpu).memory_mib) * SLOTS >= total_mib]


def slots(mib: int, total_mib: int) -> int:
    """Slots of a share or of a remainder. Rounded down: what fits together on a GPU still does in slots."""
    return min(SLOTS, mib * SLOTS // total_mib) if total_mib > 0 else 0


@lru_cache(256)
def prices(sizes: tuple[int, ...]) -> Prices:
    """What remainders are worth. If no shares are known, as much as is free: then the fullest GPU is taken.

    Args:
        sizes: of shares, in slots, the most frequent first.
    """
    known = [size for size in sizes if 0 < size < SLOTS]
    if not known:
        return tuple(WHOLE // SLOTS * free for free in range(SLOTS + 1))
    value = [0] * (SLOTS + 1)
    for size in dict.fromkeys([*known, *_USUAL, SLOTS]):
        price = min((WHOLE - value[SLOTS - count * size]) // count for count in range(1, SLOTS // size + 1))
        for free in range(size, SLOTS + 1):
            value[free] = max(value[free], value[free - size] + price)
    return tuple(value)
