"""What a policy thinks of a node for a pod of one container, as `ranking.best` has it. Pure, but for what it keeps.

A policy whose costs add up compares nodes by what their GPUs lose, and only equal ones by what else they are worth; so
the second is left to be asked for, and what one GPU loses is remembered for each way in which GPUs can look.
"""

from typing import Final

from gpushare.model.request import Policy
from gpushare.model.room import Ask, GpuRoom, NodeRoom
from gpushare.model.selector import ANY_GPU, accepts
from gpushare.placement import ranking
from gpushare.placement.policies import Rankings
from gpushare.placement.ranking import Ranking

_MOST: Final = 200_000
"""GPUs that are remembered, some 40 MiB."""

_Key = tuple[int, GpuRoom]


class Costs:
    """Of one policy."""

    def __init__(self, policy: Policy, rankings: Rankings) -> None:
        """As the rankings have the cluster."""
        self._policy = policy
        self.ranking: Ranking = rankings.of(policy)
        self._keys: dict[Ask, dict[GpuRoom, _Key | None]] = {}
        self._kept = 0
        self._fine: dict[tuple[Ask, NodeRoom], int] = {}

    def update(self, rankings: Rankings) -> bool:
        """Look at the cluster so from now on; whether `cost` may say something else."""
        before, self.ranking = self.ranking, rankings.of(self._policy)
        self._fine.clear()
        if self.ranking.basis == before.basis:
            return False
        self._keys.clear()
        return True

    def cost(self, ask: Ask, room: NodeRoom) -> int | None:
        """What comes first in the comparison of nodes; None if a pod does not fit."""
        if ask.gpus and ask.models != ANY_GPU.models and not accepts(ask.models, room.model):
            return None
        if not ask.fits_host(room.host):
            return None
        if not self.ranking.adds_up:
            found = ranking.best(ask, room, self.ranking)
            return None if found is None else found.cost
        fitting = self._fitting(ask, room)
        return None if len(fitting) < ask.gpus else sum(lost for lost, _ in fitting[: ask.gpus])

    def fine(self, ask: Ask, room: NodeRoom) -> int:
        """What tells nodes apart for which `cost` is the same."""
        if not self.ranking.adds_up:
            return 0  # `cost` has said all
        found = self._fine.get((ask, room))
        if found is None:
            found = self.ranking.then(room, room.after(ask, self.choice(ask, room)))
            self._fine[ask, room] = found
        return found

    def choice(self, ask: Ask, room: NodeRoom) -> tuple[GpuRoom, ...]:
        """The GPUs that a pod gets of a node on which it fits."""
        return tuple(gpu for _, gpu in self._fitting(ask, room)[: ask.gpus])

    def _fitting(self, ask: Ask, room: NodeRoom) -> list[_Key]:
        """GPUs with room, the best first. Equal ones keep the order of the node's."""
        if not ask.gpus:
            return []
        known = self._keys.setdefault(ask, {})
        fitting = []
        for gpu in room.gpus:
            if gpu not in known:
                self._remember(ask, gpu, known)
            if (key := known[gpu]) is not None:
                fitting.append(key)
        fitting.sort()
        return fitting

    def _remember(self, ask: Ask, gpu: GpuRoom, known: dict[GpuRoom, _Key | None]) -> None:
        self._kept += 1
        if self._kept > _MOST:
            self._kept = 0
            self._keys.clear()
        known[gpu] = (self.ranking.gpu(gpu, ask.need(gpu)), gpu) if ask.fits(gpu) else None
