"""What a policy thinks of nodes for pods of one container. Pure, but for what it keeps."""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.request import Policy
from gpushare.placement.chooser import Chooser
from gpushare.placement.policies import Policies
from gpushare.placement.ranking import Ranking

_MOST: Final = 200_000
"""GPUs that are remembered, and rooms, some 40 MiB each."""
T = TypeVar("T")


class Costs:
    """Of one policy."""

    def __init__(self, policy: Policy, policies: Policies) -> None:
        """As the policies have the cluster."""
        self._policy = policy
        self.ranking: Ranking = policies.of(policy)
        self._choosers: dict[Ask, Chooser] = {}
        self._fine: dict[Ask, dict[NodeCapacity, int]] = {}
        self._worths: dict[NodeCapacity, int] = {}
        self._kept = 0
        """Of `_fine`."""
        self.remembered = 0
        """GPUs."""

    def update(self, policies: Policies) -> bool:
        """Look at the cluster so from now on; whether `of` may say something else."""
        before, self.ranking = self.ranking, policies.of(self._policy)
        self._forget_rooms()
        if self.ranking.basis != before.basis:
            self._forget()
            return True
        for chooser in self._choosers.values():
            chooser.under(self.ranking)
        return False

    def of(self, ask: Ask, rooms: Iterable[NodeCapacity]) -> list[int | None]:
        """What comes first in the comparison of nodes; None where a pod does not fit."""
        return self._by(ask, lambda chooser: list(map(chooser.first, rooms)))

    def fine(self, ask: Ask, rooms: Iterable[NodeCapacity]) -> list[int]:
        """What tells nodes apart on which a pod fits, and for which `of` says the same: `Ranking.then`."""
        if self._kept > _MOST:
            self._forget_rooms()
        known = self._fine.setdefault(ask, {})
        before = len(known)

        def look(chooser: Chooser) -> list[int]:
            found = []
            for room in rooms:
                then = known.get(room)
                if then is None:
                    then = known[room] = self._worth(room) - chooser.worth_after(room)
                found.append(then)
            return found

        result = self._by(ask, look)
        self._kept += len(known) - before
        return result

    def _worth(self, room: NodeCapacity) -> int:
        found = self._worths.get(room)
        if found is None:
            found = self._worths[room] = self.ranking.worth(room)
        return found

    def choice(self, ask: Ask, room: NodeCapacity) -> tuple[FreeGpu, ...]:
        """The GPUs that a pod gets of a node on which it fits."""
        return self._by(ask, lambda chooser: chooser.gpus(room)) or ()

    def _by(self, ask: Ask, look: Callable[[Chooser], T]) -> T:
        chooser = self._choosers.get(ask)
        if chooser is None:
            chooser = self._choosers[ask] = Chooser(ask, self.ranking)
        before = chooser.remembered
        found = look(chooser)
        self.remembered += chooser.remembered - before
        if self.remembered > _MOST:
            self._forget()
        return found

    def _forget_rooms(self) -> None:
        self._fine.clear()
        self._worths.clear()
        self._kept = 0

    def _forget(self) -> None:
        self._choosers.clear()
        self.remembered = 0
