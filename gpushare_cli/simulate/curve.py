"""How much of the GPUs is allocated while pods come. Pure, but for what it notes."""

from collections.abc import Sequence

from gpushare.model.capacity import NodeCapacity
from gpushare.simulation.timeline import Arrival, Came, Event

_MOST = 1_200
"""Points; then every other one is dropped."""


class Curve:
    """In per cent of the GPU memory of all nodes that may be granted."""

    def __init__(self, rooms: Sequence[NodeCapacity], *, ends: bool) -> None:
        """Nodes before the first pod, and whether any pod ends."""
        gpus = [gpu for room in rooms for gpu in room.gpus]
        self.total_mib = sum(gpu.total_mib for gpu in gpus)
        self._mean_mib = self.total_mib // max(len(gpus), 1)
        self.allocated_mib = self.asked_mib = self.total_mib - sum(gpu.free_mib for gpu in gpus)
        """`asked_mib`: what is there before the first pod and what pods ask for, also those that are on no node."""
        self.ends = ends
        """If so, the points are over hours, else over what was asked for."""
        self.points: list[tuple[float, float]] = []
        self._every = 1
        self._seen = 0

    def note(self, event: Event, free_mib: int) -> None:
        """Something has happened, and so much is free now."""
        self.allocated_mib = self.total_mib - free_mib
        if not isinstance(event, Came):
            return
        self.asked_mib += self._asks(event.arrival)
        self._seen += 1
        if self._seen % self._every == 0:
            across = event.arrival.at_s / 3600 if self.ends else self._percent(self.asked_mib)
            self.points.append((across, self._percent(self.allocated_mib)))
        if len(self.points) > _MOST:
            self.points = self.points[::2]
            self._every *= 2

    @property
    def allocated_percent(self) -> float:
        """At the end."""
        return self._percent(self.allocated_mib)

    @property
    def asked_percent(self) -> float:
        """In all."""
        return self._percent(self.asked_mib)

    def _asks(self, arrival: Arrival) -> int:
        """Parts and whole GPUs are counted as of a GPU of mean size."""
        ask = arrival.kind.ask
        if ask.whole:
            return ask.gpus * self._mean_mib
        return ask.gpus * (ask.memory_mib or self._mean_mib * ask.memory_percent // 100)

    def _percent(self, mib: int) -> float:
        return round(100 * mib / self.total_mib, 2) if self.total_mib else 0.0
