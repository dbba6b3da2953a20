"""Which pods can be evicted: those that hold a GPU, and those whose move makes room for another pod."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Final, TextIO

from gpushare import names
from gpushare.cluster import budgets, node_records, pod_records
from gpushare.cluster.budgets import Budget
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.errors import InvalidRequestError, SettingsError, UnknownGpuError, WireError
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest
from gpushare.units import ResourceConfig
from gpushare.wire import fields, pods as pods_wire, requests
from gpushare_cli import reading, schedulable, world
from gpushare_cli.evict import move_search
from gpushare_cli.evict.gpu_cordon import GpuName, inventory_of
from gpushare_cli.evict.move_search import Evictable, Movable, Plan
from gpushare_cli.reading import Target
from gpushare_cli.simulate import objects, workloads
from gpushare_cli.world import World

Object = Mapping[str, Any]
_NAMED: Final = 3
_SAFE: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_MIRROR: Final = "kubernetes.io/config.mirror"


class Step(Enum):
    EVICT = "evict"
    WAIT = "wait"  # a budget does not allow it now; it is asked again
    LEAVING = "leaving"  # its deletion was asked for before; its end is awaited
    STAY = "stay"  # nothing that the drain may do makes it leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:  # what the administrator agrees to lose, in kubectl drain's words
    force: bool = False  # pods that nothing recreates
    delete_emptydir_data: bool = False  # what pods keep in emptyDir volumes


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:  # a pod that holds something of the GPU, or may do so, and what becomes of it
    bound: Bound
    memory_mib: int  # of the GPU, or of its instances together
    step: Step
    why: str = ""  # it waits, leaves or stays
    unstarted: bool = False  # its phase is Pending: the eviction API asks no budget then
    ready: bool = True  # its containers are; some budgets do not count it else

    @property
    def pod(self) -> PodRef:
        return self.bound.ref


def _obstacle(pod: Object, permissions: Permissions) -> str:
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


def _is_unstarted(pod: Object) -> bool:
    return fields.text(fields.mapping(pod, "status", "pod"), "phase", "status") == "Pending"


def steps(occupants: Iterable[Occupant], known: Sequence[Budget]) -> tuple[Occupant, ...]:
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


def on_gpu(api: KubeApi, gpu: GpuName, permissions: Permissions, known: tuple[Gpu, ...] = ()) -> Occupied:
    """A GPU and its pods. `known` is what its name stood for before: numbers change when a GPU fails."""
    objects = reading.on_nodes(api, gpu.node)
    record = node_records.read(objects.nodes[0])
    inventory = inventory_of(record)
    gpus = known or node_records.gpus_named(inventory, gpu.gpu)
    if not known and any(each in inventory.dra for each in gpus):
        way_out = f"gpushare cordon keeps new ones away; delete the pods of those in gpushare inspect {gpu.node} -d"
        raise UnknownGpuError(f"GPU {gpu} is shared by ResourceClaims: {way_out}")
    found = (_occupant(pod, inventory, gpus, permissions) for pod in objects.pods)
    entries = set(node_records.entries(record.cordon.gpus))
    return Occupied(
        gpus=gpus,
        occupants=tuple(one for one in found if one is not None),
        cordoned=all(node_records.gpu_names(gpu) & entries for gpu in gpus),
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
    elif found := unclear or _obstacle(pod, permissions):
        step, why = Step.STAY, found
    ready = fields.is_true(pod, "Ready", "pod")
    unstarted = _is_unstarted(pod)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragRequest:
    pod: Object
    exists: bool  # the API server knows it; else it is from a file
    installation: str
    permissions: Permissions
    most: int

    @property
    def name(self) -> str:
        return str(pods_wire.ref(self.pod))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    fits: tuple[NodeName, ...]  # nodes that have room already
    soon: tuple[NodeName, ...]  # nodes that have it as soon as pods have ended whose deletion was asked for
    plan: Plan | None
    stay: Mapping[str, int]
    why_not: str  # why it fits nowhere, in the controller's words
    notes: tuple[str, ...]


def waiting(api: KubeApi, target: Target, namespace: str) -> Object:
    """The named pod, or the first of a workload's pods that wait."""
    pods = reading.pods_of(api, target.kind, namespace, target.name)
    if target.kind != reading.POD:
        waits = [pod for pod in pods if not (pods_wire.node_of(pod) or pod["metadata"].get("deletionTimestamp"))]
        pods = sorted(waits, key=lambda pod: str(pod["metadata"]["name"]))[:1]
        if not pods:
            raise SettingsError(f"{target.kind} {namespace}/{target.name} has no pod that waits for a node")
    [pod] = pods
    what = f"pod {namespace}/{pod['metadata']['name']}"
    if node := pods_wire.node_of(pod):
        raise SettingsError(f"{what} is on {node} already")
    if pod["metadata"].get("deletionTimestamp"):
        raise SettingsError(f"{what} is being deleted")
    if gates := schedulable.gates(pod):
        raise SettingsError(f"{what} waits for others to remove its scheduling gates: {', '.join(gates)}")
    return pod


def from_file(path: str, stdin: TextIO) -> Object:
    """The pod of a manifest, or that of a workload with one replica."""
    name, documents = objects.read_file(path, stdin)
    made, _ = workloads.expand(objects.collect([(name, documents)]).wanted, (), ())
    if len(made) != 1:
        raise SettingsError(f"{name}: has {len(made)} pods; give one pod, or a workload with one replica")
    return made[0].value


def look(api: KubeApi, asked: DefragRequest) -> Assessment:
    """Read the cluster and decide. Changes nothing."""
    found, request, movable, note = _read(api, asked)
    pod = world.to_place(asked.pod, request)
    fits = movable.fits(pod)
    soon = () if fits else movable.without(movable.ending).fits(pod)
    plan = None if fits or soon else move_search.plan(pod, movable, most=asked.most)
    answers = () if fits or soon or plan else world.ask(found, asked.pod, request, movable.policies)
    missing = schedulable.overlooked(asked.pod, with_host=True)
    notes = [*found.objects.notes, note, f"not evaluated: {', '.join(missing)}" if missing else ""]
    rivals = [
        str(record.ref)
        for value, record in found.pods
        if isinstance(record, Pending) and record.request and record.ref != pod.ref and not schedulable.gates(value)
    ]
    if plan and rivals:
        which = ", ".join(rivals[:_NAMED]) + (", ..." if len(rivals) > _NAMED else "")
        notes.append(f"other pods wait for GPUs ({which}); kube-scheduler may give the room to one of them")
    return Assessment(
        fits=fits,
        soon=soon,
        plan=plan,
        stay=movable.stay,
        why_not=world.summary(answers) if answers else "",
        notes=tuple(notes),
    )


def remainder(api: KubeApi, asked: DefragRequest, begun: Plan, left: Sequence[PodUid]) -> Plan | None:
    """What of a plan is still to be done; None if it no longer can. No other plan is made: that takes too long here."""
    _, request, movable, _ = _read(api, asked)
    return move_search.remainder(world.to_place(asked.pod, request), movable, begun, left)


def _read(api: KubeApi, asked: DefragRequest) -> tuple[World, PodRequest, Movable, str]:
    ref = pods_wire.ref(asked.pod)
    read = reading.everything(api)
    budgets, note = reading.budgets(api)
    found = world.of(read, reading.settings(api, asked.installation, ref.namespace))
    try:
        request = requests.of_pod(asked.pod, world.config_of(asked.pod, found.resource_config))
    except InvalidRequestError as error:
        raise SettingsError(f"pod {asked.name}: {error}") from error
    if request is None:
        raise SettingsError(f"pod {asked.name} asks for no GPU")
    return found, request, prepare(found, budgets, asked.permissions, {ref.uid: asked.pod}), note


def prepare(
    found: World, budgets: Sequence[Budget], permissions: Permissions, wanted: Mapping[PodUid, Object] | None = None
) -> Movable:
    """All nodes that take pods, and all pods that may move; `wanted` are those that need room."""
    evictable: list[Evictable] = []
    ending: list[Evictable] = []
    values: dict[PodUid, Object] = dict(wanted or {})
    stay: Counter[str] = Counter()
    for value, record in found.pods:
        if not isinstance(record, Bound) or not record.holds or record.node not in found.nodes:
            continue
        request = world.request_of(value, world.config_of(value, found.resource_config))
        why = _why_not(value, record, request, permissions, budgets)
        if request is not None and (record.deleting or not why):
            owner = str((pod_records.controller_of(value) or {}).get("uid"))
            one = Evictable(bound=record, pod=world.to_place(value, request), owner=owner)
            (ending if record.deleting else evictable).append(one)
            values[record.ref.uid] = world.unbound(value)
        if why:
            stay[why] += 1

    @cache
    def admits(pod: PodUid, node: NodeName) -> bool:
        return not schedulable.misplaced(values[pod], found.nodes[node].facts)

    return Movable(
        nodes={name: node for name, node in found.nodes.items() if isinstance(node.ledger, NodeLedger)},
        evictable=evictable,
        budgets=budgets,
        admits=lambda pod, node: admits(pod.ref.uid, node),
        policies=found.policies(),
        ending=ending,
        stay=stay,
    )


def _why_not(
    value: Object, record: Bound, request: PodRequest | None, permissions: Permissions, budgets: Sequence[Budget]
) -> str:
    """Why a pod stays where it is; empty if it may move."""
    if record.deleting:
        return "are being deleted already"
    if record.allocation is None or request is None:
        return "hold GPUs in a way that cannot be moved"
    if pods_wire.annotations(value).get(_SAFE) == "false":
        return f"have the annotation {_SAFE}=false"
    if not record.owned:
        return "have no controller that would recreate them"
    if why := _obstacle(value, permissions):
        return f"must not be evicted: {why}"
    if missing := schedulable.overlooked(value, with_host=True):
        return f"demand what is not evaluated: {', '.join(missing)}"
    several = sum(budget.selects(record) for budget in budgets) > 1 and not _is_unstarted(value)
    return "have several budgets, and the API server evicts no such pod" if several else ""
