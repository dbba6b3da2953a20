"""Nodes as arrays of numpy's, and how many pods of a kind they have room for. Pure.

Rows are nodes, places are the GPUs of a node that take pods; a place without a GPU has nothing of anything. Amounts are
whole numbers of 64 bits: what is larger than any node is counted as that (`clipped`), so that no sum overflows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PART: Final = 16
"""Parts of a pod in which CPU and memory of a host are counted: a host for 3.5 pods is better than one for 3."""
MOST_MIB: Final = 2**25  # of a GPU
ENOUGH: Final = 2**40  # millicores or MiB of a host; also of one that is not known
_MOST_PODS: Final = PART * 2**16
_CELLS: Final = 2**18  # that are counted at a time: they stay in the processor's cache
_MANY: Final = 64  # rows; fewer are counted sooner than compared
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # odd, with bits all over


class Gpus(NamedTuple):
    """One number for each place of each row: `[rows, places]`. Amounts in MiB and per cent, as of `FreeGpu`."""

    total: Ints
    free: Ints
    percent: Ints
    mig: Bools
    extra: Ints
    untouched: Bools


@dataclass(frozen=True, slots=True)
class Nodes:
    """Some nodes. All but `gpus` is one number for each: `[rows]`."""

    gpus: Gpus
    model: Ints  # of the GPUs, by its place in `models`; of the first one where they differ
    cpu: Ints  # millicores that no pod has requested; ENOUGH if that is not known, as `memory` in MiB
    memory: Ints
    models: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.model)

    @classmethod
    def of(cls, capacities: Sequence[NodeCapacity]) -> "Nodes":
        models = tuple(dict.fromkeys(each.model for each in capacities))
        places = max((len(each.gpus) for each in capacities), default=0)
        cells = np.zeros((len(Gpus._fields), len(capacities), places), np.int64)
        for row, each in enumerate(capacities):
            if each.gpus:
                cells[:, row, : len(each.gpus)] = np.array([cell(gpu) for gpu in each.gpus], np.int64).T
        hosts = np.array([of_host(each.host) for each in capacities], np.int64).reshape(-1, 2)
        model = np.array([models.index(each.model) for each in capacities], np.int64)
        return cls(gpus_of(cells), model, hosts[:, 0], hosts[:, 1], models)

    def at_least(self, takes: FreeHost) -> "Nodes":
        """With hosts that have room for a pod: whether they do is for kube-scheduler to say, which may know better."""
        cpu, memory = of_host(takes)
        short = (self.cpu < cpu) | (self.memory < memory)
        if not short.any():
            return self
        return replace(self, cpu=np.where(short, cpu, self.cpu), memory=np.where(short, memory, self.memory))

    def joined(self, others: "Nodes") -> "Nodes":
        """These, and others of the same models behind them."""
        gpus = Gpus._make(map(np.concatenate, zip(self.gpus, others.gpus, strict=True)))
        pairs = (self.model, others.model), (self.cpu, others.cpu), (self.memory, others.memory)
        model, cpu, memory = map(np.concatenate, pairs)
        return Nodes(gpus, model, cpu, memory, self.models)

    def after(self, chosen: Ints, mib: Ints | int, percent: int, takes: FreeHost) -> "Nodes":
        """When a pod has come to each of them.

        Args:
            chosen: places of its GPUs, `[rows, GPUs of the pod]`.
            mib: that it takes of each of these.
            percent: of compute, of each.
            takes: of the host.
        """
        gpus = self.gpus
        if chosen.shape[1]:
            free, left, untouched = gpus.free.copy(), gpus.percent.copy(), gpus.untouched.copy()
            at = np.arange(len(chosen))[:, None], chosen
            free[at] -= mib
            left[at] -= percent
            untouched[at] = False
            gpus = gpus._replace(free=free, percent=left, untouched=untouched)
        left_cpu, left_memory = (
            np.where(has == ENOUGH, ENOUGH, has - took)
            for has, took in zip((self.cpu, self.memory), of_host(takes), strict=True)
        )
        return Nodes(gpus, self.model, left_cpu, left_memory, self.models)


def sums(column: Ints | Bools) -> Ints:
    """Of each row over its places."""
    found: Ints = column.sum(axis=1)
    return found


def quotient(amounts: Ints, by: Ints) -> Ints:
    """Amounts from 0 to 2 ** 53, divided by 1 or more. So far floats are exact, and they divide in half the time."""
    found: Ints = (amounts / np.maximum(by, 1)).astype(np.int64)
    return found


def clipped(amount: int, most: int) -> int:
    """What annotations say has no bound, and numpy's numbers do."""
    return max(-most, min(amount, most))


@lru_cache(2**14)
def cell(gpu: FreeGpu) -> tuple[int, int, int, bool, int, bool]:
    """A GPU in the order of `Gpus`."""
    total, free, extra = (clipped(mib, MOST_MIB) for mib in (gpu.total_mib, gpu.free_mib, gpu.extra_mib))
    return total, free, clipped(gpu.free_percent, 100), gpu.mig, extra, gpu.untouched


def gpus_of(cells: NDArray[np.signedinteger]) -> Gpus:
    """Such cells as columns: `[field, rows, places]`."""
    kinds = (np.int64, np.int64, np.int64, np.bool_, np.int64, np.bool_)
    return Gpus._make(column.astype(kind) for column, kind in zip(cells, kinds, strict=False))


def of_gpus(gpus: Sequence[FreeGpu]) -> Gpus:
    """GPUs as one row."""
    return gpus_of(np.array([cell(gpu) for gpu in gpus], np.int64).reshape(-1, len(Gpus._fields)).T[:, None])


def of_host(host: FreeHost | None) -> tuple[int, int]:
    """CPU and memory of a host, or of what a pod takes of one."""
    return (ENOUGH, ENOUGH) if host is None else (clipped(host.cpu_milli, ENOUGH), clipped(host.memory_mib, ENOUGH))


class Kinds:
    """Typical requests as columns: `[kinds]`. Of GPUs in 32 bits, which take a quarter of the time."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.gpus = _small([ask.gpus for ask in asks])
        self.mib = _small([ask.memory_mib for ask in asks])
        self.part = np.array([0 if ask.whole else clipped(ask.memory_percent, 2**10) for ask in asks], np.int64)
        self.whole = np.array([ask.whole for ask in asks], np.bool_)
        self.compute = _small([100 if ask.whole else ask.compute_percent for ask in asks])
        self.takes_gpu = np.array([ask.takes(mig=False) for ask in asks], np.bool_)
        self.takes_mig = np.array([ask.takes(mig=True) for ask in asks], np.bool_)
        takes = np.array([of_host(ask.host) for ask in asks], np.int64).reshape(-1, 2).T  # CPU, and memory
        self.amounts = [np.unique(each, return_inverse=True) for each in takes]  # few are unlike

    def __len__(self) -> int:
        return len(self.gpus)


def _small(amounts: Sequence[int]) -> NDArray[np.int32]:
    return np.array([clipped(amount, 2**30) for amount in amounts], np.int32)


def how_many(kinds: Kinds, nodes: Nodes) -> tuple[Ints, Ints]:
    """How many more pods of each kind there is room for if no other kind came, in `PART`s of a pod: `[rows, kinds]`.

    First by GPUs alone, then with CPU and memory of the hosts, where a part of a pod with several GPUs is none.
    """
    fit = by_gpus = _by_gpus(kinds, nodes.gpus)
    for has, (amounts, of_kind) in zip((nodes.cpu, nodes.memory), kinds.amounts, strict=True):
        left = quotient(PART * np.maximum(has, 0)[:, None], amounts)
        left[:, amounts == 0] = _MOST_PODS
        fit = np.minimum(fit, left[:, of_kind])
    return by_gpus, np.where((kinds.gpus > 1) & (fit < PART), 0, fit)


def _by_gpus(kinds: Kinds, gpus: Gpus) -> Ints:
    """Nodes whose GPUs are alike are counted once: of thousands, some hundred are unlike."""
    alike = _alike(gpus)
    if alike is not None:
        gpus = Gpus._make(column[alike[0]] for column in gpus)
    rows, places = gpus.total.shape
    step = max(_CELLS // max(places * len(kinds), 1), 1)
    counts = [_of_slice(kinds, gpus, slice(at, at + step)) for at in range(0, max(rows, 1), step)]
    found: Ints = np.concatenate(counts)
    return found if alike is None else found[alike[1]]


def _alike(gpus: Gpus) -> tuple[Ints, Ints] | None:
    """A row of each look, and which of these each row looks like; None if to compare them does not pay."""
    rows, places = gpus.total.shape
    if rows < _MANY or not places:
        return None
    weights = np.full(places, _MIX, np.uint64).cumprod()
    key = np.zeros(rows, np.uint64)
    for column in gpus:
        key = key * weights[-1] * _MIX + column.astype(np.uint64) @ weights
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    if 2 * len(first) > rows or not all((column[first[where]] == column).all() for column in gpus):
        return None  # too many looks, or two with the same key
    return first, where


def _of_slice(kinds: Kinds, gpus: Gpus, some: slice) -> Ints:
    total, free, percent, extra = (
        column[some, :, None].astype(np.int32) for column in (gpus.total, gpus.free, gpus.percent, gpus.extra)
    )
    has = total - extra
    need = kinds.mib
    if kinds.part.any():
        need = np.where(kinds.part > 0, np.maximum(has * kinds.part // 100, 1), need).astype(np.int32)
    room = (free >= need) & (need <= has) & (percent >= kinds.compute)
    fits = np.where(kinds.whole, gpus.untouched[some, :, None], room) & (total > 0)
    fits &= np.where(gpus.mig[some, :, None], kinds.takes_mig, kinds.takes_gpu)
    many = np.minimum(free // np.maximum(np.where(kinds.whole, total, need), 1), _MOST_PODS)
    if kinds.compute.any():
        by_compute = np.maximum(percent, 0) // np.maximum(kinds.compute, 1)
        many = np.where(kinds.compute > 0, np.minimum(many, by_compute), many)
    many = np.where(kinds.gpus > 1, 1, many)  # those of one pod need different GPUs
    pods = sums(many * fits)
    return np.minimum(PART * (pods // np.maximum(kinds.gpus, 1)), _MOST_PODS)
