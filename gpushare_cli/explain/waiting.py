"""Why a pod is on no node, or on one without GPUs. Pure.

The answers of the nodes are the controller's own, so what is said here is what the scheduler is told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpushare import names
from gpushare.cluster import bypass
from gpushare.cluster.bypass import Bind, Invalid, LeftAlone
from gpushare.cluster.pod_records import Bound, Bypassed, Pending
from gpushare.cluster.reasons import NODES_NAMED, by_sum
from gpushare.model.allocation import Refused
from gpushare.model.capacity import FreeHost
from gpushare.model.request import PodRequest
from gpushare.units import ResourceConfig
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import schedulable, world
from gpushare_cli.explain import choice
from gpushare_cli.explain.model import Explanation, State
from gpushare_cli.world import NodeAnswer, World, why_bypassed

Object = Mapping[str, Any]
_DEFAULT_SCHEDULER = "default-scheduler"
WAITS = "waits"
NOTHING_SAID = "neither the scheduler nor gpushare has said anything about it yet"
UNREADABLE = "waits; what it asks for cannot be understood"


def pending(
    blank: Explanation, pod: Object, record: Pending, state: World, resource_config: ResourceConfig
) -> Explanation:
    """A pod that is on no node."""
    scheduler = fields.text(fields.mapping(pod, "spec", "pod"), "schedulerName", "spec") or _DEFAULT_SCHEDULER
    blank = replace(blank, state=State.WAITS, scheduler=scheduler, said=said(pod), good=False)
    if record.request is None:
        return replace(blank, headline=UNREADABLE, summary=fix(record))
    policies = state.policies(record.request)
    answered = world.ask(state, pod, record.request, policies)
    blank = replace(
        blank,
        request=record.request,
        answers=tuple(answered),
        choice=choice.of_waiting(record.ref, record.request, state, answered, policies),
        notes=(
            *blank.notes,
            *_notes(pod, scheduler, resource_config, state),
            *_sums(pod, record.request, state, answered),
        ),
    )
    headline, summary, good = reason(pod, answered)
    return replace(blank, headline=headline, summary=summary, good=good)


def reason(pod: Object, answered: Sequence[NodeAnswer]) -> tuple[str, str, bool]:
    """Why a pod that asks for GPUs is on no node: in a few words, in full, and whether a node takes it by now."""
    if gates := schedulable.gates(pod):
        summary = f"no scheduler looks at it until its scheduling gates are removed: {', '.join(gates)}"
        return "waits behind scheduling gates", summary, False
    fitting = [answer.node for answer in answered if answer.fits]
    if not fitting:
        return "waits; it fits on no node", world.summary(answered), False
    return f"waits; it fits on {_nodes(fitting)}", _soon(pod, fitting), True


def fix(record: Pending) -> str:
    """What is wrong with a request that cannot be understood, and what its author does."""
    return f"{record.problem}; fix that, delete the pod and create it again"


def told(blank: Explanation, pod: Object, events: Sequence[Object]) -> Explanation:
    """A pod that waits in a cluster that may not be read: what the scheduler and gpushare have told its author."""
    node = pods_wire.node_of(pod)
    scheduler = fields.text(fields.mapping(pod, "spec", "pod"), "schedulerName", "spec") or _DEFAULT_SCHEDULER
    ours = [event for event in events if str(event.get("reason", "")).startswith(names.EVENT_PREFIX)]
    words = [fields.text(event, "message", "event") for event in ours[-1:]]
    return replace(
        blank,
        state=State.WITHOUT_GPU if node else State.WAITS,
        node=node,
        headline=f"on {node} without GPUs" if node else WAITS,
        summary="".join(words) or said(pod) or NOTHING_SAID,
        scheduler=scheduler,
        said=said(pod),
        good=False,
    )


def bypassed(blank: Explanation, pod: Object, record: Bound, way: Bypassed, state: World) -> Explanation:
    """A pod that is on a node and was given no GPUs: what the controller does about it."""
    headline = f"on {record.node} without GPUs"
    blank = replace(blank, state=State.WITHOUT_GPU, node=record.node, headline=headline, good=False)
    node = state.nodes.get(record.node)
    outcome = bypass.outcome(way, node.ledger if node is not None else None, bypass.owner(pod))
    if isinstance(outcome, LeftAlone) and node is not None:
        summary = (
            "the webhook did not change it, and nothing says that gpushare hands out GPUs there: anyone else who does"
            " so"
            f" {'has started it' if way.started else 'may start it'}, and gpushare leaves it alone"
        )
        return replace(blank, headline=f"{headline} from gpushare", summary=summary, good=way.started)
    if isinstance(outcome, Invalid):
        return replace(blank, summary=why_bypassed(outcome, way))
    blank = replace(blank, request=way.request)
    if node is None or isinstance(outcome, LeftAlone):
        return replace(blank, summary=f"its node {record.node} is gone")
    if isinstance(outcome, Bind):
        return _on_its_node(blank, outcome.request, replace(state, nodes={record.node: node}), bypass.again(way))
    return replace(blank, summary=why_bypassed(outcome, way))


def _on_its_node(blank: Explanation, request: PodRequest, alone: World, again: str) -> Explanation:
    # Kubernetes has nothing more to say: the pod is there.
    policies = alone.policies(request)
    (answer,) = [replace(answered, blockers=()) for answered in world.ask(alone, {}, request, policies)]
    blank = replace(blank, answers=(answer,))
    if answer.fits:
        summary = "there is room: the controller chooses its GPUs within moments, and its containers start then"
        return replace(blank, summary=summary, good=True)
    return replace(blank, summary=f"its containers wait until there is room: {answer.why_not}; or {again}")


def said(pod: Object) -> str:
    """What the scheduler wrote on a pod when it last gave up; empty if it did not."""
    scheduled = fields.condition(pod, "PodScheduled", "pod")
    if scheduled.get("status") != "False":
        return ""
    return fields.text(scheduled, "message", "condition") or fields.text(scheduled, "reason", "condition")


def _notes(pod: Object, scheduler: str, resource_config: ResourceConfig, state: World) -> Sequence[str]:
    notes = []
    if scheduler != names.SCHEDULER:
        notes.append(
            f"its scheduler is {scheduler}: only one that asks gpushare's extender gives it GPUs at once"
            f" ({names.SCHEDULER} does; gpushare doctor tells of others)"
        )
    if not pods_wire.is_mutated(pod, resource_config):
        notes.append("the webhook did not change it, so its containers would not see their GPUs; recreate it")
    with_host = all(node.host is not None for node in state.nodes.values())
    if missing := schedulable.overlooked(pod, with_host=with_host):
        notes.append(f"not evaluated: {', '.join(missing)}")
    nominated = fields.text(fields.mapping(pod, "status", "pod"), "nominatedNodeName", "status")
    if nominated:
        notes.append(f"pods on {nominated} are being evicted to make room for it")
    if fields.mapping(pod, "metadata", "pod").get("deletionTimestamp"):
        notes.append("it is being deleted")
    return notes


def _sums(pod: Object, request: PodRequest, state: World, answered: Sequence[NodeAnswer]) -> Sequence[str]:
    """What an autoscaler does about a pod that fits on no node."""
    if any(answer.fits for answer in answered):
        return ()
    takes, counted, suffice = FreeHost.of(request), schedulable.requests(pod), []
    for answer in answered:
        node = state.nodes[answer.node]
        if isinstance(answer.verdict, Refused) and answer.has_gpus and not answer.blockers:
            suffice += [] if node.lacks(takes, counted) else [answer.node]
    return (by_sum(suffice),) if suffice else ()


def _soon(pod: Object, fitting: Sequence[str]) -> str:
    where = _nodes(fitting)
    if said(pod):
        return (
            f"there is room on {where} as far as was evaluated; the controller makes the scheduler try again within"
            " seconds, unless something else keeps it away"
        )
    return f"there is room on {where} as far as was evaluated; the scheduler has not come to it yet"


def _nodes(fitting: Sequence[str]) -> str:
    named = ", ".join(fitting[:NODES_NAMED])
    more = len(fitting) - NODES_NAMED
    return f"{named} and {more} more" if more > 0 else named
