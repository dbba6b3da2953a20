"""The policy `dense`: on which node, and on which of its GPUs, a pod takes the least from the pods to come. Pure.

The cost of a node is the value of what it loses: of the remainders of its GPUs (`prices`), and of the room for typical
pods (`outlook`), in which the host's CPU and memory count. It is an integer without a bound; only its order matters.
"""

from typing import Final

from gpushare.model.request import Need
from gpushare.model.room import GpuRoom, NodeRoom
from gpushare.placement.outlook import Outlook
from gpushare.placement.prices import slots
from gpushare.placement.tally import Tally

ROOM: Final = 2**80
"""More than all room that one pod can take: wasted GPUs come first, and room for typical pods decides among equals."""


class Dense:
    """Costs under one outlook."""

    def __init__(self, outlook: Outlook, tally: Tally | None = None) -> None:
        """As the outlook has it; a tally of the same kinds may be given, for what it remembers."""
        self._outlook = outlook
        self._tally = tally or Tally(outlook.kinds)

    def gpu(self, before: GpuRoom, need: Need) -> int:
        """Value of the remainder that is given up, less that of the one that stays."""
        return self._value(before) - self._value(before.without(need))

    def cost(self, before: NodeRoom, after: NodeRoom) -> int:
        """What the GPUs lose in value, and among equals how much room for typical pods the node loses."""
        return self.wasted(before, after) * ROOM + self.less_room(before, after)

    def wasted(self, before: NodeRoom, after: NodeRoom) -> int:
        """What remainders of GPUs lose in value."""
        return sum(map(self._value, before.gpus)) - sum(map(self._value, after.gpus))

    def less_room(self, before: NodeRoom, after: NodeRoom) -> int:
        """How many typical pods fewer there is room for, by their weights. Less than ROOM."""
        weights = self._outlook.weights.get(before.model)
        if weights is None:
            return 0
        lost = zip(weights, self._tally.of(before), self._tally.of(after), strict=True)
        return sum(weight * (had - has) for weight, had, has in lost)

    def _value(self, gpu: GpuRoom) -> int:
        """Of what is free on a GPU; memory without compute is worth no more than the compute."""
        table = self._outlook.prices.get(gpu.total_mib)
        if table is None:
            return 0
        free = min(gpu.free_mib, gpu.total_mib * max(gpu.free_percent, 0) // 100)
        return table[slots(max(free, 0), gpu.total_mib)] * gpu.total_mib
