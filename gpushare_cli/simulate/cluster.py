"""Objects and a profile -> the nodes with their ledgers, and the pods that are to be placed. Pure."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpushare import names
from gpushare.cluster import bypass, node_records, pod_records
from gpushare.cluster.bypass import Bind, Hopeless, LeftAlone
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, Bypassed, Pending, PodRecord
from gpushare.errors import InvalidRequestError, SettingsError, WireError
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.model.request import Policy
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import fields, host, requests, selectors, typos, unhealthy
from gpushare.wire import pods as pods_wire
from gpushare_cli import schedulable, world
from gpushare_cli.schedulable import NodeFacts
from gpushare_cli.scheduler_config import ServerVersion
from gpushare_cli.simulate import replays, workloads
from gpushare_cli.simulate.hosts import Hosts, hosts_of
from gpushare_cli.simulate.objects import Found, Input
from gpushare_cli.simulate.plan import Outcome, Pod
from gpushare_cli.simulate.workloads import NewPod
from gpushare_cli.world import World, why_bypassed

MakeUp = Callable[[MemoryUnit, Sequence[str]], Sequence[NodeInventory]]
"""Unit of the cluster and names that are taken -> nodes that exist in a profile only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that a plan is made of."""

    world: World
    hosts: Hosts
    server: ServerVersion | None
    """Of the newest kubelet, if any node tells."""
    pods: tuple[Pod, ...]
    """In the order in which they are placed."""
    unit: MemoryUnit
    notes: tuple[str, ...]


def prepare(
    given: Input, make_up: MakeUp, unit: MemoryUnit | None, *, whole_gpus: bool, replay: bool = False
) -> Question:
    """Make sense of the input. Without a unit it is the one in which the nodes count.

    Args:
        given: the input.
        make_up: nodes of a profile.
        unit: of GPU memory.
        whole_gpus: whether that resource is ours.
        replay: place the cluster's pods again, from empty nodes on.

    Raises:
        WireError: an object cannot be read.
        SettingsError: the nodes count in different units, and none was given.
    """
    notes: list[str] = []
    known = _nodes(given, unit, notes)
    unit = unit or world.unit_of(record for record, _ in known.values())
    known |= {inventory.node: _made_up(inventory) for inventory in make_up(unit, list(known))}
    if not known:
        raise WireError("no node in the input; add what kubectl get nodes,pods -A -o yaml prints, or give --profile")
    resource_config = ResourceConfig(unit=unit, whole_gpus=whole_gpus)
    there = [pod for pod in given.known if not replay or replays.stays(pod)]
    existing = [(pod, _record(pod, resource_config)) for pod in there]
    state = world.build(known.values(), ((pod.value, record) for pod, record in existing), resource_config)
    created, noted = workloads.expand(given.wanted, given.known, [facts for _, facts in known.values()])
    new = [_new(pod, resource_config) for pod in created]
    old = list(_replayed(given.known, resource_config)) if replay else []
    if old:
        new = [replace(pod, at_s=old[-1].at_s) for pod in new]
    notes += [*_oddities(state), *noted, *_omissions(given)]
    policies = dict(_policies(given.namespaces))
    pods = tuple(_with_policy(pod, policies) for pod in (*_waiting(existing, state), *old, *new))
    hosts = hosts_of(given.nodes, state, there, resource_config)
    notes += _silent(hosts, pods)
    if replay and not old:
        notes.append("--replay: no pod of a cluster in the input; give what kubectl get nodes,pods -A -o yaml prints")
    elif not pods and not given.known:
        notes.append("no pod in the input, so nothing is placed; give pods or workloads with -f")
    notes += dict.fromkeys(
        f"{made.of}: container {container} asks for {resource}, which gpushare does not know; do you mean {near}?"
        for made in created
        for container, resource, near in typos.of_pod(made.value, resource_config)
    )
    return Question(world=state, hosts=hosts, server=_server(given.nodes), pods=pods, unit=unit, notes=tuple(notes))


def _made_up(inventory: NodeInventory) -> tuple[NodeRecord, NodeFacts]:
    """A node that exists in a profile only."""
    labels = {schedulable.HOSTNAME: inventory.node, names.LABEL_SHARES: "true"}
    return (
        NodeRecord(name=inventory.node, published="", inventory=inventory),
        NodeFacts(name=inventory.node, labels=labels),
    )


def _nodes(given: Input, unit: MemoryUnit | None, notes: list[str]) -> dict[NodeName, tuple[NodeRecord, NodeFacts]]:
    marked = unhealthy.of_all(given.config_maps)
    known: dict[NodeName, tuple[NodeRecord, NodeFacts]] = {}
    for node in given.nodes:
        name = NodeName(node.name)
        try:
            record = node_records.read(node.value, None, marked.get(name, frozenset()))
            if record.published is None and (equal := world.equal_gpus(node.value, notes, unit)) is not None:
                record = replace(record, inventory=equal[0])
                notes.append(f"node {name}: has no inventory, so its GPUs are taken to be equal")
            known[name] = record, schedulable.node_facts(node.value)
        except WireError as error:
            raise node.fail(error) from error
        if record.problem:
            notes.append(f"node {name}: takes no new pods: {record.problem}")
    return known


def _record(pod: Found, resource_config: ResourceConfig) -> PodRecord | None:
    try:
        return pod_records.read(pod.value, world.config_of(pod.value, resource_config))
    except WireError as error:
        raise pod.fail(error) from error


def _oddities(state: World) -> Iterator[str]:
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
    bypassed = [
        (pod, record, record.bypassed) for pod, record in alive if isinstance(record, Bound) and record.bypassed
    ]
    pending = [(pod, record) for pod, record in alive if record is None or isinstance(record, Pending)]
    pending = [(pod, record) for pod, record in pending if pods_wire.node_of(pod.value) is None]
    for pod, record, way in sorted(bypassed, key=lambda found: _age(found[0])):
        node = state.nodes.get(record.node)
        outcome = bypass.outcome(way, node.ledger if node is not None else None, bypass.owner(pod.value))
        if not isinstance(outcome, LeftAlone):
            yield _bypassed(pod, record, way, outcome)
    for pod, waiting in sorted(pending, key=lambda pair: (-_priority(pair[0]), *_age(pair[0]))):
        gates = schedulable.gates(pod.value)
        problem = f"waits behind scheduling gates: {', '.join(gates)}" if gates else ""
        if waiting is None:
            yield Pod(
                ref=pods_wire.ref(pod.value), value=pod.value, request=None, problem=problem, created=_age(pod)[0]
            )
        else:
            yield Pod(
                ref=waiting.ref,
                value=pod.value,
                request=waiting.request,
                problem=waiting.problem or problem,
                created=_age(pod)[0],
            )


def _bypassed(pod: Found, record: Bound, way: Bypassed, outcome: Bind | Hopeless) -> Pod:
    bound = Pod(ref=record.ref, value=pod.value, request=None, only=record.node, bound=True)
    if isinstance(outcome, Bind):
        return replace(bound, request=outcome.request)
    return replace(bound, problem=why_bypassed(outcome, way))


def _new(new: NewPod, resource_config: ResourceConfig) -> Pod:
    """A pod that would be created."""
    ref, of = pods_wire.ref(new.value), "" if new.of.kind == "Pod" else str(new.of)
    only = new.only or pods_wire.node_of(new.value)
    gates = schedulable.gates(new.value)
    try:
        request = requests.of_pod(new.value, resource_config)
    except InvalidRequestError as error:
        return Pod(ref=ref, value=new.value, request=None, outcome=Outcome.REFUSED, problem=str(error), of=of)
    except WireError as error:
        raise new.of.fail(error) from error
    problem = f"waits behind scheduling gates: {', '.join(gates)}" if gates else ""
    owner = (ref.namespace, new.of.kind, new.of.name) if new.of.kind in workloads.SPREAD else None
    return Pod(ref=ref, value=new.value, request=request, problem=problem, of=of, only=only, replicas_of=owner)


def _replayed(known: Iterable[Found], resource_config: ResourceConfig) -> Iterator[Pod]:
    """Pods of the cluster as they came, each on its own."""
    for one in replays.of(known):
        pod = _new(NewPod(of=one.of, value=one.value), resource_config)
        yield replace(pod, created=one.created, at_s=one.at_s, lasts_s=one.lasts_s)


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
    """With that of its namespace, if it names none."""
    request, policy = pod.request, policies.get(pod.ref.namespace)
    if request is None or policy is None or request.shape.policy is not None:
        return pod
    return replace(pod, request=replace(request, shape=replace(request.shape, policy=policy)))


def _silent(hosts: Hosts, pods: Iterable[Pod]) -> Iterator[str]:
    """That CPU and memory are asked for, and some nodes do not tell what they have."""
    count = hosts.silent
    if count and any(any(host.counted(pod.value)) for pod in pods):
        many = (
            "nodes do not tell what CPU and memory they have"
            if count > 1
            else "node does not tell what CPU and memory it has"
        )
        yield f"{count} {many}; they are taken to be enough"


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
