"""One look at the cluster: which pod needs room, which others may move, and what makes room."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TextIO

from gpushare.cluster import pod_records
from gpushare.cluster.budgets import Budget
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.errors import InvalidRequestError, SettingsError
from gpushare.identity import NodeName, PodUid
from gpushare.kube.api import KubeApi
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest
from gpushare.wire import pods as pods_wire
from gpushare.wire import requests
from gpushare_cli import reading, schedulable, world
from gpushare_cli.evict import move_search, occupants
from gpushare_cli.evict.move_search import Evictable, Movable, Plan
from gpushare_cli.evict.occupants import Permissions
from gpushare_cli.reading import Target
from gpushare_cli.simulate import objects, workloads
from gpushare_cli.world import World

Object = Mapping[str, Any]
_NAMED: Final = 3
_SAFE: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"


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


def named(api: KubeApi, target: Target, namespace: str) -> Object:
    if target.kind != reading.POD:
        raise SettingsError(f"{target.kind}/{target.name}: name one pod, or give its manifest with -f")
    (pod,) = reading.pods_of(api, target.kind, namespace, target.name)
    what = f"pod {namespace}/{target.name}"
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
        request = _request(value, found)
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


def _request(value: Object, found: World) -> PodRequest | None:
    try:
        return requests.of_pod(value, world.config_of(value, found.resource_config))
    except InvalidRequestError:
        return None


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
    if why := occupants.obstacle(value, permissions):
        return f"must not be evicted: {why}"
    if missing := schedulable.overlooked(value, with_host=True):
        return f"demand what is not evaluated: {', '.join(missing)}"
    several = sum(budget.selects(record) for budget in budgets) > 1 and not occupants.is_unstarted(value)
    return "have several budgets, and the API server evicts no such pod" if several else ""
