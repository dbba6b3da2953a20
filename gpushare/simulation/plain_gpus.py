"""GPUs as far as they matter for how well pods pack, for pods of one container: nearly every pod. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from gpushare.model.capacity import Ask, NodeCapacity
from gpushare.model.request import Need, Policy
from gpushare.placement.ranking import Ranking
from gpushare.simulation.kinds import Kind
from gpushare.simulation.learner import Knowledge
from gpushare.simulation.policy_costs import PolicyCosts

Taken = tuple[Ask, tuple[int, ...]]


class PlainGpus:
    """`Gpus` of nodes that are only numbers."""

    def __init__(self, rooms: Sequence[NodeCapacity], policy: Policy, knowledge: Knowledge) -> None:
        """Nodes as they are now, and a policy for all pods."""
        self.rooms = list(rooms)
        self._gpus = [list(room.gpus) for room in rooms]
        self._by_policy = PolicyCosts(policy, knowledge, rooms)
        self._costs = self._by_policy.of(policy)

    @property
    def epoch(self) -> int:
        """As `Gpus`."""
        return self._by_policy.epoch

    @property
    def fine_epoch(self) -> int:
        """As `Gpus`."""
        return self._by_policy.fine_epoch

    @property
    def ranking(self) -> Ranking:
        """By which nodes and GPUs are compared for the next pod."""
        return self._costs.ranking

    def came(self, kind: Kind) -> None:
        """Learn from it."""
        self._by_policy.came(kind.ask, self.rooms)

    def costs(self, kind: Kind, nodes: Sequence[int]) -> list[int | None]:
        """As `Gpus`."""
        return self._costs.of(kind.ask, [self.rooms[node] for node in nodes])

    def fine(self, kind: Kind, nodes: Sequence[int]) -> list[int]:
        """As `Gpus`."""
        return self._costs.fine(kind.ask, [self.rooms[node] for node in nodes])

    def take(self, kind: Kind, node: int, pod: int) -> Taken:  # noqa: ARG002 - of the protocol
        """As `Gpus`."""
        ask, gpus = kind.ask, self._gpus[node]
        taken: list[int] = []
        for gpu in self._costs.choice(ask, self.rooms[node]):
            taken.append(next(i for i, one in enumerate(gpus) if one == gpu and i not in taken))
        self._change(node, ask, taken, -1)
        return ask, tuple(taken)

    def give(self, node: int, taken: Taken) -> None:
        """As `Gpus`."""
        self._change(node, *taken, 1)
        self._by_policy.left(taken[0])

    def _change(self, node: int, ask: Ask, taken: Sequence[int], sign: int) -> None:
        gpus, room = self._gpus[node], self.rooms[node]
        for i in taken:
            need = ask.need(gpus[i])
            gpus[i] = gpus[i].without(Need(-sign * need.memory_mib, -sign * need.compute_percent))
        host = room.host
        if host is not None:
            host = host.plus(ask.host) if sign > 0 else host.without(ask.host)
        self.rooms[node] = replace(room, gpus=tuple(sorted(gpus)), host=host)
