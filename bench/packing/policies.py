"""Policies as a replay asks them, with what they learn of the pods that have come."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.packing.workload import Workload
from gpushare.model.request import Policy
from gpushare.model.room import Ask, NodeRoom
from gpushare.placement import demand
from gpushare.placement.outlook import Outlook
from gpushare.placement.policies import Rankings
from gpushare.simulation.learner import Learner


class Scheduler(Protocol):
    rankings: Rankings
    """For the next pod. Another object when costs that were given before may be different."""

    def came(self, ask: Ask, rooms: Sequence[NodeRoom]) -> None:
        """A pod came to a cluster that looks like this."""


@dataclass
class Fixed:
    """A policy that learns nothing."""

    rankings: Rankings

    def came(self, ask: Ask, rooms: Sequence[NodeRoom]) -> None: ...


class Learning:
    """`dense` with what it has seen, or with a list that it knows."""

    def __init__(self, workload: Workload, *, known: bool) -> None:
        self._learner = Learner(workload.nodes, workload.pods if known else (), learns=not known)
        self._look(workload.nodes)

    def came(self, ask: Ask, rooms: Sequence[NodeRoom]) -> None:
        if self._learner.came(ask):
            self._look(rooms)

    def _look(self, rooms: Sequence[NodeRoom]) -> None:
        if self._learner.look(rooms):
            self.rankings = Rankings(Policy.DENSE, self._learner.outlook, self._learner.tally)


def _fgd(workload: Workload) -> Scheduler:
    return Fixed(Rankings(Policy.FGD, Outlook(typical=demand.typical(Counter(workload.pods)))))


POLICIES: Mapping[str, Callable[[Workload], Scheduler]] = {
    "dense": lambda workload: Learning(workload, known=False),
    "dense-known": lambda workload: Learning(workload, known=True),
    "fgd": _fgd,
    "binpack": lambda _: Fixed(Rankings(Policy.BINPACK)),
    "spread": lambda _: Fixed(Rankings(Policy.SPREAD)),
}


def make(name: str, workload: Workload) -> Scheduler:
    return POLICIES[name](workload)
