"""A cluster as the controller and kube-scheduler see it, and what its nodes answer to a pod. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from gpushare import names, units
from gpushare.cluster import bypass, claim_records, groups, node_ledger, node_records, pod_records
from gpushare.cluster.bypass import Fate
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.cluster.node_ledger import PodToPlace
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, Bypassed, PodRecord, Problem
from gpushare.errors import InvalidRequestError, SettingsError
from gpushare.identity import NodeName, PodRef, PodUid, by_index
from gpushare.model.capacity import Ask, FreeHost, NodeCapacity
from gpushare.model.gpu import MAX_GPUS, Gpu, NodeInventory
from gpushare.model.ledger import (
    Allocation,
    Grant,
    LedgerOrRefused,
    NodeLedger,
    Placed,
    RefusalReason,
    Refused,
    Verdict,
)
from gpushare.model.request import DEFAULT_POLICY, ContainerKind, ContainerRequest, PodRequest, Policy, RequestShape
from gpushare.placement import costs, outlook as outlooks
from gpushare.placement.explain import NODES_NAMED, largest_free, together
from gpushare.placement.outlook import NOTHING_KNOWN, Outlook
from gpushare.placement.policies import LEARNING, Policies
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from gpushare.wire import fields, pods as pods_wire, requests
from gpushare_cli import schedulable
from gpushare_cli.reading import Objects, Settings
from gpushare_cli.schedulable import NodeFacts

Object = Mapping[str, Any]
Recorded = tuple[Object, PodRecord | None]  # a pod, with what the controller keeps of it
_MIB: Final = MemoryUnit(1)
_UNREAD: Final = Objects()
_NOT_MUTATED: Final = "the webhook did not change it, so its containers would not see GPUs that they are given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(node_ledger.Node):
    facts: NodeFacts


@dataclass(frozen=True, kw_only=True)
class World:
    nodes: Mapping[NodeName, Node]  # by name, sorted
    pods: tuple[Recorded, ...]  # those that concern GPUs
    resource_config: ResourceConfig
    holders: Mapping[str, Sequence[Mapping[str, str]]]  # namespace -> labels of each of its pods that hold GPUs
    problems: Mapping[PodRef, Problem]  # bound pods whose allocations cannot be read
    elsewhere: Mapping[str, int]  # nodes that are not known -> how many pods of theirs hold or want GPUs
    asks: tuple[Ask, ...]  # what pods take: those that hold GPUs or wait for some, and those on nodes without any
    objects: Objects
    policy: Policy  # of pods that name none

    @property
    def unit(self) -> MemoryUnit:
        return self.resource_config.unit

    @cached_property
    def outlook(self) -> Outlook:
        """What placement knows of the cluster, from what its pods ask for and what is free."""
        nodes = [
            (node, node.ledger)
            for node in self.nodes.values()
            if isinstance(node.ledger, NodeLedger) and node.ledger.inventory.gpus
        ]
        now = [NodeCapacity.of(ledger, node.host) for node, ledger in nodes]
        empty = [NodeCapacity.of(NodeLedger.of(ledger.inventory), node.record.allocatable) for node, ledger in nodes]
        return outlooks.of_cluster(self.asks, empty, now)

    def policies(self, request: PodRequest | None = None) -> Policies:
        learns = request is None or (request.shape.policy or self.policy) in LEARNING
        return Policies(self.policy, self.outlook if learns else NOTHING_KNOWN)

    def without(self, pod: PodToPlace, name: NodeName) -> "World":
        node = self.nodes.get(name)
        return self if node is None else replace(self, nodes={**self.nodes, name: node.without([pod])})


def of(objects: Objects, settings: Settings) -> World:
    nodes = []
    for node in objects.nodes:
        facts = schedulable.node_facts(node)
        nodes.append((node_records.read(node, None, objects.unhealthy.get(facts.name, frozenset())), facts))
    unit = settings.memory_unit or unit_of(record for record, _ in nodes)
    config = ResourceConfig(unit=unit, whole_gpus=settings.whole_gpus)
    pods = [(pod, record(pod, config)) for pod in objects.pods]
    return build(nodes, pods, config, objects, settings.gpu_policy)


def of_claims(state: World, claims: Iterable[ClaimRecord]) -> World:
    """The same cluster as ResourceClaims see it: GPUs of mode dra, and what the claims hold of them."""
    of_pods: dict[PodUid, list[ClaimRecord]] = defaultdict(list)
    for claim in claims:
        of_pods[claim.pod.uid].append(claim)
    on_node: dict[NodeName, list[Allocation]] = defaultdict(list)
    records = [record for there in of_pods.values() if (record := claim_records.of_pod(there))]
    for record in records:
        if isinstance(record, Bound) and record.allocation is not None:
            on_node[record.node].append(record.allocation)
    nodes = {}
    for name, node in state.nodes.items():
        if (view := claim_records.view(node.record)) and view.inventory:
            nodes[name] = replace(node, record=view, ledger=NodeLedger.of(view.inventory, on_node[name]))
    return replace(state, nodes=nodes, holders={}, problems={}, asks=tuple(record.ask for record in records))


def record(pod: Object, resource_config: ResourceConfig) -> PodRecord | None:
    return pod_records.read(pod, config_of(pod, resource_config))


def config_of(pod: Object, resource_config: ResourceConfig) -> ResourceConfig:
    """By which a pod's request is read: whole GPUs are ours where our webhook or controller has taken care of them."""
    taken_care_of = names.ANNOTATION_ALLOCATION in pods_wire.annotations(pod) or _is_granted(pod)
    return replace(resource_config, whole_gpus=resource_config.whole_gpus or taken_care_of)


def request_of(pod: Object, config: ResourceConfig) -> PodRequest | None:
    """What a pod asks for; None also if that cannot be understood."""
    with suppress(InvalidRequestError):
        return requests.of_pod(pod, config)
    return None


def _is_granted(pod: Object) -> bool:
    """Whether a container that asks for whole GPUs takes its devices from the binding's annotation."""
    return any(
        pods_wire.asks(container, ResourceConfig(whole_gpus=True))
        and not pods_wire.asks(container, ResourceConfig())
        and pods_wire.takes_its_grant(container, fields.text(container, "name", path))
        for path, _, container in pods_wire.containers(pod)
    )


def build(
    known: Iterable[tuple[NodeRecord, NodeFacts]],
    pods: Iterable[Recorded],
    resource_config: ResourceConfig,
    objects: Objects = _UNREAD,
    policy: Policy = DEFAULT_POLICY,
) -> World:
    """The state of a cluster of these nodes, of pods with what the controller would keep of each, and of other pods."""
    by_name = {record.name: (record, facts) for record, facts in known}
    pods = tuple(pods)
    bound = [record for _, record in pods if isinstance(record, Bound)]
    on_node: defaultdict[NodeName, list[Bound]] = defaultdict(list)
    taken: defaultdict[NodeName, list[FreeHost]] = defaultdict(list)
    holders: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
    requested: defaultdict[NodeName, Counter[str]] = defaultdict(Counter)
    for other in objects.others:
        taken[other.node].append(other.takes)
    for each in bound:
        on_node[each.node].append(each)
        taken[each.node].append(each.ask.host)
        if each.holds:
            holders[each.ref.namespace].append(each.labels)
    for value, _ in pods:
        if (there := pods_wire.node_of(value)) in by_name and pods_wire.counts(value):
            requested[there].update(schedulable.requests(value))
    asks = [record.ask for _, record in pods if record is not None and record.ask.gpus]
    nodes: dict[NodeName, Node] = {}
    problems: dict[PodRef, Problem] = {}
    for name in sorted(by_name):
        node_record, facts = by_name[name]
        ledger, unreadable = node_ledger.of_node(node_record, on_node[name], (), resource_config.unit)
        problems |= unreadable
        nodes[name] = Node(
            record=node_record,
            facts=facts,
            ledger=ledger,
            host=node_record.allocatable.left_by(taken[name]) if node_record.allocatable else None,
            allocatable=facts.allocatable,
            requested=requested[name],
        )
    return World(
        nodes=nodes,
        pods=pods,
        resource_config=resource_config,
        holders=holders,
        problems=problems,
        elsewhere=dict(sorted(Counter(each.node for each in bound if each.node not in by_name).items())),
        asks=(*asks, *(Ask.of_host(other.takes) for other in objects.others)),
        objects=objects,
        policy=policy,
    )


def unit_of(known: Iterable[NodeRecord]) -> MemoryUnit:
    counted: dict[MemoryUnit, NodeName] = {}
    for record in sorted(known, key=lambda record: record.name):
        if record.inventory is not None:
            counted.setdefault(record.inventory.unit, record.name)
    if len(counted) > 1:
        counts = " and ".join(f"{name} in {unit.name}" for unit, name in counted.items())
        raise SettingsError(f"--memory-unit: needed, because nodes count in different ones: {counts}")
    return next(iter(counted), GIB)


def to_place(value: Object, request: PodRequest) -> PodToPlace:
    takes, counted = FreeHost.of(request), schedulable.requests(value)
    return PodToPlace(ref=request.pod, shape=request.shape, labels=request.labels, takes=takes, counted=counted)


def unbound(value: Object) -> Object:
    """The pod as it is, or its successor will be, before it is on a node."""
    return {**value, "spec": {key: field for key, field in value["spec"].items() if key != "nodeName"}}


@dataclass(frozen=True, slots=True, order=True)
class Option:  # a node that a pod may have, and what it makes of it; the least cost first
    cost: costs.Cost  # by the pod's policy
    node: NodeName
    change: costs.Change = field(compare=False)
    grants: tuple[Grant, ...] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    node: NodeName
    verdict: Verdict  # of the GPUs, as the controller decides
    blockers: tuple[str, ...] = ()  # what Kubernetes itself has against the node, in a few words each
    score: int | None = None  # 10 for the best node, 1 to 8 for others; None if it does not fit
    option: Option | None = None  # of which the score is made

    @property
    def fits(self) -> bool:
        return isinstance(self.verdict, Placed) and not self.blockers

    @property
    def has_gpus(self) -> bool:
        return not (isinstance(self.verdict, Refused) and self.verdict.reason is RefusalReason.NO_INVENTORY)

    @property
    def why_not(self) -> str:
        """In words; empty if it fits."""
        blockers = ", ".join(self.blockers)
        match self.verdict:
            case Refused(message=message):
                return f"{message}; and {blockers}" if blockers else message
            case Placed():
                return f"{self.node} has room, but: {blockers}" if blockers else ""


def ask(world: World, value: Object, request: PodRequest, policies: Policies) -> list[NodeAnswer]:
    """What every node answers to a pod, the best first."""
    pod = to_place(value, request)
    shape = groups.resolved(pod.shape, pod.labels, lambda namespace: world.holders.get(namespace, ()))
    found: dict[NodeName, NodeAnswer] = {}
    fits: dict[NodeName, tuple[costs.Change, tuple[Grant, ...]]] = {}
    for name, node in world.nodes.items():
        verdict = node_ledger.verdict(shape, node.ledger, policies)
        # A refusal has better numbers than the sums of what is requested.
        lacks = node.lacks(pod.takes, pod.counted if isinstance(verdict, Placed) else {})
        blockers = (*schedulable.misplaced(value, node.facts), *lacks)
        if isinstance(verdict, Placed) and not blockers:
            fits[name] = node.change(pod, verdict.grants), verdict.grants
        found[name] = NodeAnswer(node=name, verdict=verdict, blockers=blockers)
    # Kube-scheduler asks for the score of those nodes alone that pass all filters.
    known = costs.costs_of([change for change, _ in fits.values()], policies.of(shape.policy))
    for name, cost, score in zip(fits, known, costs.grades_of(list(fits), known), strict=True):
        found[name] = replace(found[name], option=Option(cost, name, *fits[name]), score=score)
    return closest_first(found.values(), {name: node.ledger for name, node in world.nodes.items()})


def closest_first(answers: Iterable[NodeAnswer], ledgers: Mapping[NodeName, LedgerOrRefused]) -> list[NodeAnswer]:
    """Nodes that take the pod as the scheduler ranks them, then those that lack the least."""
    return sorted(answers, key=lambda answer: (*_distance(answer, ledgers.get(answer.node)), answer.node))


def _distance(answer: NodeAnswer, ledger: LedgerOrRefused | None) -> tuple[int, int]:
    match answer.verdict:
        case Placed():
            return (0, -(answer.score or 0)) if answer.fits else (1, 0)
        case Refused(permanent=permanent):
            kind = 4 if not answer.has_gpus else 3 if permanent else 2
            return kind, -largest_free(ledger)


def summary(answers: Sequence[NodeAnswer]) -> str:
    """Why a pod fits on none of these nodes: what the first of them say, and how many there are beside them."""
    if not answers:
        return "there are no nodes"
    relevant = [answer for answer in answers if answer.has_gpus]
    meant, which = (relevant, " with GPUs") if relevant else (answers, "")
    return together([answer.why_not for answer in meant[:NODES_NAMED]], len(meant), which)


def why_bypassed(fate: Fate, text: str, pod: Bypassed) -> str:
    """Why a pod that bypassed the scheduler gets no GPUs, and what is done about it."""
    again = bypass.again(pod)
    match fate:
        case Fate.INVALID:
            return f"what it asks for cannot be understood: {text}; fix that and {again}"
        case Fate.TOO_LATE:
            return (
                "its containers have started without GPUs from gpushare, and cannot be given any now;"
                f" {again} without spec.nodeName and with the scheduler {names.SCHEDULER}"
            )
        case Fate.RECREATE:
            return f"{_NOT_MUTATED}; the controller deletes it, so that its owner recreates it"
        case _:
            return f"{_NOT_MUTATED}; {f'{text} while {names.WEBHOOK} is running' if text else again}"


def named(part: ContainerRequest | Grant) -> str:
    """A container, with its kind unless it is an ordinary one."""
    return part.container if part.kind is ContainerKind.APP else f"{part.container} ({part.kind.value})"


def asked_for(shape: RequestShape) -> list[str]:
    """One for each container that asks, and one for each thing that the pod says about its GPUs."""
    asked = [f"{named(request)}: {_amount(request)}" for request in shape.containers]
    if text := str(shape.gpus):
        asked.append(f"only GPUs with {text}")
    if shape.only_cdi:
        asked.append("only nodes that hand GPUs over by CDI: it was created without a RuntimeClass")
    if shape.affinity is not None and shape.affinity.same is not None:
        asked.append(f"only GPUs that a pod with {shape.affinity.same} holds")
    if shape.affinity is not None and shape.affinity.other is not None:
        asked.append(f"only GPUs that no pod with {shape.affinity.other} holds")
    return asked


def _amount(request: ContainerRequest) -> str:
    several = request.gpu_count > 1
    if request.whole:
        return f"{request.gpu_count} whole GPU{'s' if several else ''}"
    where = f"each of {request.gpu_count} GPUs" if several else "one GPU"
    if request.memory_percent:
        return f"{request.memory_percent}% of {where}"
    compute = f" and {request.compute_percent}% of compute" if request.compute_percent else ""
    return f"{units.memory(request.memory_mib)}{compute} on {where}"


def as_json(answer: NodeAnswer) -> dict[str, Any]:
    refused = answer.verdict if isinstance(answer.verdict, Refused) else None
    return {
        "node": answer.node,
        "fits": answer.fits,
        "gpusFit": refused is None,
        "score": answer.score,
        "reason": refused.reason.value if refused else None,
        "message": refused.message if refused else None,
        "blockers": answer.blockers,
    }


def inventory_of(
    node: Mapping[str, Any], unhealthy: Mapping[NodeName, frozenset[int]], notes: list[str]
) -> tuple[NodeInventory, int] | None:
    """GPUs of a node and the MiB that it can hand out, or None if it shares no GPUs."""
    record = node_records.read(node, None, unhealthy.get(node_records.name_of(node), frozenset()))
    if record.inventory is not None:
        return record.inventory, record.inventory.unit.to_mib(record.inventory.total_units)
    if record.problem:
        notes.append(f"{record.problem}; its GPUs are shown as equal")
    return equal_gpus(node, notes)


def equal_gpus(
    node: Mapping[str, Any], notes: list[str], unit: MemoryUnit | None = None
) -> tuple[NodeInventory, int] | None:
    """GPUs of a node of which Aliyun's plugin tells how many there are and what they have together."""
    name = node_records.name_of(node)
    allocatable = fields.mapping(fields.mapping(node, "status", "node"), "allocatable", "status")
    total = units.whole(allocatable.get(names.GPU_MEM))
    if total == 0:
        return None
    count = units.whole(allocatable.get(names.GPU_COUNT))
    if count == 0:
        notes.append(f"node {name}: no {names.GPU_COUNT} in its status; its memory is shown as one GPU")
        count = 1
    if count > MAX_GPUS:
        notes.append(f"node {name}: {names.GPU_COUNT} is {count}, more than any node has; shown as one GPU")
        count = 1
    # Else Aliyun's own rule, which has no other sign of the unit.
    unit = unit or (_MIB if total // count > 100 else GIB)
    each = unit.to_mib(total // count)
    gpus = tuple(Gpu(uuid=by_index(i), index=i, model="unknown", memory_mib=each) for i in range(count))
    return NodeInventory(node=name, gpus=gpus, unit=unit), unit.to_mib(total)
