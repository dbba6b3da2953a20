"""Objects of a cluster -> what defragmentation looks at: which pods may move, and where each may go. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.cluster import drain, pod_records
from gpushare.cluster.budgets import Budget
from gpushare.cluster.drain import Permissions
from gpushare.cluster.pod_records import Bound
from gpushare.cluster.snapshot import Evictable, NodeState, PodToPlace, Snapshot
from gpushare.errors import InvalidRequestError
from gpushare.identity import NodeName
from gpushare.model.capacity import FreeHost
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest
from gpushare.placement.policies import Policies
from gpushare.wire import pods as pods_wire
from gpushare.wire import requests
from gpushare_cli import schedulable, world
from gpushare_cli.world import World

Object = Mapping[str, Any]
_SAFE: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The cluster, and why some of its pods stay where they are."""

    snapshot: Snapshot
    stay: Mapping[str, int]
    """Why pods may not be moved -> how many."""
    owners: Mapping[str, str]
    """UID of a pod that may move -> that of the controller that recreates it."""
    ending: Sequence[Evictable] = ()
    """Pods whose deletion was asked for, and that hold GPUs until they have ended."""


def prepare(
    wanted: Mapping[str, Object],
    known: World,
    budgets: Sequence[Budget],
    policies: Policies,
    permissions: Permissions,
) -> Prepared:
    """All nodes that take pods, and all pods that may move.

    Args:
        wanted: pods that need room, by UID.
        known: the cluster.
        budgets: the cluster's.
        policies: its policies.
        permissions: what the administrator agrees to lose.
    """
    evictable: list[Evictable] = []
    ending: list[Evictable] = []
    objects: dict[str, Object] = dict(wanted)
    owners: dict[str, str] = {}
    stay: Counter[str] = Counter()
    for value, record in known.pods:
        if not isinstance(record, Bound) or not record.holds or record.node not in known.nodes:
            continue
        request = _request(value, known)
        why = _why_not(value, record, request, permissions) or _protected(value, record, budgets)
        if record.deleting and request is not None:
            ending.append(Evictable(bound=record, pod=to_place(value, request)))
        if why or request is None:
            stay[why] += 1
            continue
        pod = to_place(value, request)
        evictable.append(Evictable(bound=record, pod=pod))
        objects[record.ref.uid] = _unbound(value)
        owners[record.ref.uid] = str((pod_records.controller_of(value) or {}).get("uid"))
    snapshot = Snapshot(
        nodes=dict(_nodes(known)),
        evictable=evictable,
        known=budgets,
        admits=_Admits(known, objects),
        policies=policies,
    )
    return Prepared(snapshot=snapshot, stay=stay, owners=owners, ending=ending)


def to_place(value: Object, request: PodRequest) -> PodToPlace:
    """A pod as placement sees it."""
    return PodToPlace(
        ref=request.pod,
        shape=request.shape,
        labels=request.labels,
        takes=FreeHost(request.cpu_milli, request.host_mib),
        sums=schedulable.requests(value),
    )


@dataclass(slots=True)
class _Admits:
    """Whether taints, selectors and the like let a pod on a node; told once for each."""

    state: World
    objects: dict[str, Object]
    _told: dict[tuple[str, NodeName], bool] = field(default_factory=dict)

    def __call__(self, pod: PodToPlace, node: NodeName) -> bool:
        key = pod.ref.uid, node
        if key not in self._told:
            value = self.objects.get(pod.ref.uid, {})
            self._told[key] = not schedulable.misplaced(value, self.state.nodes[node].facts)
        return self._told[key]


def _nodes(state: World) -> Iterator[tuple[NodeName, NodeState]]:
    for name, node in state.nodes.items():
        if not isinstance(node.ledger, NodeLedger):
            continue
        has = node.facts.allocatable
        spare = has and {resource: amount - node.requested.get(resource, 0) for resource, amount in has.items()}
        yield name, NodeState(ledger=node.ledger, host=node.host, spare=spare)


def _request(value: Object, known: World) -> PodRequest | None:
    try:
        return requests.of_pod(value, world.config_of(value, known.resource_config))
    except InvalidRequestError:
        return None


def _why_not(value: Object, record: Bound, request: PodRequest | None, permissions: Permissions) -> str:
    """Why a pod stays where it is; empty if it may move."""
    if record.deleting:
        return "are being deleted already"
    if record.allocation is None or request is None:
        return "hold GPUs in a way that cannot be moved"
    if pods_wire.annotations(value).get(_SAFE) == "false":
        return f"have the annotation {_SAFE}=false"
    if not record.owned:
        return "have no controller that would recreate them"
    if why := drain.obstacle(value, permissions):
        return f"must not be evicted: {why}"
    missing = schedulable.overlooked(value, with_host=True)
    return f"demand what is not evaluated: {', '.join(missing)}" if missing else ""


def _protected(value: Object, record: Bound, budgets: Sequence[Budget]) -> str:
    """Why the API server would never evict a pod; empty if it does some time."""
    several = sum(budget.selects(record) for budget in budgets) > 1 and not drain.is_unstarted(value)
    return "have several budgets, and the API server evicts no such pod" if several else ""


def _unbound(value: Object) -> Object:
    """The pod as its successor will be: on no node."""
    return {**value, "spec": {key: field for key, field in value["spec"].items() if key != "nodeName"}}
