"""Files and a profile -> the nodes with their ledgers, and the pods that are to be placed. Pure."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import numpy as np

from gpushare import names, units
from gpushare.cluster import bypass, node_records
from gpushare.cluster.bypass import Fate
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, PodRecord
from gpushare.errors import InvalidRequestError, SettingsError, WireError
from gpushare.identity import NodeName, PodRef
from gpushare.model.capacity import Ask
from gpushare.model.gpu import NodeInventory
from gpushare.model.request import PodRequest, Policy
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import fields, host, requests, selectors, typos, unhealthy
from gpushare.wire import pods as pods_wire
from gpushare.wire import profile as profile_wire
from gpushare_cli import schedulable, world, yamls
from gpushare_cli.kube_scores import Floats, Load
from gpushare_cli.schedulable import NodeFacts
from gpushare_cli.scheduler_config import ServerVersion
from gpushare_cli.simulate import affinity, signature, workloads
from gpushare_cli.simulate.cluster import ENOUGH, Nodes
from gpushare_cli.simulate.objects import Found, Input
from gpushare_cli.simulate.signature import Owner, PodSignature, Signatures
from gpushare_cli.simulate.workloads import NewPod
from gpushare_cli.world import World, why_bypassed

Object = Mapping[str, Any]
MAX_NODES: Final = 5_000
_IN_CONFIG_MAP: Final = "profile.yaml"


class Outcome(Enum):
    PLACED = "Placed"
    WAITS = "Waits"
    """No node takes it."""
    REFUSED = "Refused"
    """The webhook does not let it be created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that is to be placed."""

    ref: PodRef
    value: Object
    signature: PodSignature | None = None
    """None if it is not placed anywhere."""
    request: PodRequest | None = None
    """None if it asks for no GPU, or `problem` says why it is not placed anywhere."""
    outcome: Outcome = Outcome.WAITS
    """What a problem means."""
    problem: str = ""
    of: str = ""
    """The workload that makes it; empty for a pod of its own."""
    only: NodeName | None = None
    """The only node that comes into question."""
    bound: bool = False
    """It is on that node already and was given no GPU yet, so Kubernetes has nothing more to say."""
    replicas_of: Owner | None = None
    """The owner whose pods kube-scheduler keeps apart, if it does not say so itself."""
    created: str = ""
    """Time of its creation, if that is known."""
    at_s: float = 0.0
    """When it comes, if pods end."""
    duration_s: float | None = None
    """From its binding on; None if it never ends."""


@dataclass(frozen=True, slots=True)
class Profile:
    """GPUs of nodes that exist nowhere else."""

    found: object
    name: str
    """Of its file."""
    count: int | None = None
    """Of nodes; None for those that the profile names and one other."""

    @classmethod
    def of(cls, documents: list[object], name: str, count: int | None) -> "Profile":
        """A file's: itself, or inside of the ConfigMap that the device plugin reads."""
        found = _first(documents)
        if isinstance(found, dict) and found.get("kind") == "ConfigMap":
            data: Any = found.get("data")
            if isinstance(data, dict) and isinstance(inner := data.get(_IN_CONFIG_MAP), str):
                found = _first(yamls.load_all(inner, f"{name}, data[{_IN_CONFIG_MAP}]"))
        return cls(found, name, count)


def _first(documents: list[object]) -> object:
    return next((document for document in documents if document is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that a plan is made of."""

    nodes: Nodes
    pods: tuple[Pod, ...]
    """In the order in which they are placed."""
    server: ServerVersion | None
    """Of the newest kubelet, if any node tells."""
    unit: MemoryUnit
    notes: tuple[str, ...]


def prepare(
    given: Input, profile: Profile | None, unit: MemoryUnit | None, *, whole_gpus: bool, replay: bool = False
) -> Question:
    """Make sense of the input.

    Args:
        given: the input.
        profile: of nodes beside those of the input.
        unit: of GPU memory; None for the one in which the nodes count.
        whole_gpus: whether that resource is ours.
        replay: place the cluster's pods again, from empty nodes on.

    Raises:
        WireError: an object cannot be read.
        SettingsError: the nodes count in different units, and none was given.
    """
    notes: list[str] = []
    found = _nodes(given, unit, notes)
    unit = unit or world.unit_of(record for record, _ in found.values())
    if profile is not None:
        found |= {inventory.node: _of_profile(inventory) for inventory in synthetic_nodes(profile, unit, found)}
    if not found:
        raise WireError("no node in the input; add what kubectl get nodes,pods -A -o yaml prints, or give --profile")
    resource_config = ResourceConfig(unit=unit, whole_gpus=whole_gpus)
    there = [pod for pod in given.known if not replay or workloads.is_static(pod)]
    existing = [(pod, _record(pod, resource_config)) for pod in there]
    state = world.build(found.values(), ((pod.value, record) for pod, record in existing), resource_config)
    created, noted = workloads.expand(given.wanted, given.known, [node.facts for node in state.nodes.values()])
    new = [_new(pod, resource_config) for pod in created]
    old = [_new(pod, resource_config) for pod in workloads.replayed(given.known)] if replay else []
    if old:
        new = [replace(pod, at_s=old[-1].at_s) for pod in new]
    notes += [*_unreadable(state), *noted, *_omissions(given)]
    policies = dict(_policies(given.namespaces))
    pods = tuple(_with_policy(pod, policies) for pod in (*_waiting(existing, state), *old, *new))
    facts = [node.facts for node in state.nodes.values()]
    on_nodes = _on_nodes(there, state)
    has_affinity = any(map(affinity.is_said, (*(pod.value for pod in pods), *(pod for pod, _ in on_nodes))))
    signatures = Signatures(facts, has_affinity=has_affinity)
    nodes = Nodes(
        world=state,
        max_pods=_max_pods(given.nodes, state),
        used=_used(on_nodes, len(facts)),
        replicas=_replicas(on_nodes),
        affinities=[(affinity.read(pod, facts), node) for pod, node in on_nodes] if has_affinity else None,
        asks=[_ask(pod.value, record) for pod, record in existing if pods_wire.counts(pod.value)],
    )
    notes += _without_capacity(nodes, pods)
    if replay and not old:
        notes.append("--replay: no pod of a cluster in the input; give what kubectl get nodes,pods -A -o yaml prints")
    elif not pods and not given.known:
        notes.append("no pod in the input, so nothing is placed; give pods or workloads with -f")
    notes += dict.fromkeys(
        f"{made.of}: container {container} asks for {resource}, which gpushare does not know; do you mean {near}?"
        for made in created
        for container, resource, near in typos.of_pod(made.value, resource_config)
    )
    return Question(
        nodes=nodes,
        pods=tuple(replace(pod, signature=_signature(pod, signatures)) for pod in pods),
        server=_server(given.nodes),
        unit=unit,
        notes=tuple(notes),
    )


def synthetic_nodes(profile: Profile, unit: MemoryUnit, taken: Collection[str]) -> tuple[NodeInventory, ...]:
    """Nodes with the GPUs of a profile: those that it names, and others up to the number.

    Raises:
        WireError: it is no profile.
        SettingsError: the number contradicts it.
    """
    try:
        found = profile.found
        named = profile_wire.nodes(found)
        has_others = not named or (isinstance(found, dict) and "gpus" in found)
        total = profile.count if profile.count is not None else len(named) + has_others
        if total > MAX_NODES:
            raise SettingsError(f"--nodes {total}: at most {MAX_NODES} nodes can be made up")
        if total < len(named):
            raise SettingsError(f"--nodes {total}: the profile names {len(named)} nodes: {', '.join(named)}")
        others = _names(total - len(named), {*named, *taken})
        return tuple(profile_wire.inventory(found, NodeName(name), unit) for name in [*named, *others])
    except WireError as error:
        raise WireError(f"{profile.name}: {error}") from error


def _names(count: int, taken: Collection[str]) -> list[str]:
    """`node-1` and so on, with as many digits as the last one needs, so that they sort by number."""
    names_of = (f"node-{number:0{len(str(count))}}" for number in itertools.count(1))
    return list(itertools.islice((name for name in names_of if name not in taken), count))


def _of_profile(inventory: NodeInventory) -> tuple[NodeRecord, NodeFacts]:
    labels = {schedulable.HOSTNAME: inventory.node, names.LABEL_SHARES: "true"}
    record = NodeRecord(name=inventory.node, published="", inventory=inventory)
    return record, NodeFacts(name=inventory.node, labels=labels)


def _nodes(given: Input, unit: MemoryUnit | None, notes: list[str]) -> dict[NodeName, tuple[NodeRecord, NodeFacts]]:
    marked = unhealthy.of_all(given.config_maps)
    found: dict[NodeName, tuple[NodeRecord, NodeFacts]] = {}
    for node in given.nodes:
        name = NodeName(node.name)
        with node.named():
            record = node_records.read(node.value, None, marked.get(name, frozenset()))
            if record.published is None and (equal := world.equal_gpus(node.value, notes, unit)) is not None:
                record = replace(record, inventory=equal[0])
                notes.append(f"node {name}: has no inventory; assuming equal GPUs")
            found[name] = record, schedulable.node_facts(node.value)
        if record.problem:
            notes.append(f"node {name}: takes no new pods: {record.problem}")
    return found


def _record(pod: Found, resource_config: ResourceConfig) -> PodRecord | None:
    with pod.named():
        return world.record(pod.value, resource_config)


def _unreadable(state: World) -> Iterator[str]:
    for pod, problem in state.problems.items():
        if problem.counted:
            yield f"pod {pod}: {problem.why}; counted by the other annotations of its binding"
    if state.elsewhere:
        count, where = sum(state.elsewhere.values()), ", ".join(state.elsewhere)
        what = "GPU pod is" if count == 1 else "GPU pods are"
        yield f"{count} {what} not counted, on nodes that are not in the input: {where}"


def _waiting(existing: Iterable[tuple[Found, PodRecord | None]], state: World) -> Iterator[Pod]:
    """Pods of the cluster that have no GPU yet: those on a node first, then by priority and age."""
    alive = [(pod, record) for pod, record in existing if _is_alive(pod)]
    for pod, record in sorted(alive, key=lambda found: _age(found[0])):
        if isinstance(record, Bound) and (way := record.bypassed) is not None:
            node = state.nodes.get(record.node)
            fate, text = bypass.outcome(way, node.ledger if node is not None else None, bypass.owner(pod.value))
            bound = Pod(ref=record.ref, value=pod.value, only=record.node, bound=True)
            if fate is Fate.BIND:
                yield replace(bound, request=way.request)
            elif fate is not Fate.LEFT_ALONE:
                yield replace(bound, problem=why_bypassed(fate, text, way))
    for pod, record in sorted(alive, key=lambda found: (-_priority(found[0]), *_age(found[0]))):
        if isinstance(record, Bound) or pods_wire.node_of(pod.value) is not None:
            continue
        waits = Pod(ref=pods_wire.ref(pod.value), value=pod.value, problem=_gated(pod.value), created=_age(pod)[0])
        yield (
            waits
            if record is None
            else replace(waits, ref=record.ref, request=record.request, problem=record.problem or waits.problem)
        )


def _gated(pod: Object) -> str:
    gates = schedulable.gates(pod)
    return f"waits behind scheduling gates: {', '.join(gates)}" if gates else ""


def _new(new: NewPod, resource_config: ResourceConfig) -> Pod:
    pod = Pod(
        ref=pods_wire.ref(new.value),
        value=new.value,
        problem=_gated(new.value),
        of="" if new.of.kind == "Pod" else str(new.of),
        only=new.only or pods_wire.node_of(new.value),
        replicas_of=(new.of.namespace, new.of.kind, new.of.name) if new.of.kind in workloads.SPREAD else None,
        created=new.created,
        at_s=new.at_s,
        duration_s=new.duration_s,
    )
    try:
        with new.of.named():
            return replace(pod, request=requests.of_pod(new.value, resource_config))
    except InvalidRequestError as error:
        return replace(pod, outcome=Outcome.REFUSED, problem=str(error))


def _signature(pod: Pod, signatures: Signatures) -> PodSignature | None:
    if pod.problem:
        return None
    if pod.bound:
        return signature.of_bound(pod.request) if pod.request is not None else None
    return signatures.of(pod.value, pod.request, pod.replicas_of)


def _server(nodes: Iterable[Found]) -> ServerVersion | None:
    """A kube-scheduler is no older than the kubelets of its cluster."""
    found = []
    for node in nodes:
        info = fields.mapping(fields.mapping(node.value, "status", "node"), "nodeInfo", "status")
        with contextlib.suppress(SettingsError):
            found.append(ServerVersion.parse(fields.text(info, "kubeletVersion", "status.nodeInfo")))
    return max(found, default=None)


def _policies(namespaces: Iterable[Found]) -> Iterator[tuple[str, Policy]]:
    for namespace in namespaces:
        metadata = fields.mapping(namespace.value, "metadata", "namespace")
        text = fields.mapping(metadata, "labels", "metadata").get(names.LABEL_POLICY)
        try:
            if text is not None:
                yield namespace.name, selectors.parse_policy(str(text))
        except ValueError as error:
            raise namespace.fail(f"metadata.labels[{names.LABEL_POLICY}]: {error}") from error


def _with_policy(pod: Pod, policies: Mapping[str, Policy]) -> Pod:
    request, policy = pod.request, policies.get(pod.ref.namespace)
    if request is None or policy is None or request.shape.policy is not None:
        return pod
    return replace(pod, request=replace(request, shape=replace(request.shape, policy=policy)))


def _on_nodes(pods: Iterable[Found], state: World) -> list[tuple[Object, int]]:
    """Pods that count on the nodes of a world, and the numbers of these."""
    places = {name: i for i, name in enumerate(state.nodes)}
    counted = [pod.value for pod in pods if pods_wire.counts(pod.value)]
    return [(pod, places[on]) for pod in counted if (on := pods_wire.node_of(pod)) is not None and on in places]


def _used(pods: Iterable[tuple[Object, int]], count: int) -> Floats:
    used = np.zeros((len(Load._fields), count))
    for pod, node in pods:
        used[:, node] += signature.load(pod)
    return used


def _replicas(pods: Iterable[tuple[Object, int]]) -> dict[Owner, Counter[int]]:
    replicas: dict[Owner, Counter[int]] = {}
    for pod, node in pods:
        if (owner := signature.owner(pod)) is not None:
            replicas.setdefault(owner, Counter())[node] += 1
    return replicas


def _max_pods(given: Iterable[Found], state: World) -> list[int]:
    found = dict.fromkeys(state.nodes, 0)
    for node in given:
        allocatable = fields.mapping(fields.mapping(node.value, "status", "node"), "allocatable", "status")
        found[NodeName(node.name)] = units.whole(allocatable.get("pods"))
    return [min(count, ENOUGH) or ENOUGH for count in found.values()]


def _ask(pod: Object, record: PodRecord | None) -> Ask:
    if isinstance(record, Bound):
        return record.ask
    return Ask() if pods_wire.node_of(pod) is None else requests.usage_of_host(host.counted(pod))


def _without_capacity(nodes: Nodes, pods: Iterable[Pod]) -> Iterator[str]:
    """That CPU and memory are asked for, and some nodes do not tell what they have."""
    count = nodes.has.count(None)
    if count and any(any(host.counted(pod.value)) for pod in pods):
        who, they = ("nodes do", "they have") if count > 1 else ("node does", "it has")
        yield f"{count} {who} not tell what CPU and memory {they}; assuming they have enough"


def _omissions(given: Input) -> Iterator[str]:
    if given.ignored:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(given.ignored.items()))
        yield f"not evaluated: {kinds}"
    spaces = {pod.namespace for pod in given.known}
    if given.nodes and len(spaces) == 1:
        yield (
            f"all pods of the input are in namespace {spaces.pop()}; if the list was made without -A, others hold more"
            " than is counted here"
        )


def _age(pod: Found) -> tuple[str, str, str]:
    metadata = fields.mapping(pod.value, "metadata", "pod")
    return fields.text(metadata, "creationTimestamp", "metadata"), pod.namespace, pod.name


def _is_alive(pod: Found) -> bool:
    """Whether anybody still looks for a GPU for a pod."""
    deleted = fields.mapping(pod.value, "metadata", "pod").get("deletionTimestamp") is not None
    return pods_wire.counts(pod.value) and not deleted


def _priority(pod: Found) -> int:
    value: Any = fields.mapping(pod.value, "spec", "pod").get("priority")
    return value if isinstance(value, int) else 0
