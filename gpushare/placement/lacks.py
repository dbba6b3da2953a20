"""What one node lacks against another one for a pod, in the terms in which the policy compares them. Pure.

For those who explain a choice: the policies themselves compare costs, which say nothing to people.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.request import Policy
from gpushare.placement import fgd, policies
from gpushare.placement.outlook import Outlook
from gpushare.placement.prices import WHOLE
from gpushare.placement.tally import PART, Tally


@dataclass(frozen=True, slots=True)
class Change:
    """A node before and after it gets the pod."""

    before: NodeCapacity
    after: NodeCapacity

    @property
    def remainders(self) -> tuple[FreeGpu, ...]:
        """The GPUs that the pod gets, as they are after it."""
        return tuple((Counter(self.after.gpus) - Counter(self.before.gpus)).elements())


@dataclass(frozen=True, slots=True)
class Nothing:
    """It is as good."""


@dataclass(frozen=True, slots=True)
class Free:
    """How much stays free on the node's GPUs: there, and on the other node."""

    there: tuple[int, int]
    """MiB free, and in all."""
    here: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Remainder:
    """The pod would leave this of a GPU there, which hardly any pod of the cluster asks for."""

    gpu: FreeGpu


@dataclass(frozen=True, slots=True)
class MoreUse:
    """What the pod would take of GPUs there is of more use to the cluster's pods."""


@dataclass(frozen=True, slots=True)
class Kept:
    """GPUs of its model are left to pods that need them."""

    model: str


@dataclass(frozen=True, slots=True)
class Room:
    """The pod would take the room of more such pods there: GPUs, or the CPU and memory that go with them."""

    ask: Ask
    there: float
    """Pods."""
    here: float


@dataclass(frozen=True, slots=True)
class Fragments:
    """By so much grows what is free on GPUs and of no use to the cluster's pods, in GPUs."""

    there: float
    here: float


Lack = Nothing | Free | Remainder | MoreUse | Kept | Room | Fragments


def lack(policy: Policy, outlook: Outlook, there: Change, here: Change) -> Lack:
    """Why a pod goes here and not there, where both have room for it; Nothing if the policy finds both equal.

    Args:
        policy: of the pod.
        outlook: what is known of the cluster.
        there: the node that is not chosen.
        here: the one that is.
    """
    ranking = policies.ranking(policy, outlook)
    if ranking.cost(there.before, there.after) == ranking.cost(here.before, here.after):
        return Nothing()
    match policy:
        case Policy.DENSE:
            wasted = _taken(there, outlook) - _taken(here, outlook)
            return _of_gpus(there, outlook) if wasted else _of_room(there, here, outlook)
        case Policy.FGD:
            return Fragments(_fragments(there, outlook), _fragments(here, outlook))
        case Policy.BINPACK | Policy.SPREAD:
            return Free(_free(there.after), _free(here.after))
        case _:
            assert_never(policy)


def little_asked_for(gpu: FreeGpu, outlook: Outlook) -> bool:
    """Whether less than half of what is free on a GPU can be filled by pods that are usual in the cluster."""
    return gpu.total_mib in outlook.prices and 2 * outlook.value(gpu) < gpu.free_mib * WHOLE


def _of_gpus(there: Change, outlook: Outlook) -> Lack:
    left = max(there.remainders, key=lambda gpu: gpu.free_mib * WHOLE - outlook.value(gpu), default=None)
    return Remainder(left) if left is not None and little_asked_for(left, outlook) else MoreUse()


def _of_room(there: Change, here: Change, outlook: Outlook) -> Lack:
    tally = Tally(outlook.kinds)
    of_there, of_here = list(_lost(there, outlook, tally)), list(_lost(here, outlook, tally))
    costs = [weight * parts - other * fewer for (weight, parts), (other, fewer) in zip(of_there, of_here, strict=True)]
    most = costs.index(max(costs))
    (weight, parts), (other, fewer) = of_there[most], of_here[most]
    if there.before.model != here.before.model and (weight - other) * parts > other * (parts - fewer):
        return Kept(there.before.model)
    return Room(outlook.kinds[most], parts / PART, fewer / PART)


def _lost(change: Change, outlook: Outlook, tally: Tally) -> Iterator[tuple[int, int]]:
    """Of every kind of pod: what its room is worth on the node, and how much of it goes."""
    weights = outlook.weights.get(change.before.model, (0,) * len(outlook.kinds))
    before, after = tally.of(change.before), tally.of(change.after)
    return ((weight, had - has) for weight, had, has in zip(weights, before, after, strict=True))


def _taken(change: Change, outlook: Outlook) -> int:
    """Value of GPUs that a node loses, by what usual pods can fill."""
    return sum(outlook.value(gpu) for gpu in change.before.gpus) - sum(outlook.value(gpu) for gpu in change.after.gpus)


def _free(room: NodeCapacity) -> tuple[int, int]:
    return sum(gpu.free_mib for gpu in room.gpus), sum(gpu.total_mib for gpu in room.gpus)


def _fragments(change: Change, outlook: Outlook) -> float:
    """By how much they grow, in GPUs, as `fgd` counts."""
    policy = fgd.Fgd(outlook.typical)
    return policy.grown(change.before, change.after) / policy.number / fgd.FULL
