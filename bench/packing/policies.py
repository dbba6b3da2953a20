"""Policies of the replay, with what each knows of the pods or learns of those that have come."""

from collections import Counter
from collections.abc import Callable, Mapping

from bench.packing.workload import Workload
from gpushare.model.capacity import Ask
from gpushare.model.request import Policy
from gpushare.placement.columns import Nodes
from gpushare.placement.outlook import NOTHING_KNOWN, Outlook, typical
from gpushare_cli.simulate.cluster import Learner


class Knowing(Learner):
    """Knows the pods to come, and learns nothing of those that come."""

    def came(self, ask: Ask) -> bool:  # noqa: ARG002 - as of Learner
        """When it is due, the room that is left is looked at again."""
        return self.is_due()

    def left(self, ask: Ask) -> None:
        """Nothing is forgotten."""


class Told(Learner):
    """Knows what it was told, and learns nothing."""

    def __init__(self, outlook: Outlook = NOTHING_KNOWN) -> None:
        super().__init__()
        self.outlook = outlook

    def came(self, ask: Ask) -> bool:  # noqa: ARG002 - as of Learner
        """Nothing is to be looked at again."""
        return False

    def look(self, empty: Nodes, now: Nodes) -> bool:  # noqa: ARG002 - as of Learner
        """The first and only time."""
        return True


def _published(workload: Workload) -> Learner:
    """The list of all pods, as the authors of `fgd` have it."""
    return Told(Outlook(typical=typical(Counter(workload.pods))))


POLICIES: Mapping[str, tuple[Policy, Callable[[Workload], Learner]]] = {
    "dense": (Policy.DENSE, lambda _: Learner()),
    "dense-known": (Policy.DENSE, lambda workload: Knowing(workload.pods)),
    "fgd": (Policy.FGD, _published),
    "binpack": (Policy.BINPACK, lambda _: Told()),
    "spread": (Policy.SPREAD, lambda _: Told()),
}
