"""May this container start? The order of the checks over what was gathered. Pure; every refusal says what to do."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from deviceplugin import checks, over_commitment
from deviceplugin.decision import AGAIN, Accept, Decision, Reason, Refuse, Start
from deviceplugin.resources import Resource
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import ContainerName, GpuUuid, NodeName
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.gpu import NodeInventory
from gpushare.wire import allocations, interop, pods

_WEBHOOK: Final = names.WEBHOOK_SERVICE
_CONTROLLER: Final = names.CONTROLLER_SERVICE


def decide(start: Start) -> Decision:
    """Accept, or the first reason against it."""
    who = f"pod {pods.ref(start.pod)}"
    try:
        return _decided(start, who)
    except WireError as error:
        return Refuse(Reason.UNREADABLE, f"{who}: {error}; {AGAIN}")


def unknown_pod(what: str, node: NodeName, resource: Resource) -> Refuse:
    """No such pod could be found.

    Args:
        what: how the kubelet names it.
        node: this one.
        resource: of which it holds devices.
    """
    return Refuse(
        Reason.UNKNOWN_POD,
        f"the API server knows no {what} on node {node}; if it is a static pod, make it a Deployment or a DaemonSet:"
        f" static pods cannot ask for {resource.name}",
    )


def _decided(start: Start, who: str) -> Decision:
    bound_to = pods.node_of(start.pod)
    if bound_to != start.node:
        return Refuse(Reason.OTHER_NODE, f"{who} is on node {bound_to}, not on {start.node}; {AGAIN}")
    allocation = _allocation(start)
    if allocation is None:
        return Refuse(Reason.NOT_BOUND, _not_bound(who, start))
    grants: list[Grant] = []
    for name in start.containers:
        found = _container(start, allocation, name)
        if isinstance(found, Refuse):
            return found
        grants.append(found)
    shortage = over_commitment.shortage(
        start.pod, allocation, inventory=start.inventory, others=start.others, resource_config=start.resource_config
    )
    if shortage:
        return Refuse(Reason.OVER_COMMITTED, f"{who}: {shortage}; {AGAIN}, so that it is placed where there is room")
    if names.ANNOTATION_LATE in pods.annotations(start.pod) and not start.up_to_date:
        return Refuse(Reason.LATE, _late(who))
    return Accept(tuple(grants), allocation.grants)


def _allocation(start: Start) -> Allocation | None:
    """What this system granted, or the one before it to a container with devices of that system's plugin.

    Devices of this plugin come with an environment that shows no GPU by itself, so only a grant of this system
    is of use with them, also if the container has devices of both.
    """
    former = not any(map(start.resource.made, start.ids))
    if not _is_own(start) and not former:
        return None
    found = allocations.granted(start.pod, start.inventory.unit)
    return None if found is None else replace(found, grants=known(found.grants, start.inventory))


def _is_own(start: Start) -> bool:
    return names.ANNOTATION_ALLOCATION in pods.annotations(start.pod)


def known(grants: Sequence[Grant], inventory: NodeInventory) -> tuple[Grant, ...]:
    """Grants as they were written, with the UUIDs of their GPUs, one for each container.

    Former systems know GPUs by number, and some make a grant for each GPU even if a container has the same on all.
    """
    merged: dict[Grant, tuple[GpuUuid, ...]] = {}
    for grant in grants:
        key = replace(grant, gpus=())
        merged[key] = (*merged.get(key, ()), *map(inventory.resolve, grant.gpus))
    return tuple(replace(key, gpus=gpus) for key, gpus in merged.items())


def _container(start: Start, allocation: Allocation, name: ContainerName) -> Grant | Refuse:
    who = f"container {name} of pod {allocation.pod}"
    grant = allocation.of(name)
    if grant is None:
        given = ", ".join(grant.container for grant in allocation.grants) or "none"
        return Refuse(
            Reason.NOT_GRANTED,
            f"{who} was given no GPU (containers that were: {given}), although it holds {start.resource.name}; {AGAIN}",
        )
    for check in checks.OWN if _is_own(start) else checks.FORMER:
        refusal = check(start, grant, who)
        if refusal is not None:
            return refusal
    return grant


def _not_bound(who: str, start: Start) -> str:
    if interop.is_bound(pods.annotations(start.pod)):
        return f"{who} {interop.OTHER_DEVICES}, with which it would see none; {AGAIN} while {_WEBHOOK} is running"
    scheduler = start.pod["spec"].get("schedulerName") or "none"
    text = f"{who} was never given a GPU by {_CONTROLLER}: it was scheduled by {scheduler}"
    if pods.is_mutated(start.pod, start.resource_config):
        return (
            f"{text}; {_CONTROLLER} gives it GPUs of node {start.node} if they have room for it, and it starts then;"
            " if they have not, an Event on the pod says why"
        )
    return (
        f"{text}, and {_WEBHOOK} did not change it; {AGAIN} without spec.nodeName while {_WEBHOOK} is running, which"
        f" gives it the scheduler {names.SCHEDULER}"
    )


def _late(who: str) -> str:
    return (
        f"{who} was given its GPUs after it had come to the node, and the kubelet may still have a copy that does not"
        " name them; it starts at the kubelet's next try, in some seconds"
    )
