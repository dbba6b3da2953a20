"""Which GPUs one kind of pod gets of nodes, and what is lost by that, remembered for each way in which GPUs can look.

As `ranking.best` has it, for pods of one container and pods without GPUs. Pure, but for what it remembers.
"""

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.selector import accepts
from gpushare.placement.ranking import Ranking

_Lost = tuple[int, FreeGpu]


class Chooser:
    """For one request, under one ranking."""

    def __init__(self, ask: Ask, ranking: Ranking) -> None:
        """Nothing is looked at yet."""
        self.ask, self.ranking = ask, ranking
        self._lost = _Known(ask, ranking)
        self._models: dict[str, bool] = {}

    def under(self, ranking: Ranking) -> None:
        """Another ranking, by which GPUs lose the same: its basis is equal."""
        self.ranking = self._lost.ranking = ranking

    @property
    def remembered(self) -> int:
        """How many GPUs are."""
        return len(self._lost)

    def first(self, room: NodeCapacity) -> int | None:
        """What comes first in the comparison of nodes; None if the pod does not fit."""
        if not self.ask.fits_host(room.host) or not self.admits(room.model):
            return None
        if self.ranking.adds_up:
            chosen = self._best(room.gpus)
            return None if chosen is None else sum([lost for lost, _ in chosen])
        gpus = self.gpus(room)
        return None if gpus is None else self.ranking.first(room, room.after(self.ask, gpus))

    def worth_after(self, room: NodeCapacity) -> int:
        """What a node on which the pod fits is worth beside `first` when the pod is there (`Ranking.worth`)."""
        return self.ranking.worth(room.after(self.ask, self.gpus(room) or ()))

    def gpus(self, room: NodeCapacity) -> tuple[FreeGpu, ...] | None:
        """Those of the node that the pod gets, in any order; None if too few have room."""
        chosen = self._best(room.gpus)
        return None if chosen is None else tuple([gpu for _, gpu in chosen])

    def admits(self, model: str) -> bool:
        """Whether the pod accepts GPUs of a model."""
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = not self.ask.gpus or accepts(self.ask.models, model)
        return known

    def _best(self, gpus: tuple[FreeGpu, ...]) -> list[_Lost] | None:
        number = self.ask.gpus
        if not number:
            return []
        fitting = [lost for lost in map(self._lost.__getitem__, gpus) if lost is not None]
        if len(fitting) < number:
            return None
        if number == 1:
            return [min(fitting)]
        fitting.sort()
        return fitting[:number]


class _Known(dict[FreeGpu, _Lost | None]):
    """What is lost by taking what the pod needs of a GPU; None where it does not fit."""

    def __init__(self, ask: Ask, ranking: Ranking) -> None:
        super().__init__()
        self.ask, self.ranking = ask, ranking

    def __missing__(self, gpu: FreeGpu) -> _Lost | None:
        fits = self.ask.fits(gpu)
        found = self[gpu] = (self.ranking.gpu(gpu, self.ask.need(gpu)), gpu) if fits else None
        return found
