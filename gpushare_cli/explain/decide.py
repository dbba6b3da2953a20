"""One pod and its cluster -> all that there is to say. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpushare import names
from gpushare.cluster import node_records, pod_records
from gpushare.cluster.pod_records import Bound, Bypassed, Pending
from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.units import ResourceConfig
from gpushare.wire import fields, requests, typos
from gpushare.wire import pods as pods_wire
from gpushare_cli import schedulable, world
from gpushare_cli.explain import choice, held, waiting
from gpushare_cli.explain.model import Choice, Explanation, State
from gpushare_cli.reading import Objects
from gpushare_cli.world import World

Object = Mapping[str, Any]


def explain(pod: Object, state: World, events: Sequence[Object] = ()) -> Explanation:
    """All about one pod.

    Events on it, the latest last, serve where the cluster may not be read.

    Raises:
        WireError: an object cannot be read.
    """
    cluster, resource_config = state.objects, state.resource_config
    blank = blank_of(pod, state)
    record = world.record(pod, resource_config)
    match record:
        case Pending() | Bound(bypassed=Bypassed()) if cluster.forbidden and pods_wire.counts(pod):
            return waiting.told(_with_request(blank, pod, resource_config), pod, events)
        case Pending() if pods_wire.counts(pod):
            own = world.config_of(pod, resource_config)
            return waiting.pending(blank, pod, record, state, own)
        case Pending():
            headline = f"{blank.phase}; it has ended"
            return replace(blank, state=State.ENDED, headline=headline, summary="it was on no node")
        case Bound(bypassed=Bypassed() as way):
            return waiting.bypassed(blank, pod, record, way, state)
        case Bound():
            return _bound(_with_request(blank, pod, resource_config), pod, record, state, cluster)
        case None:
            return _not_ours(blank, pod, cluster, resource_config)


def blank_of(pod: Object, state: World) -> Explanation:
    """What holds for a pod that asks for nothing."""
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


def _not_ours(blank: Explanation, pod: Object, cluster: Objects, resource_config: ResourceConfig) -> Explanation:
    blank = replace(blank, node=pods_wire.node_of(pod))
    for container, resource, meant in typos.of_pod(pod, resource_config):
        summary = f"container {container} asks for {resource}, which gpushare does not know; do you mean {meant}?"
        return replace(
            blank, headline=f"{blank.phase}; asks for no GPU that gpushare knows", summary=summary, good=False
        )
    if not pods_wire.needs_gpu(pod, ResourceConfig(whole_gpus=True)):
        return blank
    serving = [node for node in cluster.nodes if (schedulable.node_facts(node).allocatable or {}).get(names.GPU)]
    if serving or cluster.forbidden:
        summary = f"it asks for {names.GPU}, which gpushare does not hand out in this cluster"
        if serving:
            summary += f"; another device plugin does, on {len(serving)} node{'s' if len(serving) > 1 else ''}"
        return replace(blank, headline=f"{blank.phase}; none of gpushare's", summary=summary)
    summary = (
        f"it asks for {names.GPU}, and no node offers it: whole GPUs are switched off in gpushare"
        f" (GPUSHARE_WHOLE_GPUS in ConfigMap {names.CONFIG}), and no other device plugin serves it"
    )
    return replace(blank, headline=f"{blank.phase}; none of gpushare's", summary=summary, good=blank.phase != "Pending")


def _bound(blank: Explanation, pod: Object, record: Bound, state: World, cluster: Objects) -> Explanation:
    """A pod on a node that was given GPUs by somebody."""
    node = state.nodes.get(record.node)
    inventory = node.record.inventory if node else None
    if not pods_wire.holds_gpus(pod):
        return held.ended(blank, pod, record, inventory)
    shown = inventory or _equal_gpus(record.node, cluster)
    unit = shown.unit if shown else blank.unit
    try:
        allocation = pod_records.held(record, unit)
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


def _choice(blank: Explanation, pod: Object, record: Bound, state: World) -> Choice | None:
    """Why it is there, if gpushare chose its node and GPUs."""
    late = pods_wire.annotations(pod).get(names.ANNOTATION_LATE)
    if blank.request is None or record.allocation is None or late:
        return None
    leaving = replace(world.to_place(pod, blank.request), takes=record.ask.host)
    alone = state.without(leaving, record.node)
    policies = alone.policies(blank.request)
    answered = world.ask(alone, world.unbound(pod), blank.request, policies)
    return choice.of_bound(record, record.allocation, blank.request, alone, answered, policies)


def _with_request(blank: Explanation, pod: Object, resource_config: ResourceConfig) -> Explanation:
    """What a pod asked for, if that can still be understood; it does not matter any more."""
    try:
        request = requests.of_pod(pod, world.config_of(pod, resource_config))
    except InvalidRequestError:
        return blank
    return replace(blank, request=request)


def _equal_gpus(name: NodeName, cluster: Objects) -> NodeInventory | None:
    """GPUs of a node of Aliyun's plugin, to show what its pods hold."""
    node = next((node for node in cluster.nodes if node_records.name_of(node) == name), None)
    equal = world.equal_gpus(node, []) if node else None
    return equal[0] if equal else None
