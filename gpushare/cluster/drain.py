"""Which pods of a GPU can be evicted now, which have to wait, and which stay, with the reason. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from gpushare.cluster import budgets, pod_records
from gpushare.cluster.budgets import Budget
from gpushare.cluster.pod_records import Bound
from gpushare.identity import PodRef
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire

_MIRROR: Final = "kubernetes.io/config.mirror"


class Step(Enum):
    """What a drain does about a pod."""

    EVICT = "evict"
    WAIT = "wait"
    """A budget does not allow it now; it is asked again."""
    LEAVING = "leaving"
    """Its deletion was asked for before; its end is awaited."""
    STAY = "stay"
    """Nothing that the drain may do makes it leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What the administrator agrees to lose, in kubectl drain's words."""

    force: bool = False
    """Pods that nothing recreates."""
    delete_emptydir_data: bool = False
    """What pods keep in emptyDir volumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A pod that holds something of the GPU, or may do so."""

    bound: Bound
    memory_mib: int
    """Of the GPU, or of its instances together."""
    obstacle: str = ""
    """Why it cannot be evicted, whatever budgets say."""
    unstarted: bool = False
    """Its phase is Pending: the eviction API asks no budget then."""
    ready: bool = True
    """Its containers are; some budgets do not count it else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a drain does about one pod."""

    pod: PodRef
    memory_mib: int
    step: Step
    why: str = ""
    """Empty if it is evicted."""


def obstacle(pod: Mapping[str, Any], permissions: Permissions) -> str:
    """Why a pod must not be evicted, or would not leave; empty if nothing speaks against it."""
    spec = fields.mapping(pod, "spec", "pod")
    if _MIRROR in pods_wire.annotations(pod):
        return "the kubelet runs it from a file of its node; remove that file"
    if not permissions.force and pod_records.controller_of(pod) is None:
        return "nothing recreates it; --force deletes it for good"
    volumes = [
        fields.text(volume, "name", "spec.volumes")
        for volume in fields.objects(spec, "volumes", "spec")
        if "emptyDir" in volume
    ]
    if volumes and not permissions.delete_emptydir_data:
        which = ", ".join(volumes)
        return f"it would lose what it keeps in emptyDir volumes ({which}); --delete-emptydir-data accepts that"
    return ""


def is_unstarted(pod: Mapping[str, Any]) -> bool:
    """Whether its phase is Pending."""
    return fields.text(fields.mapping(pod, "status", "pod"), "phase", "status") == "Pending"


def plan(occupants: Iterable[Occupant], known: Sequence[Budget]) -> tuple[Row, ...]:
    """What is done about each pod, in the order in which they are evicted: the least important first.

    Budgets are used up in that order, as the API server does it.
    """
    ordered = sorted(occupants, key=lambda one: _rank(one.bound))
    broken = budgets.broken([one.bound for one in ordered if _uses_a_budget(one, known)], known)
    return tuple(_row(one, _budgets_of(one, known), broken.get(one.bound.ref.uid)) for one in ordered)


def _row(one: Occupant, own: Sequence[Budget], broken: Budget | None) -> Row:
    def row(step: Step, why: str = "") -> Row:
        return Row(pod=one.bound.ref, memory_mib=one.memory_mib, step=step, why=why)

    if one.bound.deleting:
        return row(Step.LEAVING, "its deletion was asked for; its containers are ending")
    if one.obstacle:
        return row(Step.STAY, one.obstacle)
    if len(own) > 1:
        which = ", ".join(sorted(budget.name for budget in own))
        return row(Step.STAY, f"several budgets select it ({which}), and the API server evicts no such pod; leave one")
    if broken is not None:
        return row(Step.WAIT, f"budget {broken.name} allows no more evictions now")
    return row(Step.EVICT)


def _uses_a_budget(one: Occupant, known: Sequence[Budget]) -> bool:
    own = _budgets_of(one, known)
    return not one.obstacle and not one.bound.deleting and len(own) == 1 and (one.ready or not own[0].spares_unready)


def _budgets_of(one: Occupant, known: Sequence[Budget]) -> Sequence[Budget]:
    return [] if one.unstarted else [budget for budget in known if budget.selects(one.bound)]


def _rank(pod: Bound) -> tuple[int, tuple[int, ...], str, str]:
    """Low priority first, then the youngest, as preemption chooses."""
    return pod.priority, tuple(-ord(each) for each in pod.created), pod.ref.namespace, pod.ref.name
