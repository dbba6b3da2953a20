"""One pod and its cluster -> why it waits, or where it is, by the controller's own answers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpushare import names
from gpushare.cluster import bypass, node_records, pod_records
from gpushare.cluster.bypass import Fate
from gpushare.cluster.pod_records import Bound, Bypassed, Pending
from gpushare.cluster.reasons import by_sum, some
from gpushare.cluster.world import PodToPlace
from gpushare.errors import InvalidRequestError, WireError
from gpushare.model.allocation import Placed, Refused
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest
from gpushare.placement import costs
from gpushare.units import ResourceConfig
from gpushare.wire import fields, requests, typos
from gpushare.wire import pods as pods_wire
from gpushare_cli import schedulable, world
from gpushare_cli.explain import choice, held
from gpushare_cli.explain.model import Explanation, NodeChoice, State
from gpushare_cli.world import NodeAnswer, World

Object = Mapping[str, Any]
_DEFAULT_SCHEDULER: Final = "default-scheduler"
WAITS: Final = "waits"
NOTHING_SAID: Final = "neither the scheduler nor gpushare has said anything about it yet"
UNREADABLE: Final = "waits; what it asks for cannot be understood"


def explain(pod: Object, state: World, events: Sequence[Object] = ()) -> Explanation:
    """All about one pod. Events on it, the latest last, serve where the cluster may not be read."""
    blank = blank_of(pod, state)
    config = world.config_of(pod, state.resource_config)
    match pod_records.read(pod, config):
        case Pending() | Bound(bypassed=Bypassed()) if state.objects.forbidden and pods_wire.counts(pod):
            return _by_events(_with_request(blank, pod, config), pod, events)
        case Pending() as record if pods_wire.counts(pod):
            return _pending(blank, pod, record, state, config)
        case Pending():
            headline = f"{blank.phase}; it has ended"
            return replace(blank, state=State.ENDED, headline=headline, summary="it was on no node")
        case Bound(bypassed=Bypassed() as way) as record:
            return bypassed(blank, pod, record, way, state)
        case Bound() as record:
            return _bound(_with_request(blank, pod, config), pod, record, state)
        case None:
            return _not_ours(blank, pod, state)


def blank_of(pod: Object, state: World) -> Explanation:
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
        unit=state.unit,
        policy=state.policy,
        notes=notes,
    )


def _with_request(blank: Explanation, pod: Object, config: ResourceConfig) -> Explanation:
    try:
        return replace(blank, request=requests.of_pod(pod, config))
    except InvalidRequestError:
        return blank


def _by_events(blank: Explanation, pod: Object, events: Sequence[Object]) -> Explanation:
    """A pod that waits in a cluster that may not be read: what the scheduler and gpushare have told its author."""
    node = pods_wire.node_of(pod)
    ours = [event for event in events if str(event.get("reason", "")).startswith(names.EVENT_PREFIX)]
    words = [fields.text(event, "message", "event") for event in ours[-1:]]
    return replace(
        blank,
        state=State.WITHOUT_GPU if node else State.WAITS,
        node=node,
        headline=f"on {node} without GPUs" if node else WAITS,
        summary="".join(words) or said(pod) or NOTHING_SAID,
        scheduler=_scheduler(pod),
        said=said(pod),
        good=False,
    )


def _pending(blank: Explanation, pod: Object, record: Pending, state: World, config: ResourceConfig) -> Explanation:
    blank = replace(blank, state=State.WAITS, scheduler=_scheduler(pod), said=said(pod), good=False)
    if record.request is None:
        return replace(blank, headline=UNREADABLE, summary=fix(record))
    policies = state.policies(record.request)
    answered = world.ask(state, pod, record.request, policies)
    placed = world.to_place(pod, record.request)
    headline, summary, good = reason(pod, answered)
    return replace(
        blank,
        headline=headline,
        summary=summary,
        good=good,
        request=record.request,
        answers=tuple(answered),
        choice=choice.of_waiting(placed, state, answered, policies),
        notes=(*blank.notes, *_notes(pod, config, state), *([] if good else _sums(placed, state, answered))),
    )


def reason(pod: Object, answered: Sequence[NodeAnswer]) -> tuple[str, str, bool]:
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
        if said(pod)
        else "the scheduler has not come to it yet"
    )
    return f"waits; it fits on {where}", f"there is room on {where} as far as was evaluated; {soon}", True


def fix(record: Pending) -> str:
    return f"{record.problem}; fix that, delete the pod and create it again"


def said(pod: Object) -> str:
    scheduled = fields.condition(pod, "PodScheduled", "pod")
    if scheduled.get("status") != "False":
        return ""
    return fields.text(scheduled, "message", "condition") or fields.text(scheduled, "reason", "condition")


def _scheduler(pod: Object) -> str:
    return fields.text(fields.mapping(pod, "spec", "pod"), "schedulerName", "spec") or _DEFAULT_SCHEDULER


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
        if isinstance(answer.verdict, Refused) and answer.has_gpus and not answer.blockers
        if not state.nodes[answer.node].lacks(pod.takes, pod.counted)
    ]
    return (by_sum(suffice),) if suffice else ()


def bypassed(blank: Explanation, pod: Object, record: Bound, way: Bypassed, state: World) -> Explanation:
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
    inventory = node.record.inventory if node else None
    if not pods_wire.holds_gpus(pod):
        return held.ended(blank, pod, record, inventory)
    # GPUs of a node of Aliyun's plugin are shown as equal.
    raw = next((node for node in state.objects.nodes if node_records.name_of(node) == record.node), None)
    equal = world.equal_gpus(raw, []) if raw and not inventory else None
    shown = equal[0] if equal else inventory
    try:
        allocation = pod_records.held(record, shown.unit if shown else blank.unit)
    except WireError as error:
        return held.unreadable(blank, record, str(error))
    if allocation is None:
        return held.unreadable(blank, record, "nothing says what it holds")
    notes = list(blank.notes)
    if record.problem:
        notes.append(f"its allocation cannot be read: {record.problem}; told by the other annotations of its binding")
    ledger = node.ledger if node and isinstance(node.ledger, NodeLedger) else None
    blank = replace(blank, notes=tuple(notes), choice=_choice(blank, pod, record, state))
    return held.holds(blank, pod, allocation, shown, ledger)


def _choice(blank: Explanation, pod: Object, record: Bound, state: World) -> NodeChoice | None:
    late = pods_wire.annotations(pod).get(names.ANNOTATION_LATE)
    if blank.request is None or record.allocation is None or late:
        return None
    placed = world.to_place(pod, blank.request)
    alone = state.without(replace(placed, takes=record.ask.host), record.node)
    policies = alone.policies(blank.request)
    answered = world.ask(alone, world.unbound(pod), blank.request, policies)
    return choice.of_bound(record, record.allocation, placed, alone, answered, policies)


def _not_ours(blank: Explanation, pod: Object, state: World) -> Explanation:
    blank = replace(blank, node=pods_wire.node_of(pod))
    for container, resource, meant in typos.of_pod(pod, state.resource_config):
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
