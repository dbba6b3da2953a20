"""Fragmentation gradient descent, the policy of 'Beware of Fragmentation' (USENIX ATC 2023), to compare with. Pure.

A node's fragment for a typical pod is what is free on its GPUs and of no use to that pod: all of it if the pod does not
fit, else the GPUs that are too full for it. A pod goes where the mean of that over all typical pods grows the least.
As published, the difference becomes an integer score of 0 to 100, and memory of hosts is not looked at.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from gpushare.model.room import Ask, GpuRoom, NodeRoom
from gpushare.model.selector import Choice
from gpushare.placement.dense import Best, choices

_FULL: Final = 1000
"""Parts of a GPU."""
_COVERED_PERCENT: Final = 95
"""Of all pods, by the most frequent requests."""
_STEPS: Final = tuple(math.ceil(-1_000_000 * math.log(100 / score - 1)) for score in range(1, 100))
"""From which thousandth of a part on the difference has the scores 1, 2, ... 99: a sigmoid."""


class Fgd:
    """Costs for a fixed sample of pods, those without GPUs included; `admits` says whether a choice accepts a model."""

    def __init__(self, sample: Iterable[Ask], admits: Callable[[Choice, str], bool]) -> None:
        self._admits = admits
        self._typical, self._number = _typical(sample)
        self._cpu = sorted({ask.cpu_milli for ask in self._typical if ask.gpus})
        self._remainders: dict[tuple[str, int, int], int] = {}
        self._untouched: dict[tuple[str, int, int], int] = {}
        self._usable: dict[NodeRoom, int] = {}

    def best(self, ask: Ask, room: NodeRoom) -> Best | None:
        """Where a pod scores best on a node; None if it does not fit. The lowest cost is the highest score."""
        if not ask.fits_host(room.host):
            return None
        before, free = self.usable(room), _free(room)
        found: Best | None = None
        for gpus in choices(ask, room):
            after = room.after(ask, gpus)
            gained = (self.usable(after) - before) + (free - _free(after)) * self._number
            scored = Best(-bisect_right(_STEPS, gained * 1000 // self._number), gpus)
            found = scored if found is None or scored < found else found
        return found

    def usable(self, room: NodeRoom) -> int:
        """What is free and of use, summed over the sample."""
        known = self._usable.get(room)
        if known is None:
            step = len(self._cpu) if room.host is None else bisect_right(self._cpu, room.host.cpu_milli)
            parts = [_parts(gpu) for gpu in room.gpus]
            known = sum(self._remainder(room.model, step, free) for free in parts)
            known += self._whole(room.model, step, parts.count(_FULL))
            self._usable[room] = known
        return known

    def _remainder(self, model: str, step: int, free: int) -> int:
        key = (model, step, free)
        if key not in self._remainders:
            shares = self._fitting(model, step, lambda need: need < _FULL)
            self._remainders[key] = sum(count * free for ask, count in shares if free >= _need(ask))
        return self._remainders[key]

    def _whole(self, model: str, step: int, untouched: int) -> int:
        key = (model, step, untouched)
        if key not in self._untouched:
            wide = self._fitting(model, step, lambda need: need == _FULL)
            self._untouched[key] = sum(count * _FULL * untouched for ask, count in wide if untouched >= ask.gpus)
        return self._untouched[key]

    def _fitting(self, model: str, step: int, wanted: Callable[[int], bool]) -> Iterable[tuple[Ask, int]]:
        for ask, count in self._typical.items():
            enough = bisect_right(self._cpu, ask.cpu_milli) <= step
            if ask.gpus and wanted(_need(ask)) and enough and self._admits(ask.models, model):
                yield ask, count


def _typical(sample: Iterable[Ask]) -> tuple[Counter[Ask], int]:
    """The most frequent requests and how many pods they are, memory of hosts left out."""
    counts: Counter[Ask] = Counter()
    for ask in sample:
        counts[replace(ask, host_mib=0)] += 1
    ranked = sorted(counts, key=lambda ask: (counts[ask], ask.cpu_milli, _need(ask), ask.gpus, ask.models.wanted))
    kept: Counter[Ask] = Counter()
    while ranked and 100 * kept.total() < _COVERED_PERCENT * counts.total():
        ask = ranked.pop()
        kept[ask] = counts[ask]
    return kept, max(kept.total(), 1)


def _need(ask: Ask) -> int:
    """Parts of one GPU."""
    if ask.gpus == 0:
        return 0
    return _FULL if ask.whole else ask.need(GpuRoom(_FULL, _FULL)).memory_mib


def _parts(gpu: GpuRoom) -> int:
    return gpu.free_mib * _FULL // max(gpu.total_mib, 1)


def _free(room: NodeRoom) -> int:
    return sum(map(_parts, room.gpus))
