"""One pod and its cluster -> why it waits, or where it is, by the controller's own answers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from gpushare import names
from gpushare.cluster import bypass, claim_records, node_records, pod_records
from gpushare.cluster.bypass import Fate
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.cluster.node_ledger import PodToPlace
from gpushare.cluster.pod_records import Bound, Bypassed, Pending
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodRef
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Allocation, NodeLedger, Placed, RefusalReason, Refused
from gpushare.model.request import PodRequest, Policy
from gpushare.placement import costs
from gpushare.placement.explain import by_sum, some
from gpushare.units import GIB, ResourceConfig
from gpushare.wire import allocations, fields, pods as pods_wire, requests
from gpushare_cli import holders, schedulable, world
from gpushare_cli.explain import place
from gpushare_cli.explain.place import Fill, NodeChoice
from gpushare_cli.holders import Share
from gpushare_cli.usage import NodeUse, Use
from gpushare_cli.world import NodeAnswer, World

Object = Mapping[str, Any]
WAITS: Final = "waits"
_NO_ROOM: Final = frozenset(  # of a node whose GPUs would take the pod if they had more room
    {RefusalReason.INSUFFICIENT_GPU_MEMORY, RefusalReason.INSUFFICIENT_GPU_COMPUTE, RefusalReason.NO_UNTOUCHED_GPU}
)


class State(Enum):
    NO_GPU = "AsksForNoGpu"
    WAITS = "Waits"  # on no node
    WITHOUT_GPU = "WithoutGpu"  # on a node, and gpushare has given it no GPUs
    HOLDS = "HoldsGpus"
    UNREADABLE = "Unreadable"  # on a node, and no one can tell what it holds
    ENDED = "Ended"  # its containers have ended and what it held was given back


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    pod: PodRef
    phase: str
    state: State
    headline: str
    summary: str
    good: bool  # it holds its GPUs, needs none (or no longer), or a node takes it
    request: PodRequest | None = None
    policy: Policy  # of the namespace or cluster; a request may name another
    node: NodeName | None = None
    scheduler: str = ""
    said: str = ""  # what the scheduler wrote on the pod when it last gave up
    answers: tuple[NodeAnswer, ...] = ()  # of all nodes that come into question, the best first
    choice: NodeChoice | None = None  # None if no node takes it, or another system chose its GPUs
    shares: tuple[Share, ...] = ()
    use: NodeUse = field(default_factory=NodeUse)  # what the device plugin of its node tells
    fills: tuple[Fill, ...] = ()
    origin: str = ""
    limit: str = ""
    notes: tuple[str, ...] = ()

    def used(self, container: str, uuid: str) -> Use:
        """By its container of this name; without one, by those that hold nothing of the GPU."""
        return self.use.uses.get((self.pod.namespace, self.pod.name, container, uuid), Use())


def explain(
    pod: Object, state: World, events: Sequence[Object] = (), claims: Sequence[ClaimRecord] | None = None
) -> Explanation:
    """All about one pod. Events on it, the latest last, serve where the cluster, or all its claims, may not be read."""
    blank = _blank(pod, state)
    config = world.config_of(pod, state.resource_config)
    match pod_records.read(pod, config):
        case Pending(request=None, problem=problem) if pods_wire.counts(pod):
            summary = f"{problem}; fix that, delete the pod and create it again"
            return replace(
                _waiting(blank, pod), headline=f"{WAITS}; what it asks for cannot be understood", summary=summary
            )
        case Pending() | Bound(bypassed=Bypassed()) if state.objects.forbidden and pods_wire.counts(pod):
            return _by_events(replace(blank, request=world.request_of(pod, config)), pod, events)
        case Pending(request=PodRequest() as request) if pods_wire.counts(pod):
            return _pending(_waiting(blank, pod), pod, request, state, config)
        case Pending():
            headline = f"{blank.phase}; it has ended"
            return replace(blank, state=State.ENDED, headline=headline, summary="it was on no node")
        case Bound(bypassed=Bypassed() as way) as record:
            return _bypassed(blank, pod, record, way, state)
        case Bound() as record:
            return _bound(replace(blank, request=world.request_of(pod, config)), pod, record, state)
        case None if pods_wire.has_claims(pod):
            return _claiming(blank, pod, state, claims, events)
        case None:
            return _not_ours(blank, pod, state)


def _blank(pod: Object, state: World) -> Explanation:
    phase = fields.text(fields.mapping(pod, "status", "pod"), "phase", "status") or "Pending"
    notes = state.objects.notes
    if forbidden := state.objects.forbidden:
        notes = (f"not evaluated: nodes and the pods of other namespaces ({forbidden})", *notes)
    return Explanation(
        pod=pods_wire.ref(pod),
        phase=phase,
        state=State.NO_GPU,
        headline=f"{phase}; asks for no GPU",
        summary="no container of it asks for a GPU, so it is none of gpushare's",
        good=True,
        policy=state.policy,
        notes=notes,
    )


def _by_events(blank: Explanation, pod: Object, events: Sequence[Object]) -> Explanation:
    """A pod that waits in a cluster that may not be read: what the scheduler and gpushare have told its author."""
    node = pods_wire.node_of(pod)
    ours = [event for event in events if str(event.get("reason", "")).startswith(names.EVENT_PREFIX)]
    words = [fields.text(event, "message", "event") for event in ours[-1:]]
    blank = _waiting(blank, pod)
    return replace(
        blank,
        state=State.WITHOUT_GPU if node else State.WAITS,
        node=node,
        headline=f"on {node} without GPUs" if node else WAITS,
        summary="".join(words) or blank.said or "neither the scheduler nor gpushare has said anything about it yet",
    )


def _waiting(blank: Explanation, pod: Object) -> Explanation:
    scheduled = fields.condition(pod, "PodScheduled", "pod")
    said = ""
    if scheduled.get("status") == "False":
        said = fields.text(scheduled, "message", "condition") or fields.text(scheduled, "reason", "condition")
    return replace(blank, state=State.WAITS, scheduler=_scheduler(pod), said=said, good=False)


def _pending(blank: Explanation, pod: Object, request: PodRequest, state: World, config: ResourceConfig) -> Explanation:
    policies = state.policies(request)
    answered = world.ask(state, pod, request, policies)
    placed = world.to_place(pod, request)
    headline, summary, good = _reason(pod, answered, said=blank.said)
    return replace(
        blank,
        headline=headline,
        summary=summary,
        good=good,
        request=request,
        answers=tuple(answered),
        choice=place.of_waiting(placed, state, answered, policies),
        notes=(*blank.notes, *_notes(pod, config, state), *([] if good else _sums(placed, state, answered))),
    )


def _reason(pod: Object, answered: Sequence[NodeAnswer], *, said: str) -> tuple[str, str, bool]:
    """Why a pod that asks for GPUs is on no node: in a few words, in full, and whether a node takes it by now."""
    if gates := schedulable.gates(pod):
        summary = f"no scheduler looks at it until its scheduling gates are removed: {', '.join(gates)}"
        return "waits behind scheduling gates", summary, False
    fitting = [answer.node for answer in answered if answer.fits]
    if not fitting:
        return "waits; it fits on no node", world.summary(answered), False
    where = some(fitting)
    soon = (
        "the controller makes the scheduler try again within seconds, unless something else keeps it away"
        if said
        else "the scheduler has not come to it yet"
    )
    return f"waits; it fits on {where}", f"there is room on {where} as far as was evaluated; {soon}", True


def _scheduler(pod: Object) -> str:
    return fields.text(fields.mapping(pod, "spec", "pod"), "schedulerName", "spec") or names.DEFAULT_SCHEDULER


def _notes(pod: Object, config: ResourceConfig, state: World) -> Sequence[str]:
    notes = []
    if (scheduler := _scheduler(pod)) != names.SCHEDULER:
        notes.append(
            f"its scheduler is {scheduler}: only one that asks gpushare's extender gives it GPUs at once"
            f" ({names.SCHEDULER} does; gpushare doctor tells of others)"
        )
    if not pods_wire.is_mutated(pod, config):
        notes.append("the webhook did not change it, so its containers would not see their GPUs; recreate it")
    with_host = all(node.host is not None for node in state.nodes.values())
    if missing := schedulable.overlooked(pod, with_host=with_host):
        notes.append(f"not evaluated: {', '.join(missing)}")
    if nominated := fields.text(fields.mapping(pod, "status", "pod"), "nominatedNodeName", "status"):
        notes.append(f"pods on {nominated} are being evicted to make room for it")
    if fields.mapping(pod, "metadata", "pod").get("deletionTimestamp"):
        notes.append("it is being deleted")
    return notes


def _sums(pod: PodToPlace, state: World, answered: Sequence[NodeAnswer]) -> Sequence[str]:
    """What an autoscaler does about a pod that fits on no node."""
    if any(answer.fits for answer in answered):
        return ()
    suffice = [
        answer.node
        for answer in answered
        if isinstance(answer.verdict, Refused) and answer.verdict.reason in _NO_ROOM and not answer.blockers
        if not state.nodes[answer.node].lacks(pod.takes, pod.counted)
    ]
    return (by_sum(suffice),) if suffice else ()


def _bypassed(blank: Explanation, pod: Object, record: Bound, way: Bypassed, state: World) -> Explanation:
    """A pod that is on a node and was given no GPUs: what the controller does about it."""
    headline = f"on {record.node} without GPUs"
    request, node = way.request, state.nodes.get(record.node)
    blank = replace(blank, state=State.WITHOUT_GPU, node=record.node, headline=headline, request=request, good=False)
    fate, text = bypass.outcome(way, node.ledger if node is not None else None, bypass.owner(pod))
    if node is None and fate is not Fate.INVALID:
        return replace(blank, summary=f"its node {record.node} is gone")
    if fate is Fate.LEFT_ALONE:
        summary = (
            "the webhook did not change it, and nothing says that gpushare hands out GPUs there: anyone else who"
            f" does so {'has started it' if way.started else 'may start it'}, and gpushare leaves it alone"
        )
        headline = f"{headline} from gpushare"
        return replace(blank, request=None, headline=headline, summary=summary, good=way.started)
    if fate is Fate.BIND and request is not None and node is not None:
        return _on_its_node(blank, request, replace(state, nodes={record.node: node}), bypass.again(way))
    return replace(blank, summary=world.why_bypassed(fate, text, way))


def _on_its_node(blank: Explanation, request: PodRequest, alone: World, again: str) -> Explanation:
    (answer,) = world.ask(alone, {}, request, alone.policies(request))
    fits = isinstance(answer.verdict, Placed)
    # Kubernetes has nothing more to say: the pod is there.
    answer = replace(answer, blockers=(), score=costs.BEST if fits else None)
    if fits:
        summary = "there is room: the controller chooses its GPUs within moments, and its containers start then"
    else:
        summary = f"its containers wait until there is room: {answer.why_not}; or {again}"
    return replace(blank, answers=(answer,), summary=summary, good=fits)


def _bound(blank: Explanation, pod: Object, record: Bound, state: World) -> Explanation:
    node = state.nodes.get(record.node)
    blank = replace(blank, node=record.node, good=True)
    inventory = node.record.inventory if node else None
    if not pods_wire.holds_gpus(pod):
        return _ended(blank, pod, record, inventory)
    # GPUs of a node of Aliyun's plugin are shown as equal.
    raw = next((node for node in state.objects.nodes if node_records.name_of(node) == record.node), None)
    equal = world.equal_gpus(raw, []) if raw and not inventory else None
    shown = equal[0] if equal else inventory
    try:
        allocation = pod_records.held(record, shown.unit if shown else state.unit)
    except WireError as error:
        return _unreadable(blank, str(error))
    if allocation is None:
        return _unreadable(blank, "nothing says what it holds")
    notes = list(blank.notes)
    if record.problem:
        notes.append(f"its allocation cannot be read: {record.problem}; told by the other annotations of its binding")
    shares = tuple(holders.shares(allocation, shown))
    notes += sorted({f"GPU {share.uuid} is {share.trouble}" for share in shares if share.trouble})
    ledger = node.ledger if node and isinstance(node.ledger, NodeLedger) else None
    return replace(
        blank,
        state=State.HOLDS,
        node=allocation.node,
        headline=f"{blank.phase} on {allocation.node}",
        summary=f"it has {place.together(shares)}" if shares else "it has no GPU",
        choice=_choice(blank, pod, record, state),
        shares=shares,
        fills=tuple(place.fills(allocation, ledger)) if ledger is not None else (),
        origin=place.origin(pod),
        limit=place.limit(pod, shares),
        notes=(*notes, *place.stuck(pod)),
    )


def _unreadable(blank: Explanation, why: str) -> Explanation:
    return replace(
        blank,
        state=State.UNREADABLE,
        headline=f"{blank.phase} on {blank.node}; what it holds cannot be read",
        summary=(
            f"{why}; until that is fixed {blank.node} takes no new GPU pods: delete the pod, or install the version"
            " of gpushare that bound it"
        ),
    )


def _ended(blank: Explanation, pod: Object, record: Bound, inventory: NodeInventory | None) -> Explanation:
    try:
        allocation = allocations.granted(pod, inventory.unit if inventory else GIB)
    except WireError:
        allocation = None  # it no longer holds anything, whatever the annotation says
    shares = tuple(holders.shares(allocation, inventory)) if allocation else ()
    if record.failed:
        summary = f"{record.node} rejected it before any container ran: {record.failed}; it holds no GPU"
        summary += ", and its controller makes another" if record.owned else "; delete it and create it again"
    elif shares:
        summary = f"it held {place.together(shares)}, which was given back when its containers ended"
    else:
        summary = "it holds no GPU"
    headline = f"{blank.phase} on {record.node}; it has ended"
    return replace(blank, state=State.ENDED, headline=headline, summary=summary, shares=shares)


def _choice(blank: Explanation, pod: Object, record: Bound, state: World) -> NodeChoice | None:
    late = pods_wire.annotations(pod).get(names.ANNOTATION_LATE)
    if blank.request is None or record.allocation is None or late:
        return None
    placed = world.to_place(pod, blank.request)
    alone = state.without(replace(placed, takes=record.ask.host), record.node)
    policies = alone.policies(blank.request)
    answered = world.ask(alone, world.unbound(pod), blank.request, policies)
    return place.of_bound(record, record.allocation, placed, alone, answered, policies)


def _claiming(
    blank: Explanation, pod: Object, state: World, claims: Sequence[ClaimRecord] | None, events: Sequence[Object]
) -> Explanation:
    """A pod with ResourceClaims, which kube-scheduler allocates without a word about numbers."""
    node = pods_wire.node_of(pod)
    if claims is None and node is None:
        return _by_events(blank, pod, events)
    there = world.of_claims(state, claims or ())
    match claim_records.of_pod(claim for claim in claims or () if claim.pod.uid == blank.pod.uid):
        case Pending(request=PodRequest() as request) if node is None and pods_wire.counts(pod):
            blank = replace(_waiting(blank, pod), request=request)
            answered = world.ask(there, pod, request, there.policies(request))
            headline, summary, good = _reason(pod, answered, said="")
            if good:
                summary = f"{summary}; selectors and constraints of its claims were not evaluated"
            elif not answered:
                summary = "no node shares GPUs by ResourceClaims"
            return replace(blank, headline=headline, summary=summary, good=good, answers=tuple(answered))
        case Bound(allocation=Allocation() as allocation) if found := there.nodes.get(allocation.node):
            ledger = found.ledger
            assert isinstance(ledger, NodeLedger)  # noqa: S101 - for the type checker: `of_claims` makes no other
            shares = tuple(holders.shares(allocation, ledger.inventory))
            return replace(
                blank,
                node=allocation.node,
                headline=f"{blank.phase} on {allocation.node}, by ResourceClaims",
                summary=f"it has {place.together(shares)}",
                shares=shares,
                fills=tuple(place.fills(allocation, ledger)),
            )
    summary = "kube-scheduler allocates its ResourceClaims; kubectl inspect gpushare shows what they hold"
    return replace(blank, node=node, headline=f"{blank.phase}; asks by ResourceClaims", summary=summary)


def _not_ours(blank: Explanation, pod: Object, state: World) -> Explanation:
    blank = replace(blank, node=pods_wire.node_of(pod))
    for container, resource, meant in requests.misspelt(pod, state.resource_config):
        summary = f"container {container} asks for {resource}, which gpushare does not know; do you mean {meant}?"
        headline = f"{blank.phase}; asks for no GPU that gpushare knows"
        return replace(blank, headline=headline, summary=summary, good=False)
    if not pods_wire.needs_gpu(pod, ResourceConfig(whole_gpus=True)):
        return blank
    blank = replace(blank, headline=f"{blank.phase}; none of gpushare's")
    serving = sum(bool((node.allocatable or {}).get(names.GPU)) for node in state.nodes.values())
    if serving or state.objects.forbidden:
        summary = f"it asks for {names.GPU}, which gpushare does not hand out in this cluster"
        if serving:
            summary += f"; another device plugin does, on {serving} node{'s' if serving > 1 else ''}"
        return replace(blank, summary=summary)
    summary = (
        f"it asks for {names.GPU}, and no node offers it: whole GPUs are switched off in gpushare"
        f" (GPUSHARE_WHOLE_GPUS in ConfigMap {names.CONFIG}), and no other device plugin serves it"
    )
    return replace(blank, summary=summary, good=blank.phase != "Pending")
