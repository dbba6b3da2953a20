"""The policy `dense`: on which node, and on which of its GPUs, a pod takes the least from the pods to come. Pure.

The cost of a node is the value of what it loses: first of the remainders of its GPUs (`prices`). Among equals, of what
the host can still serve of them, and of the room for typical pods (`outlook`): a GPU whose host has no CPU or memory
left is lost as well, and only where pods that take little of both go decides how many such GPUs there will be.
"""

from functools import lru_cache
from typing import Final

from gpushare.model.capacity import FreeGpu, NodeCapacity
from gpushare.model.request import Need
from gpushare.placement.outlook import Outlook
from gpushare.placement.ranking import Ranking
from gpushare.placement.tally import PART, Tally

_MOST: Final = 50_000
"""GPUs whose value is remembered."""
_MOST_NODES: Final = 2048
"""Nodes that are remembered by their GPUs: some 4.5 KiB each, while a new outlook is made twice. Those that are not
alike come again in few ways: of 12,000 that pods would leave behind in a cluster of 5,000 nodes, four did."""
_ENOUGH: Final = 2**80
"""Of a host that is not known."""
_Row = tuple[int, int, int, int, int, bool]
"""A kind's weight, the pods that accept the model in the parts in which they are served, how many the GPUs have room
for, CPU and memory of one, and whether it needs several GPUs."""
_EMPTY: Final = 2**48
"""More than the square of a node's MiB."""
SERVED: Final = 4
"""Of the typical pods that its GPUs have room for, a host that has room for one in so many serves them fully.

Pods are many, and those that suit a host will come. Measured: 3 to 8 are alike, 2 strands GPUs, 1 keeps pods away.
"""
STRANDED: Final = 4
"""A GPU that its host cannot serve is as bad as room lost for so many typical pods. More changes nothing."""


class Dense(Ranking):
    """Costs under one outlook."""

    by_gpus = True
    adds_up = True

    def __init__(self, outlook: Outlook, tally: Tally | None = None) -> None:
        """As the outlook has it; a tally of the same kinds may be given, for what it remembers."""
        self._outlook = outlook
        self.basis = outlook.prices
        self._value = lru_cache(_MOST)(outlook.value)
        self._rows = lru_cache(_MOST_NODES)(self._counted)
        self._tally = tally or Tally(outlook.kinds)

    def gpu(self, before: FreeGpu, need: Need) -> int:
        """Value of the remainder that is given up, less that of the one that stays."""
        return self._value(before) - self._value(before.without(need))

    def first(self, before: NodeCapacity, after: NodeCapacity) -> int:
        """What remainders of GPUs lose in value."""
        return self._free(before) - self._free(after)

    def worth(self, room: NodeCapacity) -> int:
        """What it can be used for; of nodes that are alike in this, an empty one is worth more than a full one."""
        left = 0
        for gpu in room.gpus:
            left += gpu.free_mib
        return self._useful(room) * _EMPTY + left * left

    def _useful(self, room: NodeCapacity) -> int:
        """What the host can serve of the GPUs, and room for typical pods, by their weights."""
        free, asked, rows = self._rows(room.model, room.gpus)
        cpu, memory = (_ENOUGH, _ENOUGH) if room.host is None else room.host
        cpu, memory = PART * max(cpu, 0), PART * max(memory, 0)
        pods = served = 0
        for weight, accepting, by_gpus, kind_cpu, kind_memory, wide in rows:
            fit = by_gpus
            if kind_cpu and (left := cpu // kind_cpu) < fit:
                fit = left
            if kind_memory and (left := memory // kind_memory) < fit:
                fit = left
            if fit >= PART:
                served += accepting * fit // by_gpus
            elif wide:
                continue
            pods += weight * fit
        return free * (min(PART, served // asked) if asked else PART) + pods

    def _counted(self, model: str, gpus: tuple[FreeGpu, ...]) -> tuple[int, int, list[_Row]]:
        """What `worth` needs to know of nodes with these GPUs: their value, who asks, and each kind that they fit."""
        weights, accepted = self._outlook.weights.get(model), self._outlook.accepted.get(model)
        if weights is None or accepted is None:
            return 0, 0, []
        asked, rows = 0, []
        for kind, weight, number, by_gpus in zip(
            self._outlook.kinds, weights, accepted, self._tally.by_gpus(gpus), strict=True
        ):
            if by_gpus:
                asked += number
                served = number * SERVED * PART
                rows.append((weight, served, by_gpus, kind.cpu_milli, kind.host_mib, kind.gpus > 1))
        return STRANDED * (sum(map(self._value, gpus)) // self._outlook.usual_mib), asked, rows

    def _free(self, room: NodeCapacity) -> int:
        return sum(map(self._value, room.gpus))
