"""May this container start? Every check, in order. Pure; every refusal says what to do."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from deviceplugin import pods, resources
from deviceplugin.cdi import ContainerEdits
from deviceplugin.resources import Resource
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import ContainerName, GpuUuid, NodeName
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.model.ledger import Allocation, Grant, NodeLedger
from gpushare.units import ResourceConfig
from gpushare.wire import allocations, interop, pods as wire
from gpushare.wire.pods import Pod

RECREATE_POD: Final = "delete the pod and create it again"
_WEBHOOK: Final = names.WEBHOOK_SERVICE
_CONTROLLER: Final = names.CONTROLLER_SERVICE
_LONGEST: Final = 2048  # characters of a message: it travels in a header, which may hold 8 KiB, and is remembered


class Reason(Enum):
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
    NOT_LIMITED = "NotLimited"
    LATE = "Late"
    NOT_HANDED_OVER = "NotHandedOver"


@dataclass(frozen=True, slots=True)
class Accept:
    grants: tuple[Grant, ...]
    grants_of_pod: tuple[Grant, ...] = field(default=(), compare=False)  # of all containers of the pod
    limits: Mapping[ContainerName, ContainerEdits] = field(default_factory=dict, compare=False)  # hold it to its share


@dataclass(frozen=True, slots=True)
class Refuse:
    """The container does not start; the kubelet tries again later."""

    reason: Reason
    message: str  # cut, because it quotes what authors of pods have written

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", self.message[:_LONGEST])


Decision = Accept | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    pod: Pod
    containers: tuple[ContainerName, ...]  # those that may be the one that starts: each has to be in order
    resource: Resource  # of which the kubelet gave it devices
    ids: frozenset[str]  # the devices
    node: NodeName
    inventory: NodeInventory
    resource_config: ResourceConfig
    others: Sequence[Pod] = ()  # all pods of the node that are known; the pod itself may be among them
    up_to_date: bool = False  # of a pod that came before its allocation: whether the kubelet's copy has that for sure

    @property
    def is_own(self) -> bool:
        """Whether this system gave the pod its GPUs, not the one before it."""
        return names.ANNOTATION_ALLOCATION in wire.annotations(self.pod)


def decide(start: StartRequest) -> Decision:
    who = f"pod {wire.ref(start.pod)}"
    try:
        return _decided(start, who)
    except WireError as error:
        return Refuse(Reason.UNREADABLE, f"{who}: {error}; {RECREATE_POD}")


def unknown_pod(what: str, node: NodeName, resource: Resource) -> Refuse:
    """No such pod could be found on this node. Args: what: how the kubelet names it. resource: of its devices."""
    return Refuse(
        Reason.UNKNOWN_POD,
        f"the API server knows no {what} on node {node}; if it is a static pod, make it a Deployment or a DaemonSet:"
        f" static pods cannot ask for {resource.name}",
    )


def _decided(start: StartRequest, who: str) -> Decision:
    bound_to = wire.node_of(start.pod)
    if bound_to != start.node:
        return Refuse(Reason.OTHER_NODE, f"{who} is on node {bound_to}, not on {start.node}; {RECREATE_POD}")
    allocation = _allocation(start)
    if allocation is None:
        return Refuse(Reason.NOT_BOUND, _not_bound(who, start))
    grants: list[Grant] = []
    for name in start.containers:
        found = _checked(start, allocation, name)
        if isinstance(found, Refuse):
            return found
        grants.append(found)
    held = pods.held(start.others, start.inventory, start.resource_config)
    others = [(pod.assumed, pod.allocation) for pod in held if pod.allocation.pod.uid != allocation.pod.uid]
    problem = shortage([(pods.assumed(start.pod), allocation), *others], allocation, start.inventory)
    if problem:
        return Refuse(
            Reason.OVER_COMMITTED, f"{who}: {problem}; {RECREATE_POD}, so that it is placed where there is room"
        )
    if names.ANNOTATION_LATE in wire.annotations(start.pod) and not start.up_to_date:
        return Refuse(
            Reason.LATE,
            f"{who} was given its GPUs after it had come to the node, and the kubelet may still have a copy that does"
            " not name them; it starts at the kubelet's next try, in some seconds",
        )
    return Accept(tuple(grants), allocation.grants)


def _allocation(start: StartRequest) -> Allocation | None:
    """What this system granted, or the one before it to a container without any device of this plugin.

    Those come with an environment that shows no GPU by itself, so only a grant of this system is of use with them.
    """
    if not start.is_own and any(map(start.resource.is_own_id, start.ids)):
        return None
    found = allocations.granted(start.pod, start.inventory.unit)
    return None if found is None else replace(found, grants=pods.resolve_grants(found.grants, start.inventory))


def _checked(start: StartRequest, allocation: Allocation, name: ContainerName) -> Grant | Refuse:
    who = f"container {name} of pod {allocation.pod}"
    grant = allocation.of(name)
    if grant is None:
        given = ", ".join(grant.container for grant in allocation.grants) or "none"
        return Refuse(
            Reason.NOT_GRANTED,
            f"{who} was given no GPU (containers that were: {given}), although it holds {start.resource.name};"
            f" {RECREATE_POD}",
        )
    refusals = (check(start, grant, who) for check in (OWN if start.is_own else FORMER))
    return next((refusal for refusal in refusals if refusal is not None), grant)


def _not_bound(who: str, start: StartRequest) -> str:
    if interop.is_bound(wire.annotations(start.pod)):
        return (
            f"{who} {interop.OTHER_DEVICES}, with which it would see none; {RECREATE_POD} while {_WEBHOOK} is running"
        )
    scheduler = start.pod["spec"].get("schedulerName") or "none"
    text = f"{who} was never given a GPU by {_CONTROLLER}: it was scheduled by {scheduler}"
    if wire.is_mutated(start.pod, start.resource_config):
        return (
            f"{text}; {_CONTROLLER} gives it GPUs of node {start.node} if they have room for it, and it starts then;"
            " if they have not, an Event on the pod says why"
        )
    return (
        f"{text}, and {_WEBHOOK} did not change it; {RECREATE_POD} without spec.nodeName while {_WEBHOOK} is running,"
        f" which gives it the scheduler {names.SCHEDULER}"
    )


def _takes_its_grant(start: StartRequest, grant: Grant, who: str) -> Refuse | None:
    if wire.takes_its_grant(wire.container(start.pod, grant.container), grant.container):
        return None
    return Refuse(
        Reason.NOT_MUTATED,
        f"{who} does not take {names.ENV_VISIBLE_DEVICES} from"
        f" metadata.annotations['{names.PREFIX_DEVICES}{grant.container}']: {_WEBHOOK} did not change the pod, so"
        f" its author or its image would decide which GPU it sees; {RECREATE_POD} while {_WEBHOOK} is running",
    )


def _sets_no_devices(start: StartRequest, grant: Grant, who: str) -> Refuse | None:
    container = wire.container(start.pod, grant.container)
    if container.get("envFrom"):
        problem = "takes variables from elsewhere (envFrom), which may be"
    elif any(entry.get("name") == names.ENV_VISIBLE_DEVICES for entry in container.get("env") or ()):
        problem = f"sets {names.ENV_VISIBLE_DEVICES} itself, which is"
    else:
        return None
    return Refuse(
        Reason.NOT_MUTATED,
        f"{who} {problem} stronger than what the plugin that gave it its devices set: its author would decide which"
        f" GPU it sees; {RECREATE_POD}, so that {_WEBHOOK} changes that",
    )


def _annotations_match(start: StartRequest, grant: Grant, who: str) -> Refuse | None:
    written = wire.annotations(start.pod)
    for prefix, value in ((names.PREFIX_DEVICES, ",".join(grant.gpus)), (names.PREFIX_MEMORY, str(grant.memory_mib))):
        key = prefix + grant.container
        if written.get(key) != value:
            return Refuse(
                Reason.TAMPERED,
                f"{who}: annotation {key} says {written.get(key)!r:.200}, but its allocation says {value!r}: it was"
                f" changed after the pod was bound; {RECREATE_POD}",
            )
    return None


def _gpus_work(start: StartRequest, grant: Grant, who: str) -> Refuse | None:
    another = f"{RECREATE_POD}, so that it gets another one"
    for uuid in grant.gpus:
        gpu = start.inventory.by_uuid.get(uuid)
        if gpu is None:
            return Refuse(Reason.GPU_GONE, f"{who}: GPU {uuid} is gone from node {start.node}; {another}")
        if gpu.health is not GpuHealth.HEALTHY:
            text = f"{who}: GPU {uuid} (number {gpu.label}) of node {start.node} is {gpu.why}; {another}"
            return Refuse(Reason.GPU_UNHEALTHY, text)
    return None


def _amounts_match(start: StartRequest, grant: Grant, who: str) -> Refuse | None:
    resource, unit = start.resource, start.inventory.unit
    granted = resource.devices_of_grant(grant, unit)
    if granted == len(start.ids):
        return None
    if granted is None:
        why = "is a share of another kind;"
    elif resource is not resources.MEMORY:
        why = f"counts as {granted};"
    else:
        why = f"counts as {granted} in units of {unit.name}; if the node's memory unit was changed since,"
    text = (
        f"{who} holds {resource.name}: {len(start.ids)}, but was granted {_describe(grant)}, which {why} {RECREATE_POD}"
    )
    return Refuse(Reason.WRONG_AMOUNT, text)


def _describe(grant: Grant) -> str:
    gpus = ", ".join(grant.gpus)
    if grant.whole:
        return f"all of {gpus}"
    memory = f"{grant.memory_percent} % of the memory" if grant.memory_percent else f"{grant.memory_mib} MiB"
    compute = f" and {grant.compute_percent} % of the compute" if grant.compute_percent else ""
    return f"{memory}{compute} on each of {gpus}"


Check = Callable[[StartRequest, Grant, str], Refuse | None]
OWN: Final[Sequence[Check]] = (_takes_its_grant, _annotations_match, _gpus_work, _amounts_match)
FORMER: Final[Sequence[Check]] = (_sets_no_devices, _gpus_work, _amounts_match)
"""For grants of a system that this one replaced: its plugin has fixed the container's environment."""


def shortage(held: Sequence[tuple[int, Allocation]], mine: Allocation, inventory: NodeInventory) -> str:
    """Why the memory or the compute of an allocation is not there; empty if it is.

    It is unless something went wrong elsewhere, such as two controllers that both believed to lead. Then those that
    were bound first keep what they have, so that all retries decide alike. `held` is all that is held on the node, this
    allocation too, each with the time of its decision in nanoseconds.
    """
    full = _excess(NodeLedger.of(inventory, (allocation for _, allocation in held)))
    if not any(gpu in full for grant in mine.grants for gpu in grant.gpus):
        return ""
    ledger = NodeLedger.of(inventory)
    for _, allocation in sorted(held, key=lambda entry: (entry[0], entry[1].pod.uid)):
        tried = ledger.with_allocation(allocation)
        # A GPU that is gone has nothing to give, but its pods may hold others beside it.
        excess = [gpu for gpu in _excess(tried) if gpu in inventory.by_uuid]
        if not excess:
            ledger = tried
        elif allocation.pod.uid == mine.pod.uid:
            return _describe_shortage(ledger, tried, excess[0])
    return ""


def _excess(ledger: NodeLedger) -> Iterable[GpuUuid]:
    """GPUs of which more is held than there is, of memory first."""
    return dict.fromkeys((*ledger.over_committed(), *ledger.over_computed()))


def _describe_shortage(ledger: NodeLedger, tried: NodeLedger, uuid: GpuUuid) -> str:
    """Args: ledger: with the pods that were bound earlier; tried: with this one too."""
    gpu = ledger.inventory.by_uuid[uuid]
    whose = f"GPU {uuid} of node {ledger.inventory.node}"
    if missing := tried.over_committed().get(uuid):
        if (most := tried.used_mib[uuid] - missing) > gpu.memory_mib:
            whose += f", oversubscribed to {most} MiB,"
        if not (earlier := ledger.used_mib.get(uuid, 0)):
            return f"{whose} has {gpu.memory_mib} MiB, {missing} MiB less than the pod was granted"
        left = max(most - earlier, 0)
        found = f"{whose} has {gpu.memory_mib} MiB, and pods that were bound earlier leave"
        return f"{found} {left} MiB, {missing} MiB too few"
    left = max(100 - ledger.used_percent.get(uuid, 0), 0)
    missing = tried.over_computed()[uuid]
    return f"pods that were bound earlier leave {left} % of the compute of {whose}, {missing} % too few"
