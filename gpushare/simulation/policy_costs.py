"""What every policy in use thinks of nodes, under what the controller has learned of the cluster by then."""

from collections.abc import Sequence

from gpushare.model.capacity import Ask, NodeCapacity
from gpushare.model.request import Policy
from gpushare.placement.policies import LEARNING, Policies
from gpushare.simulation.costs import Costs
from gpushare.simulation.learner import Knowledge


class PolicyCosts:
    """Costs by policy, and the epochs of `Gpus`."""

    def __init__(self, default: Policy, knowledge: Knowledge, rooms: Sequence[NodeCapacity]) -> None:
        """A policy for pods that name none, and nodes as they are."""
        self.epoch = self.fine_epoch = 0
        self._knowledge = knowledge
        self._costs: dict[Policy, Costs] = {}
        self._default = default
        self.policies = Policies(default)
        self.of(default)
        self._look(rooms)

    def of(self, policy: Policy | None) -> Costs:
        """Of a pod that names this one, or none."""
        policy = policy or self._default
        found = self._costs.get(policy)
        if found is None:
            found = self._costs[policy] = Costs(policy, self.policies)
        return found

    def came(self, ask: Ask, rooms: Sequence[NodeCapacity]) -> None:
        """A pod has come to nodes that look like this."""
        if self._knowledge.came(ask):
            self._look(rooms)

    def left(self, ask: Ask) -> None:
        """A pod has ended."""
        self._knowledge.left(ask)

    def _look(self, rooms: Sequence[NodeCapacity]) -> None:
        if LEARNING.isdisjoint(self._costs) or not self._knowledge.look(rooms):
            return
        self.policies = Policies(self._default, self._knowledge.outlook, self._knowledge.tally)
        self.fine_epoch += 1
        changed = [costs.update(self.policies) for costs in self._costs.values()]
        self.epoch += any(changed)
