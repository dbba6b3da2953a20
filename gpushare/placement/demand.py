"""Which requests are typical of a cluster, from those that exist in it. Pure, bounded, and independent of their order.

The sample is all pods that hold GPUs or wait for them, so it is the same after a restart. Requests that are nearly
alike count as one kind; sizes of shares are kept exactly, because what fits beside what depends on them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from gpushare.model.capacity import Ask, FreeGpu
from gpushare.model.request import ANY_GPU, Choice
from gpushare.placement.columns import ENOUGH, Ints, Nodes, sums

MAX_KINDS: Final = 32
_MAX_WIDE: Final = MAX_KINDS // 2
"""Of them that need several GPUs, where there are others: a few dozen wide pods that wait would displace all others."""
MAX_SIZES: Final = 64
MAX_TYPICAL: Final = 256
_COVERED_PERCENT: Final = 95
"""Of all pods, by the most frequent requests."""
MAX_ASKS: Final = 4096
"""Different requests that are looked at, the most frequent ones: tenants can make each pod another."""
EVERY: Final = 128
"""Pods, at most, that come between two looks. Fewer in the beginning, when each of them tells more."""
_PART: Final = 4
_MODEL_MIB: Final = 16 * 1024
"""Of the GPU by which shares are compared where a cluster has none; it only orders kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    ask: Ask
    """What stands for them: the most frequent share, and the mean of CPU and memory; it accepts any GPU."""
    wanted: Mapping[Choice, int] = field(hash=False)
    """How many of them accept which models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    kinds: tuple[Kind, ...] = ()
    """Those that ask for the most first, wide ones before others but for the last half of them; MAX_KINDS at most."""
    sizes: tuple[Ask, ...] = ()
    """Different shares of one GPU, the most frequent first; MAX_SIZES at most."""
    typical: Mapping[Ask, int] = field(default_factory=dict, hash=False)
    """`typical` of the sample."""


def of(asks: Iterable[Ask], gpu_mib: int = _MODEL_MIB) -> Demand:
    """What is typical of a sample of requests.

    Args:
        asks: of pods; those without GPUs count only for `Demand.typical`.
        gpu_mib: memory of the cluster's usual GPU.
    """
    usual = FreeGpu(gpu_mib, gpu_mib)
    every = Counter(asks)
    counts = {ask: count for ask, count in every.items() if ask.gpus}
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
    return Demand(
        kinds=tuple(_kind(members) for _, members in ranked[:MAX_KINDS]),
        sizes=tuple(sorted(sizes, key=lambda size: (-sizes[size], _order(size)))[:MAX_SIZES]),
        typical=typical(every),
    )


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


def most(counts: Mapping[Ask, int]) -> Mapping[Ask, int]:
    """MAX_ASKS of the most frequent requests, the same in whatever order the pods came."""
    return {ask: counts[ask] for ask in _frequent(counts)[:MAX_ASKS]}


def due_after(known: int) -> int:
    """How many pods have to come after a look at a cluster before the next one is due: a quarter of the known ones.

    Args:
        known: pods whose requests were known at that look.
    """
    return min(max(known // _PART, 1), EVERY)


def possible(counts: Mapping[Ask, int], empty: Nodes) -> Counter[Ask]:
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


def widest(empty: Nodes) -> list[Ask]:
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
