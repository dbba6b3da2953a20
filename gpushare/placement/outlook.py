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

What pods ask for is a sample: those that hold GPUs and those that wait, so it is the same after a restart, in whatever
order. Requests that are nearly alike count as one kind; sizes of shares are kept exactly, because what fits beside what
depends on them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.request import ANY_GPU, Choice, accepts
from gpushare.placement.columns import ENOUGH, Ints, Kinds, Nodes, how_many, sums

SLOTS: Final = 720
"""Parts of a GPU that are told apart. Halves, thirds, quarters and so on are whole numbers of them."""
WHOLE: Final = 720_720  # value of a GPU on which everything is free: it divides by all numbers up to 16
_USUAL: Final = (SLOTS // 2, SLOTS // 3, SLOTS // 4, SLOTS // 8)
"""Sizes that have a price also where no pod asks for them."""
_SCALE: Final = 720_720
_MOST_HALVINGS: Final = 7
MAX_KINDS: Final = 32
_MAX_WIDE: Final = MAX_KINDS // 2
"""Of them that need several GPUs, where there are others: a few dozen wide pods that wait would displace all others."""
MAX_SIZES: Final = 64
MAX_TYPICAL: Final = 256
_COVERED_PERCENT: Final = 95  # of all pods, by the most frequent requests
MAX_ASKS: Final = 4096
"""Different requests that are looked at, the most frequent ones: tenants can make each pod another."""
EVERY: Final = 128
"""Pods, at most, that come between two looks. Fewer in the beginning, when each of them tells more."""
_PART: Final = 4

Prices = tuple[int, ...]  # value of a GPU by the number of its free slots, 0 to SLOTS; it never falls
Counts = tuple[int, ...]  # for every kind, how many pods fit, in parts
Totals = Mapping[str, Counts]  # sums over the nodes of a model
Chosen = tuple[int, Choice, int]  # place of a kind, a choice of models, and how many pods of the kind make it


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    ask: Ask
    """What stands for them: the most frequent share, and the mean of CPU and memory; it accepts any GPU."""
    wanted: Mapping[Choice, int] = field(hash=False)  # how many of them accept which models


def demand_of(asks: Mapping[Ask, int], usual_mib: int) -> tuple[list[Kind], list[Ask]]:
    """What is typical of a sample of requests for GPUs, in a cluster with this usual one: kinds of pods, and sizes.

    The kinds that ask for the most come first, wide ones before others but for the last half of them; MAX_KINDS at
    most. Sizes are different shares of one GPU, the most frequent first; MAX_SIZES at most.
    """
    usual = FreeGpu(usual_mib, usual_mib)
    counts = {ask: count for ask, count in asks.items() if ask.gpus}
    groups: dict[tuple[int, ...], Counter[Ask]] = {}
    for ask, count in counts.items():
        groups.setdefault(_group(ask, usual), Counter())[ask] += count
    ranked = sorted(groups.items(), key=lambda item: (-_weight(item[1], usual), item[0]))
    late = {group for group, _ in [each for each in ranked if each[0][0] > 1][_MAX_WIDE:]}
    ranked.sort(key=lambda item: item[0] in late)
    sizes: Counter[Ask] = Counter()
    for ask, count in counts.items():
        if not ask.whole:
            sizes[_size(ask)] += count * ask.gpus
    ordered = sorted(sizes, key=lambda size: (-sizes[size], _order(size)))
    return [_kind(members) for _, members in ranked[:MAX_KINDS]], ordered[:MAX_SIZES]


def typical(counts: Mapping[Ask, int]) -> Mapping[Ask, int]:
    """The most frequent requests, pods without GPUs included, and how many pods make each. Memory of hosts is left out.

    They cover 95 % of the pods, as `fgd` has it; MAX_TYPICAL at most.
    """
    plain: Counter[Ask] = Counter()
    for ask, count in counts.items():
        plain[replace(ask, host_mib=0)] += count
    kept: dict[Ask, int] = {}
    covered = 0
    for ask in _frequent(plain)[:MAX_TYPICAL]:
        if 100 * covered >= _COVERED_PERCENT * plain.total():
            break
        kept[ask] = plain[ask]
        covered += plain[ask]
    return kept


def due_after(known: int) -> int:
    """How many pods have to come until the next look at a cluster, after one that knew so many: a quarter of these."""
    return min(max(known // _PART, 1), EVERY)


def _possible(counts: Mapping[Ask, int], empty: Nodes) -> Counter[Ask]:
    """Without requests that none of these nodes could hold, empty as they are; all of them if no node is known.

    They tell nothing of the pods to come, and weigh as much as their authors like: a few would displace all others.
    """
    if not len(empty):
        return Counter(counts)
    gpus, mib, cpu, memory = (
        int(each.max(initial=0)) for each in (_widths(empty), empty.gpus.total, empty.cpu, empty.memory)
    )

    def holds(ask: Ask) -> bool:
        return ask.gpus <= gpus and ask.memory_mib <= mib and ask.cpu_milli <= cpu and ask.host_mib <= memory

    return Counter({ask: count for ask, count in counts.items() if not ask.gpus or holds(ask)})


def _frequent(counts: Mapping[Ask, int]) -> list[Ask]:
    """The most frequent first; of equally frequent ones, those that ask for the most."""

    def order(ask: Ask) -> tuple[object, ...]:
        size = (-number for number in (ask.cpu_milli, *_order(ask), ask.host_mib))
        return -counts[ask], -ask.gpus, not ask.whole, *size, ask.models.wanted, ask.models.unwanted, str(ask.mig)

    return sorted(counts, key=order)


def _widest(empty: Nodes) -> list[Ask]:
    """For every number of GPUs above one that nodes have, a pod that takes all of the largest such node.

    It belongs to the sample of a cluster that has not seen a wide pod yet: one of these would keep a node free for it.
    """
    widths, found = _widths(empty), []
    hosts = np.stack((empty.cpu, empty.memory))
    hosts = np.where(hosts == ENOUGH, 0, hosts)
    for number in np.unique(widths[widths > 1]).tolist():
        cpu, memory = max(zip(*hosts[:, widths == number].tolist(), strict=True))
        found.append(Ask(gpus=number, whole=True, cpu_milli=cpu, host_mib=memory))
    return found


def _widths(nodes: Nodes) -> Ints:
    return sums(nodes.gpus.total > 0)


def _group(ask: Ask, usual: FreeGpu) -> tuple[int, ...]:
    """Shares within half an octave, CPU within one and memory within two are alike; of wide pods within a quarter.

    Wide pods need most of a host, so a few CPUs decide whether there is any that they fit on.
    """
    share = ask.need(usual).memory_mib
    fine = 4 if ask.gpus > 1 else 1
    return (
        ask.gpus,
        -1 if ask.whole else (share * share).bit_length(),
        (ask.cpu_milli**fine).bit_length(),
        (ask.host_mib**fine).bit_length() // 2,
    )


def _weight(members: Counter[Ask], usual: FreeGpu) -> int:
    # By what they ask for, and once more by how wide they are: few nodes are left to those, so they must be known.
    return sum(count * ask.gpus**2 * ask.need(usual).memory_mib for ask, count in members.items())


def _kind(members: Counter[Ask]) -> Kind:
    number = members.total()
    shares: Counter[Ask] = Counter()
    wanted: Counter[Choice] = Counter()
    for ask, count in members.items():
        shares[_size(ask)] += count
        wanted[ask.models] += count
    common = min(shares, key=lambda share: (-shares[share], _order(share)))
    ask = replace(
        common,
        gpus=next(iter(members)).gpus,
        cpu_milli=sum(ask.cpu_milli * count for ask, count in members.items()) // number,
        host_mib=sum(ask.host_mib * count for ask, count in members.items()) // number,
    )
    return Kind(ask=ask, wanted=dict(sorted(wanted.items(), key=lambda item: (item[0].wanted, item[0].unwanted))))


def _size(ask: Ask) -> Ask:
    return replace(ask, gpus=1, cpu_milli=0, host_mib=0, models=ANY_GPU.models)


def _order(size: Ask) -> tuple[int, int, int]:
    return size.memory_mib, size.memory_percent, size.compute_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Frozen; a new epoch whenever anything in it has changed, so that verdicts can be kept for one epoch."""

    epoch: int = 0
    kinds: tuple[Ask, ...] = ()
    weights: Mapping[str, Counts] = field(default_factory=dict)  # what a pod's room is worth, by model and kind
    accepted: Mapping[str, Counts] = field(default_factory=dict)  # how many pods of each kind accept a model
    prices: Mapping[int, Prices] = field(default_factory=dict)
    """Value of remainders, by the MiB that a GPU has in all."""
    usual_mib: int = 1  # memory of the cluster's usual GPU
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
    possible = _possible(asks, empty)
    asked = Counter({ask: possible[ask] for ask in _frequent(possible)[:MAX_ASKS]})
    asked.update(_widest(empty))
    known, shares = demand_of(asked, usual)
    kinds = tuple(kind.ask for kind in known)
    weights, accepted = _weighed(known, _totals(kinds, empty), _totals(kinds, now), pace)
    return Outlook(
        epoch=epoch,
        kinds=kinds,
        weights=weights,
        accepted=accepted,
        prices={mib: prices(tuple(_slots(shares, mib))) for mib in sizes.tolist()},
        usual_mib=usual,
        typical=_in_parts(typical(asked), usual),
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
    kinds: Sequence[Kind], empty: Totals, now: Totals, pace: Callable[[Iterable[Chosen]], Iterable[Chosen]]
) -> tuple[Totals, Totals]:
    """By model and kind, what a pod's room is worth, and how many pods accept the model."""
    in_all = [sum(numbers) for numbers in zip(*empty.values(), strict=True)]
    raw = {model: [0] * len(kinds) for model in empty}
    taken = {model: [0] * len(kinds) for model in empty}
    choices = ((at, choice, number) for at, kind in enumerate(kinds) for choice, number in kind.wanted.items())
    for position, choice, number in pace(choices):
        accepted = [model for model in empty if accepts(choice, model)]
        for model in accepted:
            taken[model][position] += number
        at_first = sum(empty[model][position] for model in accepted)
        if at_first:
            left = sum(now[model][position] for model in accepted if model in now)
            halvings = min((at_first // max(left, 1)).bit_length() - 1, _MOST_HALVINGS)
            width = math.isqrt(kinds[position].ask.gpus << 16)  # a pod on 8 GPUs weighs as much as nearly 3 on one
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


def _slots(sizes: Sequence[Ask], total_mib: int) -> list[int]:
    gpu = FreeGpu(total_mib, total_mib)
    return [slots(need, total_mib) for size in sizes if (need := size.need(gpu).memory_mib) * SLOTS >= total_mib]


def slots(mib: int, total_mib: int) -> int:
    """Slots of a share or of a remainder. Rounded down: what fits together on a GPU still does in slots."""
    return min(SLOTS, mib * SLOTS // total_mib) if total_mib > 0 else 0


@lru_cache(256)
def prices(sizes: tuple[int, ...]) -> Prices:
    """What remainders are worth, by the sizes of shares in slots, the most frequent first.

    If no shares are known, as much as is free: then the fullest GPU is taken.
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
