"""What a policy thinks of a node for a pod of one container, as `ranking.best` has it. Pure, but for what it keeps.

The policy `dense` compares nodes by what their GPUs lose in value, and only equal ones by the room for typical pods;
so the second is left to be asked for, and what one GPU loses is remembered for each way in which GPUs can look.
"""

from typing import Final

from gpushare.model.request import Policy
from gpushare.model.room import Ask, GpuRoom, NodeRoom
from gpushare.model.selector import ANY_GPU, accepts
from gpushare.placement import policies, ranking
from gpushare.placement.dense import Dense
from gpushare.placement.outlook import NOTHING_KNOWN, Outlook
from gpushare.placement.ranking import Ranking
from gpushare.placement.tally import Tally

LEARNING: Final = frozenset({Policy.DENSE, Policy.FGD})
"""Policies that look at the whole cluster."""
_MOST: Final = 200_000
"""GPUs that are remembered, some 40 MiB."""

_Key = tuple[int, GpuRoom]


class Costs:
    """Of one policy."""

    def __init__(self, policy: Policy) -> None:
        """Nothing is known of the cluster before `update`."""
        self.ranking: Ranking = policies.ranking(policy)
        self._policy = policy
        self._outlook = NOTHING_KNOWN
        self._keys: dict[Ask, dict[GpuRoom, _Key | None]] = {}
        self._kept = 0
        self._fine: dict[tuple[Ask, NodeRoom], int] = {}

    def update(self, outlook: Outlook, tally: Tally) -> bool:
        """Look at the cluster so from now on; whether `cost` may say something else."""
        if self._policy not in LEARNING:
            return False
        before, self._outlook = self._outlook, outlook
        self._fine.clear()
        if self._policy is Policy.DENSE:
            self.ranking = Dense(outlook, tally)
            if outlook.prices == before.prices:
                return False
        else:
            self.ranking = policies.ranking(self._policy, outlook)
        self._keys.clear()
        return True

    def cost(self, ask: Ask, room: NodeRoom) -> int | None:
        """What comes first in the comparison of nodes; None if a pod does not fit."""
        if ask.gpus and ask.models != ANY_GPU.models and not accepts(ask.models, room.model):
            return None
        if not ask.fits_host(room.host):
            return None
        if self._policy is not Policy.DENSE:
            found = ranking.best(ask, room, self.ranking)
            return None if found is None else found.cost
        fitting = self._fitting(ask, room)
        return None if len(fitting) < ask.gpus else sum(lost for lost, _ in fitting[: ask.gpus])

    def fine(self, ask: Ask, room: NodeRoom) -> int:
        """What tells nodes apart for which `cost` is the same."""
        if not isinstance(self.ranking, Dense):
            return 0
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
