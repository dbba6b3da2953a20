"""What one node lacks against another one for a pod, in the terms in which the policy compares them. Pure.

For those who explain a choice: the policies themselves compare costs, which say nothing to people.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.request import Policy
from gpushare.placement.columns import PART, Kinds, Nodes, how_many, of_gpus
from gpushare.placement.costs import Change, costs_of
from gpushare.placement.outlook import WHOLE, Outlook
from gpushare.placement.policies import FULL, Dense, Fgd, Policies


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
class FewerPods:
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


Lack = Nothing | Free | Remainder | MoreUse | Kept | FewerPods | Fragments


def lack(policy: Policy, outlook: Outlook, there: Change, here: Change) -> Lack:
    """Why a pod goes here and not there, where both have room for it; Nothing if the policy finds both equal.

    Args:
        policy: of the pod.
        outlook: what is known of the cluster.
        there: the node that is not chosen.
        here: the one that is.
    """
    cost_there, cost_here = costs_of([there, here], Policies(policy, outlook).of(policy))
    if cost_there == cost_here:
        return Nothing()
    match policy:
        case Policy.DENSE:
            wasted = cost_there[0] != cost_here[0]
            return _of_gpus(there, outlook) if wasted else _of_room(there, here, outlook)
        case Policy.FGD:
            return Fragments(_fragments(there, outlook), _fragments(here, outlook))
        case Policy.BINPACK | Policy.SPREAD:
            return Free(_free(there.after), _free(here.after))
        case _:
            assert_never(policy)


def little_asked_for(gpu: FreeGpu, outlook: Outlook) -> bool:
    """Whether less than half of what is free on a GPU can be filled by pods that are usual in the cluster."""
    return gpu.total_mib in outlook.prices and 2 * _value(gpu, outlook) < gpu.free_mib * WHOLE


def _value(gpu: FreeGpu, outlook: Outlook) -> int:
    """Of what is free on a GPU to `dense`."""
    return int(Dense(outlook).value(of_gpus([gpu]))[0, 0])


def _of_gpus(there: Change, outlook: Outlook) -> Lack:
    left = max(there.remainders, key=lambda gpu: gpu.free_mib * WHOLE - _value(gpu, outlook), default=None)
    return Remainder(left) if left is not None and little_asked_for(left, outlook) else MoreUse()


def _of_room(there: Change, here: Change, outlook: Outlook) -> Lack:
    nodes = Nodes.of([there.before, there.after, here.before, here.after])
    _, (had_there, has_there, had_here, has_here) = how_many(Kinds(outlook.kinds), nodes)
    of_there = list(zip(_weights(there, outlook), (had_there - has_there).tolist(), strict=True))
    of_here = list(zip(_weights(here, outlook), (had_here - has_here).tolist(), strict=True))
    costs = [weight * parts - other * fewer for (weight, parts), (other, fewer) in zip(of_there, of_here, strict=True)]
    most = costs.index(max(costs))
    (weight, parts), (other, fewer) = of_there[most], of_here[most]
    if there.before.model != here.before.model and (weight - other) * parts > other * (parts - fewer):
        return Kept(there.before.model)
    return FewerPods(outlook.kinds[most], parts / PART, fewer / PART)


def _weights(change: Change, outlook: Outlook) -> Sequence[int]:
    """Of every kind of pod: what its room is worth on the node."""
    return outlook.weights.get(change.before.model, (0,) * len(outlook.kinds))


def _free(room: NodeCapacity) -> tuple[int, int]:
    return sum(gpu.free_mib for gpu in room.gpus), sum(gpu.total_mib for gpu in room.gpus)


def _fragments(change: Change, outlook: Outlook) -> float:
    """By how much they grow, in GPUs, as `fgd` counts."""
    policy = Fgd(outlook.typical)
    grown = policy.grown(Nodes.of([change.before]), Nodes.of([change.after]))
    return int(grown[0]) / policy.number / FULL
