"""What is shown of a cluster: nodes with their pods, pods that wait, what happened in the last hour. Pure.

The page gets these values as JSON with the names that they have here. Times are as the API server writes them, texts
are empty where there is nothing to say, and uses None where nothing is measured.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from gpushare import names, units
from gpushare.cluster import node_records, pod_records
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.cluster.pod_records import Bound, Bypassed, Pending
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName, by_index
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory, Strength
from gpushare.model.request import PodRequest, Policy
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from gpushare.wire import allocations, fields, pods as pods_wire
from gpushare_cli import holders, world
from gpushare_cli.explain import decide
from gpushare_cli.holders import GpuRow, NodeRow
from gpushare_cli.reading import Objects, Settings
from gpushare_cli.usage import Key, NodeUse, Use
from gpushare_cli.world import Recorded

T = TypeVar("T")
Object = Mapping[str, Any]
UNKNOWN_MODEL: Final = "model not known"
_SPAN: Final = timedelta(hours=1)
_MOST: Final = 200
_MOST_OF_ONE: Final = 40  # namespace
MOST_EXPLAINED: Final = 100  # groups of pods that wait
_LONGEST_REASON: Final = 2048  # characters: a pod's author may name as many scheduling gates as an object can hold
NOT_EVALUATED: Final = "not evaluated, because pods of too many kinds wait; see gpushare explain"
STAMP: Final = "%Y-%m-%dT%H:%M:%SZ"
_NUMBER: Final = re.compile("[0-9]{1,4}")
_BY_INDEX: Final = by_index(0)[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    namespace: str
    name: str
    granted_mib: int
    used_mib: int | None = None
    compute_percent: int = 0
    whole: bool = False
    limit: str
    since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    label: str
    uuid: str
    model: str
    total_mib: int  # what can be handed out; 0 if that is not known
    grantable_mib: int = 0  # of an oversubscribed GPU, of which more than it has may be granted; 0 of any other
    granted_mib: int
    used_mib: int | None
    compute_percent: int
    health: str
    why: str
    limit: str  # of all containers that hold something of it; the weakest where they differ
    strength: Strength
    limit_reason: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Floating:  # what a pod on a node holds or asks for on no GPU that is known
    namespace: str
    name: str
    mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    name: str
    address: str
    known: bool  # whether the node may be read; else its GPUs are those that the pods that may be read hold
    cards: tuple[Card, ...]
    floating: tuple[Floating, ...] = ()
    left_out: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()  # UUIDs of GPUs that ResourceClaims share, which are no cards
    use_problem: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Pods of one owner that ask for the same and have no GPUs yet."""

    namespace: str
    name: str
    others: int
    asks: str
    headline: str
    reason: str
    good: bool  # a node takes it; it is a matter of moments
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    at: str
    warning: bool
    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    nodes: int = 0
    gpus: int = 0
    unhealthy: int = 0
    total_mib: int = 0
    granted_mib: int = 0
    used_mib: int | None = None
    pods: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    server: str
    complete: bool  # all nodes and pods may be read; else what looks free may be held by pods that are not shown
    scope: str
    totals: Totals
    notes: tuple[str, ...] = ()
    stale: str = ""


def of_node(
    node: Object,
    pods: Sequence[Object],
    unhealthy: frozenset[int],
    use: NodeUse | None,
    claims: Sequence[ClaimRecord] | None = None,
) -> NodeView | None:
    """A node with those pods on it that hold GPUs or ask for some; None if it shares none.

    `unhealthy` are the numbers of its GPUs that Aliyun's ConfigMap calls so; `use` is None if its plugin was not asked,
    `claims` if they may not be read.
    """
    name = node_records.name_of(node)
    built = holders.build([node], pods, {name: unhealthy})
    if not built.nodes:
        return None
    [row] = built.nodes
    view = replace(of_row(row, use), notes=built.notes)
    if claims is None or not view.claimed:
        return view
    numbers = {str(gpu.uuid): gpu.index for gpu in row.inventory.every}
    cards = (*view.cards, *of_row(holders.claimed_row(row.inventory, claims), use).cards)
    return replace(view, cards=tuple(sorted(cards, key=lambda card: numbers[card.uuid])), claimed=())


def of_row(row: NodeRow, use: NodeUse | None) -> NodeView:
    used = _used(use.uses if use is not None else {})
    return NodeView(
        name=row.name,
        address=row.address,
        known=True,
        cards=tuple(_card(gpu, row, used) for gpu in row.gpus),
        floating=tuple(Floating(pod.namespace, pod.name, pod.pending_mib) for pod in row.pods if pod.pending_mib),
        left_out=tuple(f"GPU {gpu.index}: {gpu.reason}" for gpu in row.inventory.left_out),
        claimed=tuple(gpu.uuid for gpu in row.inventory.dra),
        use_problem=use.problem if use is not None else "",
    )


def of_unread_node(name: NodeName, pods: Sequence[Object], unit: MemoryUnit) -> NodeView | None:
    inventory = NodeInventory(node=name, gpus=tuple(_held_gpus(pods, unit)), unit=unit)
    if not inventory.gpus:
        return None
    notes: list[str] = []
    view = of_row(holders.node_row(inventory, pods, notes), None)
    cards = tuple(  # what holds the limits is not written on pods
        replace(card, limit="?", blocks=tuple(replace(block, limit="?") for block in card.blocks))
        for card in view.cards
    )
    return replace(view, known=False, cards=cards, notes=tuple(notes))


def totals(nodes: Collection[NodeView], waiting: int = 0) -> Totals:
    cards = [card for node in nodes for card in node.cards]
    measured = [card.used_mib for card in cards if card.used_mib is not None]
    return Totals(
        nodes=len(nodes),
        gpus=len(cards),
        unhealthy=sum(card.health != GpuHealth.HEALTHY.value for card in cards),
        total_mib=sum(card.total_mib for card in cards),
        granted_mib=sum(card.granted_mib for card in cards) + sum(pod.mib for node in nodes for pod in node.floating),
        used_mib=sum(measured) if measured else None,
        pods=len({(block.namespace, block.name) for card in cards for block in card.blocks}),
        waiting=waiting,
    )


def _used(uses: Mapping[Key, Use]) -> Mapping[tuple[str, str, str], int]:
    found = Counter[tuple[str, str, str]]()
    for (namespace, pod, _, gpu), use in uses.items():
        if use.used_mib is not None:
            found[namespace, pod, gpu] += use.used_mib
    return found


def _card(row: GpuRow, node: NodeRow, used: Mapping[tuple[str, str, str], int]) -> Card:
    gpu = row.gpu
    blocks = tuple(
        Block(
            namespace=pod.namespace,
            name=pod.name,
            granted_mib=held.memory_mib,
            used_mib=used.get((pod.namespace, pod.name, gpu.uuid)),
            compute_percent=held.compute_percent,
            whole=held.whole,
            limit=gpu.limit_of(*(share.memory_mib for share in pod.shares if share.uuid == gpu.uuid)).value,
            since=pod.since,
        )
        for pod in node.pods
        if (held := pod.held.get(gpu.index)) is not None
    )
    measured = [block.used_mib for block in blocks if block.used_mib is not None]
    limit = gpu.limit_of(*(share.memory_mib for pod in node.pods for share in pod.shares if share.uuid == gpu.uuid))
    return Card(
        label=gpu.label,
        uuid=gpu.uuid,
        model=gpu.model,
        total_mib=row.total_mib,
        grantable_mib=row.grantable_mib if gpu.extra_mib else 0,
        granted_mib=row.used_mib,
        used_mib=sum(measured) if measured else None,
        compute_percent=row.compute_percent,
        health=gpu.health.value,
        why=gpu.why,
        limit=limit.value,
        strength=limit.strength,
        limit_reason=gpu.limit_reason,
        blocks=blocks,
    )


def _held_gpus(pods: Sequence[Object], unit: MemoryUnit) -> Iterator[Gpu]:
    """GPUs that pods hold, by what their bindings say of them; those that have no number get one that is free."""
    found: dict[GpuUuid, tuple[int | None, int]] = {}
    for pod in pods:
        for uuid, number, has_mib in _bindings(pod, unit):
            known, most = found.get(uuid, (None, 0))
            found[uuid] = (number if known is None else known, max(most, has_mib))
    taken: set[int] = set()
    for uuid, (number, mib) in sorted(found.items(), key=lambda item: (item[1][0] is None, item[1][0] or 0, item[0])):
        index = number if number is not None and number not in taken else max(taken, default=-1) + 1
        taken.add(index)
        yield Gpu(uuid=uuid, index=index, model=UNKNOWN_MODEL, memory_mib=mib)


def _bindings(pod: Object, unit: MemoryUnit) -> Iterator[tuple[GpuUuid, int | None, int]]:
    """GPUs that a pod holds: UUID, number on its node if it is told, and memory in MiB, 0 if it is not told."""
    try:
        allocation = allocations.held(pod, ResourceConfig(unit=unit, whole_gpus=True), unit).allocation
    except WireError:
        return
    if allocation is None or not pods_wire.holds_gpus(pod):
        return
    notes = pods_wire.annotations(pod)
    for grant in allocation.grants:
        numbers = str(notes.get(names.PREFIX_INDEX + grant.container, "")).split(",")
        has_mib = unit.to_mib(units.whole(notes.get(names.PREFIX_CAPACITY + grant.container)))
        for uuid, number in zip(grant.gpus, [*numbers, *([""] * len(grant.gpus))], strict=False):
            if not uuid.startswith(_BY_INDEX):
                yield uuid, int(number) if _NUMBER.fullmatch(number) else None, has_mib


def latest(found: Iterable[Happening], now: datetime) -> tuple[Happening, ...]:
    """The newest of the last hour, the newest first, and not all of one namespace. Times that are none are left out."""
    begin, until = earliest(now), (now + timedelta(minutes=5)).strftime(STAMP)
    recent = {each for each in found if begin <= each.at <= until}
    newest = sorted(recent, key=lambda each: (each.at, each.subject, each.text), reverse=True)
    return tuple(first_of_each(newest, lambda each: each.subject.partition("/")[0], _MOST_OF_ONE))[:_MOST]


def first_of_each(found: Iterable[T], owner: Callable[[T], str], most: int) -> Iterator[T]:
    """So many of each owner at most: who writes many displaces only his own."""
    seen = Counter[str]()
    for each in found:
        seen[owner(each)] += 1
        if seen[owner(each)] <= most:
            yield each


def earliest(now: datetime) -> str:
    return (now - _SPAN).strftime(STAMP)


def grants(view: NodeView, begin: str = "") -> Iterator[Happening]:
    """When the pods of a node got their GPUs, from a time on."""
    held: dict[tuple[str, str], list[str]] = {}
    of_cards = [(each, block) for each in view.cards for block in each.blocks]
    for card, block in of_cards:
        if block.since and block.since >= begin:
            amount = "all of it" if block.whole else units.memory(block.granted_mib)
            key = block.since, f"{block.namespace}/{block.name}"
            held.setdefault(key, []).append(f"{amount} of GPU {card.label}")
    for (at, subject), parts in held.items():
        text = f"got {', '.join(parts)} on {view.name}"
        yield Happening(at=at, warning=False, subject=subject, text=text)


def ended(pod: Object) -> Happening | None:
    """When a pod gave its GPUs back; None if it holds some, or held none."""
    node = pods_wire.node_of(pod)
    if pods_wire.holds_gpus(pod) or not _was_given(pod):
        return None
    ends = [
        fields.text(fields.mapping(fields.mapping(report, "state", path), "terminated", path), "finishedAt", path)
        for path, report in pods_wire.reports(pod)
    ]
    phase = fields.text(fields.mapping(pod, "status", "pod"), "phase", "status")
    at, text = max(ends, default=""), f"ended on {node} ({phase}), and gave its GPU memory back"
    return Happening(at=at, warning=phase == "Failed", subject=str(pods_wire.ref(pod)), text=text)


def deleted(pod: Object, now: datetime) -> Happening | None:
    if not pods_wire.holds_gpus(pod) or not _was_given(pod):
        return None
    text = f"deleted from {pods_wire.node_of(pod)}, and gave its GPU memory back"
    return Happening(at=now.strftime(STAMP), warning=False, subject=str(pods_wire.ref(pod)), text=text)


def of_event(event: Object) -> Happening:
    about = event["involvedObject"]
    stamps = [event.get(key) for key in ("lastTimestamp", "eventTime", "firstTimestamp")]
    return Happening(
        at=next((f"{stamp[:19]}Z" for stamp in stamps if isinstance(stamp, str) and stamp), ""),
        warning=event.get("type") == "Warning",
        subject=f"{about['namespace']}/{about['name']}",
        text=f"Event {event['reason']}: {event['message']}",  # its author decides on this, and on the time
    )


def health_changes(node: str, before: NodeView | None, after: NodeView | None, now: datetime) -> Iterator[Happening]:
    """GPUs of a node that changed their health or are gone, which no object keeps."""
    at = now.strftime(STAMP)
    old, new = ({card.uuid: card for card in view.cards} if view else {} for view in (before, after))
    for uuid, card in new.items():
        if uuid in old and (old[uuid].health, old[uuid].why) != (card.health, card.why):
            healthy = card.health == GpuHealth.HEALTHY.value
            text = "is healthy again" if healthy else f"is {card.why}; nothing new is placed on it"
            yield Happening(at=at, warning=not healthy, subject=f"GPU {card.label} of {node}", text=text)
    for uuid in old.keys() - new.keys():
        is_claimed = after is not None and uuid in after.claimed
        text = "is shared by ResourceClaims now" if is_claimed else "is no longer listed by its node"
        yield Happening(at=at, warning=not is_claimed, subject=f"GPU {old[uuid].label} of {node}", text=text)


def _was_given(pod: Object) -> bool:
    try:
        return allocations.granted(pod, GIB) is not None
    except WireError:
        return False


def may_wait(pod: Object) -> bool:
    """Whether a pod that concerns GPUs may have none, by a quick look."""
    bound = pods_wire.node_of(pod) is not None and names.ANNOTATION_ALLOCATION in pods_wire.annotations(pod)
    return not bound and pods_wire.counts(pod)


def waiting(cluster: Objects, settings: Settings) -> tuple[Waiting, ...]:
    """Why pods wait, the first at the top; where nodes may not be read, what the scheduler has said.

    SettingsError if nodes count in several units; WireError for odd objects.
    """
    # Whether a pod fits is the same with every policy, and binpack needs no look at the whole cluster.
    found = world.of(cluster, replace(settings, gpu_policy=Policy.BINPACK))
    told = []
    for i, group in enumerate(_waiting_together(found.pods)):
        pod, request = group[0]
        said = decide.explain(pod, found) if i < MOST_EXPLAINED or cluster.forbidden else None
        headline, reason = (said.headline, said.summary) if said else (decide.WAITS, NOT_EVALUATED)
        ref = pods_wire.ref(pod)
        told.append(
            Waiting(
                namespace=ref.namespace,
                name=ref.name,
                others=len(group) - 1,
                asks="; ".join(world.asked_for(request.shape)) if request else "",
                headline=headline,
                reason=reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} …",
                good=said is not None and said.good,
                since=_created(pod),
            )
        )
    return tuple(told)


def _waiting_together(recorded: Iterable[Recorded]) -> list[list[tuple[Object, PodRequest | None]]]:
    """Pods that wait, and what they ask for: those of one owner that ask for the same together."""
    found: dict[tuple[str, ...], list[tuple[Object, PodRequest | None]]] = {}
    for pod, record in sorted(recorded, key=lambda each: (_created(each[0]), str(pods_wire.ref(each[0])))):
        match record:
            case Pending(request=request) | Bound(bypassed=Bypassed(request=request)) if pods_wire.counts(pod):
                owner = str((pod_records.controller_of(pod) or {}).get("uid") or record.ref.uid)
                asks = repr(request.shape) if request else ""
                key = record.ref.namespace, owner, asks, pods_wire.node_of(pod) or ""
                found.setdefault(key, []).append((pod, request))
    return list(found.values())


def _created(pod: Object) -> str:
    return fields.text(fields.mapping(pod, "metadata", "pod"), "creationTimestamp", "metadata")
