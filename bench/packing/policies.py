"""Policies of the replay, with what each knows of the pods or learns of those that have come."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bench.packing.workload import Workload
from gpushare.model.capacity import Ask, NodeCapacity
from gpushare.model.request import Policy
from gpushare.placement import demand
from gpushare.placement.outlook import NOTHING_KNOWN, Outlook
from gpushare.placement.tally import Tally
from gpushare.simulation.learner import Knowledge, Learner


@dataclass(frozen=True)
class Told:
    """Knows what it was told, and learns nothing."""

    outlook: Outlook = NOTHING_KNOWN
    tally: Tally | None = None

    def came(self, ask: Ask) -> bool:  # noqa: ARG002 - of the protocol
        """Nothing is to be looked at again."""
        return False

    def left(self, ask: Ask) -> None: ...

    def look(self, rooms: Iterable[NodeCapacity]) -> bool:  # noqa: ARG002 - of the protocol
        """The first and only time."""
        return True


def _published(workload: Workload) -> Knowledge:
    """The list of all pods, as the authors of `fgd` have it."""
    return Told(Outlook(typical=demand.typical(Counter(workload.pods))))


POLICIES: Mapping[str, tuple[Policy, Callable[[Workload], Knowledge]]] = {
    "dense": (Policy.DENSE, lambda workload: Learner(workload.nodes)),
    "dense-known": (Policy.DENSE, lambda workload: Learner(workload.nodes, workload.pods, learns=False)),
    "fgd": (Policy.FGD, _published),
    "binpack": (Policy.BINPACK, lambda _: Told()),
    "spread": (Policy.SPREAD, lambda _: Told()),
}
