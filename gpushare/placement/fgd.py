"""Fragmentation gradient descent, the policy of 'Beware of Fragmentation' (USENIX ATC 2023), to compare with. Pure.

A node's fragment for a typical pod is what is free on its GPUs and of no use to that pod: all of it if the pod does not
fit, else the GPUs that are too full for it. A pod goes where the mean of that over all typical pods grows the least.
As published, the difference becomes an integer score of 0 to 100, and memory of hosts is not looked at.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.gpu import MAX_GPUS
from gpushare.model.request import Need
from gpushare.model.selector import accepts
from gpushare.placement.ranking import Ranking

FULL: Final = 1000
"""Parts of a GPU."""
_MOST: Final = 50_000
"""Nodes that are remembered."""
_ANY: Final = ""
"""A model that every pod accepts."""
_STEPS: Final = tuple(math.ceil(-1_000_000 * math.log(100 / score - 1)) for score in range(1, 100))
"""From which thousandth of a part on the difference has the scores 1, 2, ... 99: a sigmoid."""


class Fgd(Ranking):
    """Costs for a fixed sample of pods, those without GPUs included."""

    by_gpus = False

    def __init__(self, typical: Mapping[Ask, int]) -> None:
        """The most frequent requests (`demand.typical`), and how many pods make each."""
        self.basis = self._typical = typical
        self.number = max(sum(typical.values()), 1)
        """Of pods in the sample."""
        self._cpu = sorted({ask.cpu_milli for ask in typical if ask.gpus})
        self._remainders: dict[tuple[str, int, int], int] = {}
        self._untouched: dict[tuple[str, int, int], int] = {}
        self.usable = lru_cache(_MOST)(self._count)
        """What is free on a node and of use, summed over the sample."""

    def gpu(self, before: FreeGpu, need: Need) -> int:
        """How much more of a GPU is of no use. CPU and model of its node are left to `first`: they change little."""
        after = before.without(need)
        return (self._of_one(before) - self._of_one(after)) - (_parts(before) - _parts(after)) * self.number

    def first(self, before: NodeCapacity, after: NodeCapacity) -> int:
        """The published score, negative: the lowest cost is the highest score."""
        return -bisect_right(_STEPS, -self.grown(before, after) * 1000 // self.number)

    def grown(self, before: NodeCapacity, after: NodeCapacity) -> int:
        """By how much a node's fragment grows, in parts of a GPU, summed over the sample."""
        return (_free(after) - _free(before)) * self.number - (self.usable(after) - self.usable(before))

    def _of_one(self, gpu: FreeGpu) -> int:
        free, step = _parts(gpu), len(self._cpu)
        return self._remainder(_ANY, step, free) + self._whole(_ANY, step, MAX_GPUS if free == FULL else 0) // MAX_GPUS

    def _count(self, room: NodeCapacity) -> int:
        step = len(self._cpu) if room.host is None else bisect_right(self._cpu, room.host.cpu_milli)
        parts = [_parts(gpu) for gpu in room.gpus]
        usable = sum(self._remainder(room.model, step, free) for free in parts)
        return usable + self._whole(room.model, step, parts.count(FULL))

    def _remainder(self, model: str, step: int, free: int) -> int:
        key = (model, step, free)
        if key not in self._remainders:
            shares = self._fitting(model, step, lambda need: need < FULL)
            self._remainders[key] = sum(count * free for ask, count in shares if free >= _need(ask))
        return self._remainders[key]

    def _whole(self, model: str, step: int, untouched: int) -> int:
        key = (model, step, untouched)
        if key not in self._untouched:
            wide = self._fitting(model, step, lambda need: need == FULL)
            self._untouched[key] = sum(count * FULL * untouched for ask, count in wide if untouched >= ask.gpus)
        return self._untouched[key]

    def _fitting(self, model: str, step: int, wanted: Callable[[int], bool]) -> Iterable[tuple[Ask, int]]:
        for ask, count in self._typical.items():
            enough = bisect_right(self._cpu, ask.cpu_milli) <= step
            if ask.gpus and wanted(_need(ask)) and enough and (model == _ANY or accepts(ask.models, model)):
                yield ask, count


def _need(ask: Ask) -> int:
    """Parts of one GPU."""
    return FULL if ask.whole else ask.need(FreeGpu(FULL, FULL)).memory_mib


def _parts(gpu: FreeGpu) -> int:
    return gpu.free_mib * FULL // max(gpu.total_mib, 1)


def _free(room: NodeCapacity) -> int:
    return sum(map(_parts, room.gpus))
