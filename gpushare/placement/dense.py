"""The policy `dense`: on which node, and on which of its GPUs, a pod takes the least from the pods to come. Pure.

The cost of a node is the value of what it loses: first of the remainders of its GPUs (`prices`). Among equals, of what
the host can still serve of them, and of the room for typical pods (`outlook`): a GPU whose host has no CPU or memory
left is lost as well, and only where pods that take little of both go decides how many such GPUs there will be.
"""

from functools import lru_cache
from operator import mul
from typing import Final

from gpushare.model.request import Need
from gpushare.model.room import GpuRoom, NodeRoom
from gpushare.placement.outlook import Outlook
from gpushare.placement.prices import slots
from gpushare.placement.ranking import Ranking
from gpushare.placement.tally import PART, Counts, Tally

_MOST: Final = 50_000
"""GPUs whose value is remembered."""
SERVED: Final = 4
"""Of the typical pods that its GPUs have room for, a host that has room for one in so many serves them fully.

Pods are many, and those that suit a host will come. Measured: 3 to 8 are alike, 2 strands GPUs, 1 keeps pods away.
"""
STRANDED: Final = 4
"""A GPU that its host cannot serve is as bad as room lost for so many typical pods. More changes nothing."""


class Dense(Ranking):
    """Costs under one outlook."""

    by_gpus = True

    def __init__(self, outlook: Outlook, tally: Tally | None = None) -> None:
        """As the outlook has it; a tally of the same kinds may be given, for what it remembers."""
        self._outlook = outlook
        self.basis = outlook.prices
        self._value = lru_cache(_MOST)(self._priced)
        self._tally = tally or Tally(outlook.kinds)

    def gpu(self, before: GpuRoom, need: Need) -> int:
        """Value of the remainder that is given up, less that of the one that stays."""
        return self._value(before) - self._value(before.without(need))

    def first(self, before: NodeRoom, after: NodeRoom) -> int:
        """What remainders of GPUs lose in value."""
        return self._free(before) - self._free(after)

    def worth(self, room: NodeRoom) -> int:
        """What the host can serve of the GPUs, and room for typical pods, by their weights."""
        weights = self._outlook.weights.get(room.model)
        if weights is None:
            return 0
        counts = self._tally.of(room)
        free = self._free(room) // self._outlook.usual_mib
        pods: int = sum(map(mul, weights, counts))
        return STRANDED * free * self._served(room, counts) + pods

    def _served(self, room: NodeRoom, counts: Counts) -> int:
        """How much of the free GPUs the host can serve, in parts: of the typical pods that fit them."""
        asked = served = 0
        for number, fit, by_gpus in zip(
            self._outlook.accepted[room.model], counts, self._tally.by_gpus(room.gpus), strict=True
        ):
            if by_gpus:
                asked += number
                if fit >= PART:
                    served += number * fit * SERVED * PART // by_gpus
        return min(PART, served // asked) if asked else PART

    def _free(self, room: NodeRoom) -> int:
        return sum(map(self._value, room.gpus))

    def _priced(self, gpu: GpuRoom) -> int:
        """Of what is free on a GPU; memory without compute is worth no more than the compute."""
        table = self._outlook.prices.get(gpu.total_mib)
        if table is None:
            return 0
        free = min(gpu.free_mib, gpu.total_mib * max(gpu.free_percent, 0) // 100)
        return table[slots(max(free, 0), gpu.total_mib)] * gpu.total_mib
