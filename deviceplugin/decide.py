"""May this container start? A list of small checks over what was gathered. Pure; every refusal says what to do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from deviceplugin import books
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import ContainerName, NodeName
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.wire import pods

_AGAIN: Final = "delete the pod and create it again"
_WEBHOOK: Final = names.WEBHOOK_SERVICE
_CONTROLLER: Final = names.CONTROLLER_SERVICE


class Reason(Enum):
    """Why a container may not start; for logs and programs."""

    UNIDENTIFIED = "Unidentified"
    KUBELET_SILENT = "KubeletSilent"
    API_SILENT = "ApiSilent"
    UNKNOWN_POD = "UnknownPod"
    OTHER_NODE = "OtherNode"
    NOT_BOUND = "NotBound"
    UNREADABLE = "Unreadable"
    NOT_GRANTED = "NotGranted"
    NOT_MUTATED = "NotMutated"
    TAMPERED = "Tampered"
    WRONG_AMOUNT = "WrongAmount"
    GPU_GONE = "GpuGone"
    GPU_UNHEALTHY = "GpuUnhealthy"
    OVER_COMMITTED = "OverCommitted"


@dataclass(frozen=True, slots=True)
class Accept:
    """The container starts, with the GPUs of its grant."""

    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The container does not start; the kubelet tries again later."""

    reason: Reason
    message: str


Decision = Accept | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A container about to start, and what is known about its pod and node."""

    pod: pods.Pod
    containers: tuple[ContainerName, ...]
    """Those that may be the one that starts: each has to be in order."""
    devices: int
    """How many device IDs the kubelet gave to it."""
    node: NodeName
    inventory: NodeInventory
    others: Sequence[pods.Pod] = ()
    """All pods of the node that are known; the pod itself may be among them."""


def decide(start: Start) -> Decision:
    """Accept, or the first reason against it."""
    who = f"pod {pods.ref(start.pod)}"
    bound_to = pods.node_of(start.pod)
    if bound_to != start.node:
        return Refuse(Reason.OTHER_NODE, f"{who} is on node {bound_to}, not on {start.node}; {_AGAIN}")
    try:
        allocation = _allocation(start)
    except WireError as error:
        return Refuse(Reason.UNREADABLE, f"{who}: {error}; {_AGAIN}")
    if allocation is None:
        return Refuse(Reason.NOT_BOUND, _not_bound(who, start.pod))
    grants: list[Grant] = []
    for name in start.containers:
        found = _container(start, allocation, name)
        if isinstance(found, Refuse):
            return found
        grants.append(found)
    shortage = books.shortage(start.pod, allocation, inventory=start.inventory, others=start.others)
    if shortage:
        return Refuse(Reason.OVER_COMMITTED, f"{who}: {shortage}; {_AGAIN}, so that it is placed where there is room")
    return Accept(tuple(grants))


def unknown_pod(what: str, node: NodeName) -> Refuse:
    """No such pod could be found.

    Args:
        what: how the kubelet names it.
        node: this one.
    """
    return Refuse(
        Reason.UNKNOWN_POD,
        f"the API server knows no {what} on node {node}; if it is a static pod, make it a Deployment or a DaemonSet:"
        f" static pods cannot ask for {names.GPU_MEM}",
    )


def _allocation(start: Start) -> Allocation | None:
    """What this system granted; what another one granted is none of it, because it does not name GPUs by UUID."""
    if names.ANNOTATION_ALLOCATION not in pods.annotations(start.pod):
        return None
    return pods.allocation(start.pod, start.inventory.unit)


def _not_bound(who: str, pod: pods.Pod) -> str:
    scheduler = pod["spec"].get("schedulerName") or "nobody"
    return (
        f"{who} was never given a GPU by {_CONTROLLER}: it was scheduled by {scheduler}; {_AGAIN} without"
        f" spec.nodeName and with the scheduler {names.SCHEDULER} ({_WEBHOOK} sets it when it is running)"
    )


def _container(start: Start, allocation: Allocation, name: ContainerName) -> Grant | Refuse:
    who = f"container {name} of pod {allocation.pod}"
    grant = allocation.of(name)
    if grant is None:
        given = ", ".join(grant.container for grant in allocation.grants) or "none"
        return Refuse(
            Reason.NOT_GRANTED,
            f"{who} was given no GPU (containers that were: {given}), although it holds {names.GPU_MEM}; {_AGAIN}",
        )
    for check in _CHECKS:
        refusal = check(start, grant, who)
        if refusal is not None:
            return refusal
    return grant


def _takes_its_grant(start: Start, grant: Grant, who: str) -> Refuse | None:
    """Of variables with the same name the last one counts."""
    container = next((spec for _, _, spec in pods.containers(start.pod) if spec["name"] == grant.container), {})
    values = [entry for entry in container.get("env") or () if entry.get("name") == names.ENV_VISIBLE_DEVICES]
    wanted = f"metadata.annotations['{names.PREFIX_DEVICES}{grant.container}']"
    if values and _field_path(values[-1]) == wanted:
        return None
    return Refuse(
        Reason.NOT_MUTATED,
        f"{who} does not take {names.ENV_VISIBLE_DEVICES} from {wanted}: {_WEBHOOK} did not change the pod, so"
        f" its author or its image would decide which GPU it sees; {_AGAIN} while {_WEBHOOK} is running",
    )


def _field_path(variable: Mapping[str, Any]) -> object:
    source = variable.get("valueFrom") or {}
    return (source.get("fieldRef") or {}).get("fieldPath")


def _annotations_match(start: Start, grant: Grant, who: str) -> Refuse | None:
    found = pods.annotations(start.pod)
    expected = {
        names.PREFIX_DEVICES + grant.container: ",".join(grant.gpus),
        names.PREFIX_MEMORY + grant.container: str(grant.memory_mib),
    }
    for key, value in expected.items():
        if found.get(key) != value:
            return Refuse(
                Reason.TAMPERED,
                f"{who}: annotation {key} says {found.get(key)!r}, but its allocation says {value!r}: it was changed"
                f" after the pod was bound; {_AGAIN}",
            )
    return None


def _amounts_match(start: Start, grant: Grant, who: str) -> Refuse | None:
    unit = start.inventory.unit
    granted = unit.ceil(grant.memory_mib) * len(grant.gpus)
    if granted == start.devices:
        return None
    return Refuse(
        Reason.WRONG_AMOUNT,
        f"{who} holds {names.GPU_MEM}: {start.devices}, but was granted {grant.memory_mib} MiB on each of"
        f" {', '.join(grant.gpus)}, which counts as {granted} in units of {unit.name}; if the node's memory unit was"
        f" changed since, {_AGAIN}",
    )


def _gpus_work(start: Start, grant: Grant, who: str) -> Refuse | None:
    for uuid in grant.gpus:
        gpu = start.inventory.by_uuid.get(uuid)
        if gpu is None:
            return Refuse(
                Reason.GPU_GONE,
                f"{who}: GPU {uuid} is gone from node {start.node}; {_AGAIN}, so that it gets another one",
            )
        if gpu.health is not GpuHealth.HEALTHY:
            return Refuse(
                Reason.GPU_UNHEALTHY,
                f"{who}: GPU {uuid} (number {gpu.index}) of node {start.node} is unhealthy; {_AGAIN}, so that it gets"
                " another one",
            )
    return None


_CHECKS: Final[Sequence[Callable[[Start, Grant, str], Refuse | None]]] = (
    _takes_its_grant,
    _annotations_match,
    _gpus_work,
    _amounts_match,
)
