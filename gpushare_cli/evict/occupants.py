"""Who holds something of a GPU, and which of these pods can be evicted now, have to wait, or stay, with the reason."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from gpushare import names
from gpushare.cluster import budgets, cordons, node_records, pod_records
from gpushare.cluster.budgets import Budget
from gpushare.cluster.pod_records import Bound
from gpushare.errors import WireError
from gpushare.identity import PodRef
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.units import ResourceConfig
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import reading, world
from gpushare_cli.evict.gpu_cordon import GpuName, inventory_of

_MIRROR: Final = "kubernetes.io/config.mirror"


class Step(Enum):
    EVICT = "evict"
    WAIT = "wait"  # a budget does not allow it now; it is asked again
    LEAVING = "leaving"  # its deletion was asked for before; its end is awaited
    STAY = "stay"  # nothing that the drain may do makes it leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What the administrator agrees to lose, in kubectl drain's words."""

    force: bool = False  # pods that nothing recreates
    delete_emptydir_data: bool = False  # what pods keep in emptyDir volumes


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A pod that holds something of the GPU, or may do so, and what becomes of it."""

    bound: Bound
    memory_mib: int  # of the GPU, or of its instances together
    step: Step
    why: str = ""  # it waits, leaves or stays
    unstarted: bool = False  # its phase is Pending: the eviction API asks no budget then
    ready: bool = True  # its containers are; some budgets do not count it else

    @property
    def pod(self) -> PodRef:
        return self.bound.ref


def obstacle(pod: Mapping[str, Any], permissions: Permissions) -> str:
    """Why a pod must not be evicted, or would not leave; empty if nothing speaks against it."""
    spec = fields.mapping(pod, "spec", "pod")
    if _MIRROR in pods_wire.annotations(pod):
        return "the kubelet runs it from a file of its node; remove that file"
    if not permissions.force and pod_records.controller_of(pod) is None:
        return "nothing recreates it; --force deletes it for good"
    volumes = [volume for volume in fields.objects(spec, "volumes", "spec") if "emptyDir" in volume]
    if volumes and not permissions.delete_emptydir_data:
        which = ", ".join(fields.text(volume, "name", "spec.volumes") for volume in volumes)
        return f"it would lose what it keeps in emptyDir volumes ({which}); --delete-emptydir-data accepts that"
    return ""


def is_unstarted(pod: Mapping[str, Any]) -> bool:
    return fields.text(fields.mapping(pod, "status", "pod"), "phase", "status") == "Pending"


def plan(occupants: Iterable[Occupant], known: Sequence[Budget]) -> tuple[Occupant, ...]:
    """What is done about each pod, the least important first; budgets are used up in that order."""
    ordered = [
        (one, [] if one.unstarted else [budget for budget in known if budget.selects(one.bound)])
        for one in sorted(occupants, key=lambda one: _rank(one.bound))
    ]
    counted = [
        one.bound
        for one, own in ordered
        if one.step is Step.EVICT and len(own) == 1 and (one.ready or not own[0].spares_unready)
    ]
    broken = budgets.broken(counted, known)
    return tuple(_protected(one, own, broken.get(one.pod.uid)) for one, own in ordered)


def _protected(one: Occupant, own: Sequence[Budget], broken: Budget | None) -> Occupant:
    if one.step is Step.EVICT and len(own) > 1:
        which = ", ".join(sorted(budget.name for budget in own))
        why = f"several budgets select it ({which}), and the API server evicts no such pod; leave one"
        return replace(one, step=Step.STAY, why=why)
    if broken is not None:
        return replace(one, step=Step.WAIT, why=f"budget {broken.name} allows no more evictions now")
    return one


def _rank(pod: Bound) -> tuple[int, tuple[int, ...], str, str]:
    """Low priority first, then the youngest, as preemption chooses."""
    return pod.priority, tuple(-ord(each) for each in pod.created), pod.ref.namespace, pod.ref.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    gpus: tuple[Gpu, ...]  # several if it is partitioned
    occupants: tuple[Occupant, ...]
    cordoned: bool  # whether new pods are kept away from all of it
    notes: tuple[str, ...]


def read(api: KubeApi, gpu: GpuName, permissions: Permissions, known: tuple[Gpu, ...] = ()) -> Occupied:
    """A GPU and its pods. `known` is what its name stood for before: numbers change when a GPU fails."""
    objects = reading.on_nodes(api, gpu.node)
    record = node_records.read(objects.nodes[0])
    inventory = inventory_of(record)
    gpus = known or cordons.meant(inventory, gpu.gpu)
    found = (_occupant(pod, inventory, gpus, permissions) for pod in objects.pods)
    entries = set(cordons.entries(record.cordon.gpus))
    return Occupied(
        gpus=gpus,
        occupants=tuple(one for one in found if one is not None),
        cordoned=all(cordons.names_of(gpu) & entries for gpu in gpus),
        notes=objects.notes,
    )


def _occupant(
    pod: JsonObject, inventory: NodeInventory, gpus: Sequence[Gpu], permissions: Permissions
) -> Occupant | None:
    bound = world.record(pod, ResourceConfig(unit=inventory.unit))
    if not isinstance(bound, Bound):
        return None
    held_mib, unclear = _held(bound, inventory, gpus)
    if held_mib is None:
        return None
    step, why = Step.EVICT, ""
    if bound.deleting:
        step, why = Step.LEAVING, "its deletion was asked for; its containers are ending"
    elif found := unclear or obstacle(pod, permissions):
        step, why = Step.STAY, found
    ready = fields.is_true(pod, "Ready", "pod")
    unstarted = is_unstarted(pod)
    return Occupant(bound=bound, memory_mib=held_mib, step=step, why=why, unstarted=unstarted, ready=ready)


def _held(bound: Bound, inventory: NodeInventory, gpus: Sequence[Gpu]) -> tuple[int | None, str]:
    """MiB of these GPUs, or why no one can tell; None if it holds nothing of them."""
    if pod_records.has_foreign_gpus(bound):
        return 0, f"it has {names.GPU} of another plugin, and no one can tell which; delete it if it uses this GPU"
    try:
        allocation = pod_records.held(bound, inventory.unit)
    except WireError as error:
        return 0, f"what it holds cannot be read ({error}); delete it if it uses this GPU"
    if allocation is None:
        return None, ""
    held_mib = NodeLedger.of(inventory, [allocation]).used_mib
    here = [held_mib[gpu.uuid] for gpu in gpus if gpu.uuid in held_mib]
    return (sum(here) if here else None), ""
