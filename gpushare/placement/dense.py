"""The policy `dense`: on which node, and on which of its GPUs, a pod takes the least from the pods to come. Pure.

The cost of a node is the value of what it loses: of the remainders of its GPUs (`prices`), and of the room for typical
pods (`outlook`), in which the host's CPU and memory count. It is an integer without a bound; only its order matters.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from gpushare.model.room import Ask, GpuRoom, NodeRoom
from gpushare.placement.outlook import Outlook
from gpushare.placement.prices import slots
from gpushare.placement.tally import PART, Tally

GPU_WEIGHT: Final = 32
"""Against the room for typical pods. From 10 on more changes nothing: wasted GPUs come first."""


class Best(NamedTuple):
    """The best GPUs of a node for a pod."""

    cost: int
    gpus: tuple[GpuRoom, ...]


class Dense:
    """Costs under one outlook."""

    def __init__(self, outlook: Outlook, tally: Tally | None = None) -> None:
        """As the outlook has it; a tally of the same kinds may be given, for what it remembers."""
        self._outlook = outlook
        self._tally = tally or Tally(outlook.kinds)

    def best(self, ask: Ask, room: NodeRoom) -> Best | None:
        """Where a pod costs least on a node; None if it does not fit. Of equal costs, the fullest GPUs."""
        if not ask.fits_host(room.host):
            return None
        return min((Best(self.cost(ask, room, gpus), gpus) for gpus in choices(ask, room)), default=None)

    def cost(self, ask: Ask, room: NodeRoom, gpus: tuple[GpuRoom, ...]) -> int:
        """What a node loses by giving these of its GPUs to a pod."""
        lost = sum(self._value(gpu) - self._value(gpu.without(ask.need(gpu))) for gpu in gpus)
        return GPU_WEIGHT * PART * lost + self._outlook.usual_mib * self._less_room(room, room.after(ask, gpus))

    def _value(self, gpu: GpuRoom) -> int:
        """Of what is free on a GPU; memory without compute is worth no more than the compute."""
        table = self._outlook.prices.get(gpu.total_mib)
        if table is None:
            return 0
        free = min(gpu.free_mib, gpu.total_mib * max(gpu.free_percent, 0) // 100)
        return table[slots(max(free, 0), gpu.total_mib)] * gpu.total_mib

    def _less_room(self, before: NodeRoom, after: NodeRoom) -> int:
        weights = self._outlook.weights.get(before.model)
        if weights is None:
            return 0
        lost = zip(weights, self._tally.of(before), self._tally.of(after), strict=True)
        return sum(weight * (had - has) for weight, had, has in lost)


def choices(ask: Ask, room: NodeRoom) -> Iterator[tuple[GpuRoom, ...]]:
    """Sets of GPUs that differ in more than their names; for requests of several GPUs only the fullest ones."""
    if ask.gpus == 0:
        yield ()
        return
    fitting = [gpu for gpu in room.gpus if ask.fits(gpu)]
    if ask.gpus == 1:
        yield from ((gpu,) for gpu in dict.fromkeys(fitting))
    elif len(fitting) >= ask.gpus:
        yield tuple(sorted(fitting, key=lambda gpu: (gpu.free_mib, gpu))[: ask.gpus])
