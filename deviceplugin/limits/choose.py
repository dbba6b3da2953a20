"""Which back end holds the limits on each GPU of this node. Pure."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from deviceplugin.limits.backend import PROVEN, Proofs
from gpushare import names
from gpushare.identity import GpuUuid
from gpushare.model.gpu import NO_LIMIT, Gpu, GpuHealth, Limit, NodeInventory

AUTO: Final = "auto"
_LONGEST: Final = 200  # of why one back end does not hold, as it is published
_NOT_ASKED: Final = "the order of limits of this node leaves it out or puts it later"
_AUTO: Final = (Limit.MIG, Limit.CGROUP, Limit.MPS, Limit.HAMI_CORE, Limit.ADVISORY)
Order = tuple[Limit, ...]  # back ends that may be used, first choice first
ProofsOfAll = Mapping[Limit, Proofs]


def order(text: str) -> Order:
    """Read `auto`, or names with commas between them; mig, which the hardware holds, may be left out. ValueError."""
    if text == AUTO:
        return _AUTO
    chosen = [word.strip() for word in text.split(",")]
    known = {limit.value: limit for limit in _AUTO}
    if not set(chosen) <= known.keys() or len(set(chosen)) != len(chosen):
        raise ValueError(f"write {AUTO}, or some of {', '.join(known)}, each once, with commas between them")
    return tuple(dict.fromkeys((Limit.MIG, *(known[word] for word in chosen))))


class OnFailure(Enum):
    """What happens if the chosen back end fails when a container starts."""

    REFUSE = "refuse"  # the container does not start; the kubelet tries again
    NEXT = "next"  # the next back end that works on the GPU holds the limit


@dataclass(frozen=True, slots=True)
class ChosenLimits:
    candidates: Mapping[GpuUuid, Order] = field(default_factory=dict)  # what works on each GPU, first choice first
    problems: Mapping[GpuUuid, str] = field(default_factory=dict)  # why nothing works, where nothing does
    why_not_stronger: Mapping[GpuUuid, str] = field(default_factory=dict)  # than the first choice, where that is so


def choose(gpus: Sequence[Gpu], wanted: Order, proofs: ProofsOfAll) -> ChosenLimits:
    candidates = {
        gpu.uuid: tuple(limit for limit in wanted if proofs.get(limit, {}).get(gpu.uuid, "no") == PROVEN)
        for gpu in gpus
    }
    problems = {gpu.uuid: _problem(gpu, wanted, proofs) for gpu in gpus if not candidates[gpu.uuid]}
    limited = {gpu: candidates[gpu.uuid][0] for gpu in gpus if candidates[gpu.uuid]}
    weaker = {gpu.uuid: why for gpu, first in limited.items() if (why := _why_not_stronger(gpu, first, proofs))}
    return ChosenLimits(candidates, problems, weaker)


def only_mps_on(proofs: ProofsOfAll, exclusive: Proofs) -> ProofsOfAll:
    """The proofs, where nothing but MPS works on GPUs that programs cannot use side by side."""
    return {
        limit: of_gpus if limit is Limit.MPS else {gpu: exclusive.get(gpu, why) for gpu, why in of_gpus.items()}
        for limit, of_gpus in proofs.items()
    }


Failed = frozenset[tuple[Limit, GpuUuid]]  # back ends that worked on a GPU, and then did not once


def with_second_try(proofs: ProofsOfAll, before: ChosenLimits, failed: Failed) -> tuple[ProofsOfAll, Failed]:
    """The proofs with a second try for what worked before, and what gets one.

    Meanwhile it still has to hold limits: one answer that went wrong must not weaken those of what starts just then.
    """
    fresh = {
        (limit, gpu)
        for limit, of_gpus in proofs.items()
        for gpu, why in of_gpus.items()
        if why != PROVEN and limit in before.candidates.get(gpu, ())
    } - failed
    kept = {
        limit: {gpu: PROVEN if (limit, gpu) in fresh else why for gpu, why in of_gpus.items()}
        for limit, of_gpus in proofs.items()
    }
    return kept, frozenset(fresh)


def _problem(gpu: Gpu, wanted: Order, proofs: ProofsOfAll) -> str:
    known = [limit for limit in _possible(gpu, wanted) if gpu.uuid in proofs.get(limit, {})]
    return f"{NO_LIMIT}: " + "; ".join(f"{limit.value}: {proofs[limit][gpu.uuid]}" for limit in known)


def _why_not_stronger(gpu: Gpu, first: Limit, proofs: ProofsOfAll) -> str:
    lacks = {limit: proofs.get(limit, {}).get(gpu.uuid) or _NOT_ASKED for limit in _possible(gpu, _AUTO)}
    stronger = itertools.takewhile(lambda limit: limit is not first, lacks)
    return "; ".join(f"{limit.value}: {lacks[limit]:.{_LONGEST}}" for limit in stronger)


def _possible(gpu: Gpu, limits: Order) -> Order:
    """Without what a whole GPU can never have."""
    return tuple(limit for limit in limits if gpu.mig or limit is not Limit.MIG)


def with_limits(inventory: NodeInventory, chosen: ChosenLimits) -> NodeInventory:
    """The inventory with what holds the limits. A GPU on which nothing wanted works takes no new containers."""

    def limited(gpu: Gpu) -> Gpu:
        if gpu.uuid in chosen.problems and gpu.health is GpuHealth.HEALTHY:
            return replace(gpu, health=GpuHealth.UNHEALTHY, reason=chosen.problems[gpu.uuid], limit=Limit.ADVISORY)
        candidates, why = chosen.candidates.get(gpu.uuid), chosen.why_not_stronger.get(gpu.uuid, "")
        return replace(gpu, limit=candidates[0], limit_reason=why) if candidates else gpu

    return replace(inventory, gpus=tuple(map(limited, inventory.gpus)))


def wanted(setting: Order, label: str) -> tuple[Order, str]:
    """The order that counts on this node, and what is wrong with its label; dots stand there in place of commas."""
    if not label:
        return setting, ""
    try:
        return order(label.replace(".", ",")), ""
    except ValueError as error:
        return setting, f"label {names.LABEL_LIMITS}={label}: {error}; in a label, write dots instead of commas"
