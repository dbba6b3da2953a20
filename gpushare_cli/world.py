"""Nodes and pods as API objects -> what the controller knows of them, and what kube-scheduler does. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpushare.cluster import groups, node_ledger
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, NonGpuPod, PodRecord, Problem
from gpushare.errors import SettingsError
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import Placed
from gpushare.model.capacity import Ask, FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest, Policy
from gpushare.placement import grade, ranking
from gpushare.placement import outlook as outlooks
from gpushare.placement.outlook import NOTHING_KNOWN, Outlook
from gpushare.placement.policies import LEARNING, Policies
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import asks as asks_wire
from gpushare.wire import host
from gpushare.wire import pods as pods_wire
from gpushare_cli import answers, schedulable
from gpushare_cli.answers import Answer
from gpushare_cli.nodefacts import NodeFacts

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node."""

    record: NodeRecord
    facts: NodeFacts
    ledger: LedgerOrRefused
    """Its ledger with all pods that hold GPUs, or why nothing can be placed there."""
    requested: Mapping[str, int] = field(default_factory=dict)
    """GPU resources that the pods on it ask for, by kube-scheduler's count."""
    host: FreeHost | None = None
    """CPU and memory that no pod there has requested; None if its kubelet has not said what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The whole cluster."""

    nodes: Mapping[NodeName, Node]
    """By name, sorted."""
    holders: Mapping[str, Sequence[Mapping[str, str]]]
    """Namespace -> labels of each of its pods that hold GPUs."""
    problems: Mapping[PodRef, Problem]
    """Bound pods whose allocations cannot be read."""
    elsewhere: Mapping[str, int]
    """Nodes that are not known -> how many pods of theirs hold or want GPUs."""
    asks: tuple[Ask, ...] = ()
    """What pods take: those that hold GPUs or wait for some, and those on nodes without any."""


def build(
    known: Iterable[tuple[NodeRecord, NodeFacts]],
    pods: Iterable[tuple[Object, PodRecord | None]],
    unit: MemoryUnit,
    guests: Iterable[NonGpuPod] = (),
) -> World:
    """The state of a cluster of these nodes, of pods with what the controller would keep of each, and of other pods."""
    by_name = {record.name: (record, facts) for record, facts in known}
    on_node: dict[NodeName, list[Bound]] = {name: [] for name in by_name}
    requested: dict[NodeName, Counter[str]] = {name: Counter() for name in by_name}
    elsewhere: Counter[str] = Counter()
    holders: dict[str, list[Mapping[str, str]]] = {}
    taken: dict[NodeName, list[FreeHost]] = {name: [] for name in by_name}
    asks: list[Ask] = []
    for guest in guests:
        taken.get(guest.node, []).append(guest.takes)
        asks.append(asks_wire.of_host(guest.takes))
    for value, record in pods:
        if record is not None and record.ask.gpus:
            asks.append(record.ask)
        if isinstance(record, Bound):
            taken.get(record.node, []).append(record.ask.host)
            if record.holds:
                holders.setdefault(record.ref.namespace, []).append(record.labels)
            if record.node in by_name:
                on_node[record.node].append(record)
            else:
                elsewhere[record.node] += 1
        node = pods_wire.node_of(value)
        if node is not None and node in by_name and schedulable.counts(value):
            requested[node].update(schedulable.requests(value))
    nodes: dict[NodeName, Node] = {}
    problems: dict[PodRef, Problem] = {}
    for name in sorted(by_name):
        record_of_node, facts = by_name[name]
        ledger, unreadable = node_ledger.of_node(record_of_node, on_node[name], (), unit)
        problems |= unreadable
        has = record_of_node.allocatable
        room = host.left(has, taken[name]) if has else None
        nodes[name] = Node(record=record_of_node, facts=facts, ledger=ledger, requested=requested[name], host=room)
    missing = dict(sorted(elsewhere.items()))
    return World(nodes=nodes, holders=holders, problems=problems, elsewhere=missing, asks=tuple(asks))


def without(world: World, pod: Bound) -> World:
    """The cluster as it would be if a pod on one of its nodes were not there."""
    node = world.nodes.get(pod.node)
    if node is None or not isinstance(node.ledger, NodeLedger):
        return world
    others = [each for each in node.ledger.allocations.values() if each.pod.uid != pod.ref.uid]
    room = node.host and node.host.plus(pod.ask.host)
    alone = replace(node, ledger=NodeLedger.of(node.ledger.inventory, others), host=room)
    return replace(world, nodes={**world.nodes, pod.node: alone})


def outlook(world: World) -> Outlook:
    """What placement knows of the cluster, from what its pods ask for and what is free."""
    ledgers = [
        (node.ledger, node)
        for node in world.nodes.values()
        if isinstance(node.ledger, NodeLedger) and node.ledger.inventory.gpus
    ]
    now = [NodeCapacity.of(ledger, node.host) for ledger, node in ledgers]
    empty = [NodeCapacity.of(NodeLedger.of(ledger.inventory), node.record.allocatable) for ledger, node in ledgers]
    return outlooks.of_cluster(world.asks, empty, now)


def policies(world: World, request: PodRequest, default: Policy) -> Policies:
    """The policies for a pod in this cluster."""
    chosen = request.shape.policy or default
    return Policies(default, outlook(world) if chosen in LEARNING else NOTHING_KNOWN)


def ask(world: World, pod: Object, request: PodRequest, policies: Policies) -> list[Answer]:
    """What every node answers to a pod, the best first."""
    takes = FreeHost.of(request)
    shape = groups.resolved(request.shape, request.labels, lambda namespace: world.holders.get(namespace, ()))
    found: dict[NodeName, Answer] = {}
    costs: dict[NodeName, int] = {}
    for name, node in world.nodes.items():
        verdict = node_ledger.verdict(shape, node.ledger, policies)
        answer = answers.of_node(pod, node.facts, node.requested, verdict)
        found[name] = replace(answer, blockers=(*answer.blockers, *schedulable.short_of_host(takes, node.host)))
        if isinstance(verdict, Placed) and isinstance(node.ledger, NodeLedger):
            policy = policies.of(shape.policy)
            costs[name] = ranking.cost_of(verdict.grants, node.ledger, policy, host=node.host, takes=takes)
    # Kube-scheduler asks for the score of those nodes alone that pass all filters.
    meant = [name for name, answer in found.items() if answer.fits]
    for name, score in zip(meant, grade.grades(meant, [costs[name] for name in meant]), strict=True):
        found[name] = replace(found[name], score=score)
    return answers.closest_first(found.values(), {name: node.ledger for name, node in world.nodes.items()})


def unit_of(known: Iterable[NodeRecord]) -> MemoryUnit:
    """The unit in which all nodes count.

    Raises:
        SettingsError: they count in different ones.
    """
    counted: dict[MemoryUnit, NodeName] = {}
    for record in sorted(known, key=lambda record: record.name):
        if record.inventory is not None:
            counted.setdefault(record.inventory.unit, record.name)
    if len(counted) > 1:
        counts = " and ".join(f"{name} in {unit.name}" for unit, name in counted.items())
        raise SettingsError(f"--memory-unit: needed, because nodes count in different ones: {counts}")
    return next(iter(counted), GIB)
