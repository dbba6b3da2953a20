"""What is kept of a pod, as `pod_records` reads it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpushare.errors import WireError
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.allocation import Allocation
from gpushare.model.request import PodRequest
from gpushare.model.room import Ask, HostRoom
from gpushare.units import MemoryUnit
from gpushare.wire import asks, interop_read
from gpushare.wire.fields import JsonObject

NOTHING: Final = HostRoom(0, 0)
NO_ASK: Final = Ask()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pod that asks for GPUs and is on no node."""

    ref: PodRef
    request: PodRequest | None
    """None if what it asks for cannot be understood."""
    problem: str = ""
    """Why not."""
    unschedulable: bool = False
    """The scheduler has tried and given up for now."""
    retry: str = ""
    """Value of the label that makes the scheduler try again."""
    owner: str = ""
    """UID of the controller that owns it, kept only if it goes to nodes that hand over by CDI alone."""
    overridden: str = ""
    """Names, comma-separated, of containers whose author chose devices himself, which the webhook has undone."""

    @property
    def ask(self) -> Ask:
        """What it will take of its node; nothing if that cannot be understood."""
        return NO_ASK if self.request is None else asks.of_request(self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A pod that asks for GPUs and was bound to a node, by whomever."""

    ref: PodRef
    node: NodeName
    allocation: Allocation | None = None
    """What it holds; None if it was given nothing, has given it back, or only `interop_read` or `problem` tells."""
    interop_pod: JsonObject | None = None
    """The pod, reduced, if another system bound it: its amounts count in the node's unit, which comes separately."""
    problem: str = ""
    """Why its annotation cannot be read. Without `allocation` no one can tell what it holds."""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    created: str = ""
    """When, as the API server writes it: texts sort as times do."""
    ask: Ask = NO_ASK
    """What it takes of its node; nothing once it has ended, and no GPUs if no one can tell what it asked for."""
    deleting: bool = False
    """Its deletion was asked for; it holds what it holds until its containers have ended."""
    bypassed: "Bypassed | None" = None
    """Set while it lives on its node without an allocation of anybody."""
    failed: str = ""
    """Why the node rejected it, `reason: message`, before any container ran; empty unless that happened."""
    owned: bool = False
    """A controller, such as a ReplicaSet, recreates it when it is deleted."""
    outdated: str = ""
    """UID of the controller that recreates it, if it has not started and never will, because it came to its node when
    that handed GPUs over in another way; else empty."""
    overridden: str = ""
    """Names, comma-separated, of containers whose author chose devices himself, which the webhook has undone."""

    @property
    def holds(self) -> bool:
        """Whether it holds GPUs, also if no one can tell which."""
        return self.allocation is not None or self.interop_pod is not None or bool(self.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypassed:
    """A pod that came to its node past this system: by another scheduler, or with a node preset."""

    request: PodRequest | None
    """None if what it asks for cannot be understood."""
    problem: str = ""
    """Why not."""
    mutated: bool
    """Every container that asks takes its devices from the annotation that a binding writes."""
    started: bool
    """One of its containers that ask has run already."""
    owner: str = ""
    """UID of the controller that recreates it; empty if there is none."""


PodRecord = Pending | Bound


class Guest(NamedTuple):
    """A pod on a node that asks for no GPU. A cluster may have ten times as many of them as of others."""

    uid: PodUid
    node: NodeName
    takes: HostRoom
    """Nothing once it has ended."""


AnyPod = PodRecord | Guest


def has_foreign_gpus(pod: Bound) -> bool:
    """Whether it runs on whole GPUs that no one here has given to it: another plugin had that resource before."""
    bypassed = pod.bypassed
    if bypassed is None or bypassed.mutated or not bypassed.started or bypassed.request is None:
        return False
    return any(request.whole for request in bypassed.request.shape.containers)


def held(bound: Bound, unit: MemoryUnit) -> Allocation | None:
    """What a bound pod holds, in the unit of its node.

    Raises:
        WireError: no one can tell.
    """
    if bound.problem and bound.allocation is None:
        raise WireError(bound.problem)
    if bound.interop_pod is not None:
        return interop_read.allocation(bound.interop_pod, bound.ref, bound.node, unit)
    return bound.allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An allocation that cannot be read."""

    why: str
    counted: bool
    """The pod's other annotations tell what it holds."""


def all_held(bound: Iterable[Bound], unit: MemoryUnit) -> tuple[list[Allocation], dict[PodRef, Problem]]:
    """What the pods of one node hold, and which of their allocations cannot be read."""
    allocations: list[Allocation] = []
    problems: dict[PodRef, Problem] = {}
    for record in bound:
        try:
            allocation = held(record, unit)
        except WireError as error:
            problems[record.ref] = Problem(why=str(error), counted=False)
            continue
        if allocation is not None:
            allocations.append(allocation)
        if record.problem:
            problems[record.ref] = Problem(why=record.problem, counted=True)
    return allocations, problems
