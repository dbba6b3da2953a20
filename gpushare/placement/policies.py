"""The policies: what a pod costs a node, and which GPUs it gets there. Their words: `gpushare_cli.explain.place`. Pure.

Each works on columns (`columns`), whether of one row or of a cluster. Costs are of three parts, the first of which
counts most; only their order means anything, and less is better.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np

from gpushare.model.capacity import Ask, FreeGpu
from gpushare.model.gpu import MAX_GPUS
from gpushare.model.request import DEFAULT_POLICY, Need, Policy, RequestShape, accepts
from gpushare.placement.columns import (
    ENOUGH,
    MOST_MIB,
    PART,
    Gpus,
    Ints,
    Kinds,
    Nodes,
    clipped,
    how_many,
    of_gpus,
    quotient,
    sums,
)
from gpushare.placement.outlook import NOTHING_KNOWN, SLOTS, Outlook

WHOLE: Final = 10**9  # of a node's memory, for `binpack`; fine enough that of a cluster's nodes few are alike
SERVED: Final = 4
"""Of the typical pods that its GPUs have room for, a host that has room for one in so many serves them fully.

Pods are many, and those that suit a host will come. Measured: 3 to 8 are alike, 2 strands GPUs, 1 keeps pods away.
"""
STRANDED: Final = 4
"""A GPU that its host cannot serve is as bad as room lost for so many typical pods. More changes nothing."""
FULL: Final = 1000  # parts of a GPU, for `fgd`
_MOST_KNOWN: Final = 2**14  # GPUs whose costs are remembered
_MOST_WEIGHT: Final = 2**37
_MOST_ACCEPTED: Final = 2**26  # pods, so that a product of them stays below 2 ** 53
_STEPS: Final = np.array([math.ceil(-1_000_000 * math.log(100 / score - 1)) for score in range(1, 100)], np.int64)
"""From which thousandth of a part on the difference has the scores 1, 2, ... 99 of `fgd`: a sigmoid."""


class Scoring(ABC):
    """A policy with what it knows of the cluster. Safe for use by many threads.

    `gpu_costs` choose the GPUs of a node, `costs` judge the node that gets them; equal GPUs go by size, by what is free
    and by index, equal nodes by name. Both are remembered under one outlook by what they are given, and read no more.
    """

    learns: ClassVar[bool] = False
    """False promises that the outlook changes nothing: a command whose policies learn nothing makes none."""

    def __init__(self, outlook: Outlook = NOTHING_KNOWN) -> None:
        self._outlook = outlook
        self._known: dict[tuple[FreeGpu, Need], int] = {}

    def of_gpus(self, asked: Sequence[tuple[FreeGpu, Need]]) -> list[int]:
        """`gpu_costs` of some GPUs, each with what is taken of it. They are remembered: there are few kinds of GPUs."""
        known = self._known
        if missing := [each for each in asked if each not in known]:
            if len(known) > _MOST_KNOWN:
                known, missing = {}, list(asked)
            mib, percent = np.array([[clipped(each, MOST_MIB) for each in need] for _, need in missing], np.int64).T
            costs = self.gpu_costs(of_gpus([gpu for gpu, _ in missing]), mib[None], percent[None])[0]
            known.update(zip(missing, costs.tolist(), strict=True))
            self._known = known
        return [known[each] for each in asked]

    @abstractmethod
    def gpu_costs(self, gpus: Gpus, mib: Ints | int, percent: Ints | int) -> Ints:
        """What is lost by taking so much of each GPU that has room for it, `[rows, places]`. Of several, it adds up."""

    @abstractmethod
    def costs(self, before: Nodes, after: Nodes) -> Ints:
        """What the cluster loses when a pod makes this of each node, `[rows, 3]`."""


class Binpack(Scoring):
    """The GPU with the least free that fits, on the node with the smallest part free."""

    def gpu_costs(self, gpus: Gpus, mib: Ints | int, percent: Ints | int) -> Ints:  # noqa: ARG002 - of the protocol
        return gpus.free

    def costs(self, before: Nodes, after: Nodes) -> Ints:  # noqa: ARG002 - of the protocol
        return _alone(WHOLE * sums(after.gpus.free) // np.maximum(sums(after.gpus.total), 1))


class Spread(Binpack):
    """The emptiest GPU, on the emptiest node."""

    def gpu_costs(self, gpus: Gpus, mib: Ints | int, percent: Ints | int) -> Ints:  # noqa: ARG002 - of the protocol
        return -gpus.free

    def costs(self, before: Nodes, after: Nodes) -> Ints:
        has_gpus = sums(after.gpus.total)[:, None] > 0
        return np.where(has_gpus, -super().costs(before, after), (-WHOLE - 1, 0, 0))


class Dense(Scoring):
    """Where a pod takes the least from the pods to come.

    The cost of a node is the value of what it loses: first of the remainders of its GPUs (`prices`). Among equals, of
    what the host can still serve of them, and of the room for typical pods (`outlook`): a GPU whose host has no CPU or
    memory left is lost as well, and only where pods that take little of both go decides how many such GPUs there will
    be. Of nodes that are alike in this, an empty one is worth more than a full one.
    """

    learns = True

    def __init__(self, outlook: Outlook = NOTHING_KNOWN) -> None:
        super().__init__(outlook)
        known = sorted(mib for mib in outlook.prices if 0 < mib <= MOST_MIB)
        self._sizes = np.array(known, np.int64)
        self._prices = np.array([outlook.prices[mib] for mib in known] + [(0,) * (SLOTS + 1)], np.int64)
        """By known sizes of GPUs; the last row is for all others."""
        self._kinds = Kinds(outlook.kinds)
        self._of_models = lru_cache(2)(self._by_model)
        self._usual = clipped(outlook.usual_mib, MOST_MIB)

    def gpu_costs(self, gpus: Gpus, mib: Ints | int, percent: Ints | int) -> Ints:
        return self.value(gpus) - self.value(gpus._replace(free=gpus.free - mib, percent=gpus.percent - percent))

    def costs(self, before: Nodes, after: Nodes) -> Ints:
        worth, left = self.worth(before.joined(after)).reshape(2, len(before), 3)
        return worth - left

    def value(self, gpus: Gpus) -> Ints:
        """Of what is free: the MiB that usual pods can fill, times `outlook.WHOLE`; 0 if no price is known.

        Memory without compute is worth no more than the compute.
        """
        by_compute = gpus.total * np.maximum(gpus.percent, 0) // 100
        free = np.minimum(np.maximum(np.minimum(gpus.free, by_compute), 0), gpus.total)
        row = np.searchsorted(self._sizes, gpus.total)
        if len(self._sizes):
            at = np.minimum(row, len(self._sizes) - 1)
            row = np.where(self._sizes[at] == gpus.total, at, len(self._sizes))
        per_mib: Ints = self._prices[row, free * SLOTS // np.maximum(gpus.total, 1)]
        return per_mib * gpus.total

    def worth(self, nodes: Nodes) -> Ints:
        """What can be lost of each node, `[rows, 3]`."""
        value = sums(self.value(nodes.gpus))
        weight, accepted, known = (each[nodes.model] for each in self._of_models(nodes.models))
        by_gpus, fit = how_many(self._kinds, nodes)
        served = sums(np.where(fit >= PART, quotient(accepted * (SERVED * PART) * fit, by_gpus), 0))
        asked = sums(np.where(by_gpus > 0, accepted, 0))
        share = np.where(asked > 0, np.minimum(PART, served // np.maximum(asked, 1)), PART)
        free = STRANDED * (value // self._usual)
        useful = np.where(known, free * share + sums(weight * fit), 0)
        left = sums(nodes.gpus.free)
        return np.stack((value, useful, left * left), axis=1)

    def _by_model(self, models: tuple[str, ...]) -> tuple[Ints, Ints, Ints]:
        """Weights of kinds, pods that accept a model, and whether it is known: `[models, kinds]` or `[models]`."""
        nothing = (0,) * len(self._kinds)
        weights, accepted = self._outlook.weights, self._outlook.accepted
        known = [model in weights and model in accepted for model in models]
        found = [
            [[clipped(number, most) for number in by_model.get(model, nothing)] for model in models]
            for by_model, most in ((weights, _MOST_WEIGHT), (accepted, _MOST_ACCEPTED))
        ]
        weight, accept = np.array(found, np.int64).reshape(2, len(models), len(nothing))
        return weight, accept, np.array(known, np.int64)


class Fgd(Scoring):
    """Fragmentation gradient descent, the policy of 'Beware of Fragmentation' (USENIX ATC 2023), to compare with.

    A node's fragment for a typical pod is what is free on its GPUs and of no use to that pod: all of it if the pod does
    not fit, else the GPUs that are too full for it. A pod goes where the mean of that over all typical pods grows the
    least. As published, the difference becomes an integer score of 0 to 100, and memory of hosts is not looked at.
    """

    learns = True

    def __init__(self, outlook: Outlook = NOTHING_KNOWN) -> None:
        super().__init__(outlook)
        typical = outlook.typical
        self.number = max(sum(typical.values()), 1)
        """Of pods in the sample, those without GPUs included."""
        gpu = FreeGpu(FULL, FULL)
        self._asks = [(ask, ask.need(gpu).memory_mib, count) for ask, count in typical.items() if ask.gpus]
        cpus = sorted({clipped(ask.cpu_milli, ENOUGH) for ask, _, _ in self._asks})
        self._cpus = np.array(cpus, np.int64)
        self._step = {cpu: step for step, cpu in enumerate(cpus, 1)}
        self._of_models = lru_cache(2)(self._by_model)
        partly, wholly = self._sums(lambda _: True)
        self._any = partly[-1] + np.where(np.arange(FULL + 1) == FULL, wholly[-1, MAX_GPUS] // MAX_GPUS, 0)

    def gpu_costs(self, gpus: Gpus, mib: Ints | int, percent: Ints | int) -> Ints:  # noqa: ARG002 - of the protocol
        """How much more of a GPU is of no use. CPU and model of its node are left to `costs`: they change little."""
        before, after = _parts(gpus), _parts(gpus._replace(free=gpus.free - mib))
        of_use: Ints = self._any[before] - self._any[after]
        return of_use - (before - after) * self.number

    def costs(self, before: Nodes, after: Nodes) -> Ints:
        """The published score, negative: the lowest cost is the highest score."""
        return _alone(-np.searchsorted(_STEPS, -self.grown(before, after) * 1000 // self.number, "right"))

    def grown(self, before: Nodes, after: Nodes) -> Ints:
        """By how much a node's fragment grows, in parts of a GPU, summed over the sample: `[rows]`."""
        freed = sums(_parts(after.gpus)) - sums(_parts(before.gpus))
        return freed * self.number - (self._usable(after) - self._usable(before))

    def _usable(self, nodes: Nodes) -> Ints:
        """What is free on a node and of use, summed over the sample."""
        partly, wholly = self._of_models(nodes.models)
        step, parts = np.searchsorted(self._cpus, nodes.cpu, "right"), _parts(nodes.gpus)
        untouched = np.minimum(sums(parts == FULL), MAX_GPUS)
        whole: Ints = wholly[nodes.model, step, untouched]
        return sums(partly[nodes.model[:, None], step[:, None], parts]) + whole

    def _by_model(self, models: tuple[str, ...]) -> tuple[Ints, Ints]:
        by_model = [self._sums(lambda ask, model=model: accepts(ask.models, model)) for model in models]  # type: ignore[misc]
        return np.stack([partly for partly, _ in by_model]), np.stack([wholly for _, wholly in by_model])

    def _sums(self, accepted: Callable[[Ask], bool]) -> tuple[Ints, Ints]:
        """What is of use, by the step of a host's CPU and by a GPU's free parts, or by the number of whole GPUs."""
        steps = len(self._cpus) + 1
        partly, wholly = np.zeros((steps, FULL + 1), np.int64), np.zeros((steps, MAX_GPUS + 1), np.int64)
        for ask, need, count in self._asks:
            if accepted(ask):
                step = self._step[clipped(ask.cpu_milli, ENOUGH)]
                if need < FULL:
                    partly[step, need] += count
                elif need == FULL and ask.gpus <= MAX_GPUS:
                    wholly[step, ask.gpus] += count
        fits = partly.cumsum(axis=0).cumsum(axis=1) * np.arange(FULL + 1)
        return fits, wholly.cumsum(axis=0).cumsum(axis=1) * np.arange(MAX_GPUS + 1) * FULL


def _alone(costs: Ints) -> Ints:
    """Costs that have no second and third part."""
    return np.pad(costs[:, None], ((0, 0), (0, 2)))


def _parts(gpus: Gpus) -> Ints:
    return np.minimum(np.maximum(gpus.free * FULL // np.maximum(gpus.total, 1), 0), FULL)


POLICIES: Final[Mapping[Policy, type[Scoring]]] = {
    Policy.BINPACK: Binpack,
    Policy.SPREAD: Spread,
    Policy.DENSE: Dense,
    Policy.FGD: Fgd,
}
"""To add one: docs/architecture.md, "Add a policy"."""
LEARNING: Final = frozenset(policy for policy, scoring in POLICIES.items() if scoring.learns)


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies under one outlook, and the one that holds for pods that name none."""

    default: Policy = DEFAULT_POLICY
    outlook: Outlook = NOTHING_KNOWN
    _made: dict[Policy, Scoring] = field(init=False, default_factory=dict, compare=False, repr=False)

    def ranks(self, shape: RequestShape | None) -> Policy:
        """Ranks nodes for a pod. One without GPUs is always kept from what GPU pods need, so by `dense`."""
        return Policy.DENSE if shape is None else shape.policy or self.default

    def ranking(self, shape: RequestShape | None) -> Scoring:
        return self.of(self.ranks(shape))

    def of(self, policy: Policy | None) -> Scoring:
        policy = policy or self.default
        found = self._made.get(policy)
        if found is None:
            found = self._made[policy] = POLICIES[policy](self.outlook)
        return found
