"""Files and a profile -> the nodes with their ledgers, and the pods that are to be placed. Pure."""

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from gpushare import names
from gpushare.cluster import bypass, claim_records, node_records
from gpushare.cluster.bypass import Fate
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, Pending, PodRecord
from gpushare.errors import InvalidRequestError, SettingsError, WireError
from gpushare.identity import NodeName
from gpushare.model.capacity import Ask
from gpushare.model.gpu import NodeInventory
from gpushare.model.request import ContainerRequest, PodRequest, Policy, RequestShape
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import claims as claims_wire, fields, pods as pods_wire, profile as profile_wire, requests
from gpushare_cli import schedulable, world, yamls
from gpushare_cli.kube_scores import Load
from gpushare_cli.schedulable import NodeFacts
from gpushare_cli.scheduler_config import ServerVersion
from gpushare_cli.simulate import objects, signature, workloads
from gpushare_cli.simulate.cluster import Nodes
from gpushare_cli.simulate.objects import Found, Input
from gpushare_cli.simulate.signature import Owner, PodSignature, Signatures
from gpushare_cli.simulate.workloads import Outcome, Pod
from gpushare_cli.world import World, why_bypassed

Object = Mapping[str, Any]
MAX_NODES: Final = 5_000
_IN_CONFIG_MAP: Final = "profile.yaml"


@dataclass(frozen=True, slots=True)
class Profile:  # GPUs of nodes that exist nowhere else
    found: object
    name: str  # of its file
    count: int | None = None  # of nodes; None for those that the profile names and one other

    @classmethod
    def of(cls, name: str, documents: list[object], count: int | None) -> "Profile":
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
class Question:  # all that a plan is made of
    nodes: Nodes
    pods: tuple[Pod, ...]  # in the order in which they are placed
    server: ServerVersion | None  # of the newest kubelet, if any node tells
    unit: MemoryUnit
    notes: tuple[str, ...]


def prepare(
    given: Input,
    profile: Profile | None,
    unit: MemoryUnit | None,
    *,
    whole_gpus: bool,
    replay: bool = False,
    claims: bool = False,
) -> Question:
    """Make sense of the input, with nodes of the profile beside its own; in its nodes' unit if none is given.

    With claims it is about pods with ResourceClaims, and GPUs of mode dra, which those of a profile are then.

    Raises SettingsError: the nodes count in different units, and none was given.
    """
    notes: list[str] = []
    found = _nodes(given, unit, notes)
    unit = unit or world.unit_of(record for record, _ in found.values())
    if profile is not None:
        for inventory in synthetic_nodes(profile, unit, found):
            name = inventory.node
            labels = {schedulable.HOSTNAME: name, names.LABEL_SHARES: "true"}
            of_mode = replace(inventory, gpus=(), dra=inventory.gpus) if claims else inventory
            made = NodeRecord(name=name, published="", inventory=of_mode)
            found[name] = made, NodeFacts(name=name, labels=labels)
    if not found:
        raise WireError("no node in the input; add what kubectl get nodes,pods -A -o yaml prints, or give --profile")
    resource_config = ResourceConfig(unit=unit, whole_gpus=whole_gpus)
    there = [pod for pod in given.known if not replay or workloads.is_static(pod)]
    existing = [(pod, _record(pod, resource_config)) for pod in there]
    recorded = ((pod.value, record) for pod, record in existing)
    state = _of_claims(world.build(found.values(), recorded, resource_config), given if claims else None)
    facts = [node.facts for node in state.nodes.values()]
    created, noted = workloads.expand(given.wanted, given.known, facts)
    old = workloads.replayed(given.known) if replay else []
    new = [replace(pod, at_s=old[-1].at_s) for pod in created] if old else created
    notes += [*_unreadable(state), *noted, *_omissions(given)]
    policies = dict(_policies(given.namespaces))
    every = (*_waiting(existing, state), *(_asking(pod, resource_config) for pod in (*old, *new)))
    if claims:
        every = tuple(_claiming(every, {(each.namespace, each.name): each for each in given.claims}))
    pods = tuple(_with_policy(pod, policies) for pod in every)
    places = {name: i for i, name in enumerate(state.nodes)}
    counted = [pod.value for pod in there if pods_wire.counts(pod.value)]
    on_nodes = [(pod, places[on]) for pod in counted if (on := pods_wire.node_of(pod)) in places]
    used, replicas = np.zeros((len(Load._fields), len(facts))), defaultdict[Owner, Counter[int]](Counter)
    for pod, node in on_nodes:
        used[:, node] += signature.load(pod)
        if (owner := signature.owner(pod)) is not None:
            replicas[owner][node] += 1
    has_affinity = any(map(signature.has_affinity, (*(pod.value for pod in pods), *(pod for pod, _ in on_nodes))))
    signatures = Signatures(facts, has_affinity=has_affinity)
    nodes = Nodes(
        world=state,
        used=used,
        replicas=replicas,
        affinities=[(signature.affinity_of(pod, facts), node) for pod, node in on_nodes] if has_affinity else None,
        asks=_asks(existing, state if claims else None),
    )
    silent = nodes.has.count(None)
    if silent and any(any(pods_wire.host_requests(pod.value)) for pod in pods):
        who, they = ("nodes do", "they have") if silent > 1 else ("node does", "it has")
        notes.append(f"{silent} {who} not tell what CPU and memory {they}; assuming they have enough")
    if replay and not old:
        notes.append("--replay: no pod of a cluster in the input; give what kubectl get nodes,pods -A -o yaml prints")
    elif not pods and not given.known:
        notes.append("no pod in the input, so nothing is placed; give pods or workloads with -f")
    notes += dict.fromkeys(
        f"{made.source}: container {container} asks for {resource}, which gpushare does not know; do you mean {near}?"
        for made in created
        for container, resource, near in requests.misspelt(made.value, resource_config)
    )
    return Question(
        nodes=nodes,
        pods=tuple(replace(pod, signature=_signature(pod, signatures)) for pod in pods),
        server=_server(given.nodes),
        unit=unit,
        notes=tuple(notes),
    )


def synthetic_nodes(profile: Profile, unit: MemoryUnit, taken: Collection[str]) -> tuple[NodeInventory, ...]:
    try:
        found = profile.found
        named = profile_wire.nodes(found)
        has_others = not named or (isinstance(found, dict) and "gpus" in found)
        total = profile.count if profile.count is not None else len(named) + has_others
        if total > MAX_NODES:
            raise SettingsError(f"--nodes {total}: at most {MAX_NODES} nodes can be made up")
        if total < len(named):
            raise SettingsError(f"--nodes {total}: the profile names {len(named)} nodes: {', '.join(named)}")
        digits = len(str(total - len(named)))  # so that they sort by number
        free = (name for i in itertools.count(1) if (name := f"node-{i:0{digits}}") not in {*named, *taken})
        every = [*named, *itertools.islice(free, total - len(named))]
        return tuple(profile_wire.inventory(found, NodeName(name), unit) for name in every)
    except WireError as error:
        raise WireError(f"{profile.name}: {error}") from error


def _nodes(given: Input, unit: MemoryUnit | None, notes: list[str]) -> dict[NodeName, tuple[NodeRecord, NodeFacts]]:
    marked = node_records.unhealthy_by_node(given.config_maps)
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
    counted = [(pod, record) for pod, record in existing if pods_wire.counts(pod.value)]
    alive = [(pod, record) for pod, record in counted if pod.value["metadata"].get("deletionTimestamp") is None]
    for pod, record in sorted(alive, key=lambda found: _age(found[0])):
        if isinstance(record, Bound) and (way := record.bypassed) is not None:
            node = state.nodes.get(record.node)
            fate, text = bypass.outcome(way, node.ledger if node else None, bypass.owner(pod.value))
            bound = Pod(ref=record.ref, value=pod.value, only=record.node, bound=True)
            if fate is Fate.BIND:
                yield replace(bound, request=way.request)
            elif fate is not Fate.LEFT_ALONE:
                yield replace(bound, problem=why_bypassed(fate, text, way))
    for pod, record in sorted(alive, key=lambda found: (-_priority(found[0]), *_age(found[0]))):
        if pods_wire.node_of(pod.value) is not None:
            continue
        waits = Pod(ref=pods_wire.ref(pod.value), value=pod.value, problem=_gated(pod.value), created=_age(pod)[0])
        if isinstance(record, Pending):
            waits = replace(waits, request=record.request, problem=record.problem or waits.problem)
        yield waits


def _gated(pod: Object) -> str:
    gates = schedulable.gates(pod)
    return f"waits behind scheduling gates: {', '.join(gates)}" if gates else ""


def _asking(pod: Pod, resource_config: ResourceConfig) -> Pod:
    """A new pod, with what it asks for."""
    pod = replace(pod, problem=_gated(pod.value), only=pod.only or pods_wire.node_of(pod.value))
    try:
        with pod.source.named() if pod.source else contextlib.nullcontext():
            return replace(pod, request=requests.of_pod(pod.value, resource_config))
    except InvalidRequestError as error:
        return replace(pod, outcome=Outcome.REFUSED, problem=str(error))


def _of_claims(state: World, given: Input | None) -> World:
    if given is None:
        return state
    found: list[ClaimRecord] = []
    for each in (each for each in given.claims if each.kind != objects.TEMPLATE):
        with each.named():
            found += filter(None, [claim_records.read(each.value)])
    return world.of_claims(state, found)


def _claiming(pods: Iterable[Pod], known: Mapping[tuple[str, str], Found]) -> Iterator[Pod]:
    """Pods with what their ResourceClaims ask for, and those without GPUs; others ask for other GPUs."""
    for pod in pods:
        if not pods_wire.has_claims(pod.value):
            if pod.request is None and not pod.problem:
                yield pod
            continue
        asked: list[ContainerRequest] = []
        for each in fields.objects(pod.value["spec"], "resourceClaims", "spec"):
            name = str(each.get("resourceClaimTemplateName") or each.get("resourceClaimName"))
            template = known.get((pod.ref.namespace, name))
            if template is None or template.kind != objects.TEMPLATE:
                pod = replace(pod, problem=f"ResourceClaimTemplate {name} is not in the input")  # noqa: PLW2901
                break
            with template.named():
                spec = fields.mapping(template.value, "spec", "template").get("spec")
                asked += claims_wire.asked(claims_wire.reduce({"metadata": template.value["metadata"], "spec": spec}))
        takes = pods_wire.host_requests(pod.value)
        request = PodRequest(
            pod=pod.ref,
            shape=RequestShape(containers=tuple(asked)),
            labels=pods_wire.labels(pod.value),
            cpu_milli=takes.cpu_milli,
            host_mib=takes.memory_mib,
        )
        yield replace(pod, request=request if asked else None)


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
                yield namespace.name, Policy.parse(str(text))
        except ValueError as error:
            raise namespace.fail(f"metadata.labels[{names.LABEL_POLICY}]: {error}") from error


def _with_policy(pod: Pod, policies: Mapping[str, Policy]) -> Pod:
    request, policy = pod.request, policies.get(pod.ref.namespace)
    if request is None or policy is None or request.shape.policy is not None:
        return pod
    return replace(pod, request=replace(request, shape=replace(request.shape, policy=policy)))


def _asks(existing: Iterable[tuple[Found, PodRecord | None]], of_claims: World | None) -> list[Ask]:
    if of_claims is not None:
        return [*of_claims.asks]
    return [_ask(pod.value, record) for pod, record in existing if pods_wire.counts(pod.value)]


def _ask(pod: Object, record: PodRecord | None) -> Ask:
    if isinstance(record, Bound):
        return record.ask
    return Ask() if pods_wire.node_of(pod) is None else Ask.of_host(pods_wire.host_requests(pod))


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


def _priority(pod: Found) -> int:
    value: Any = fields.mapping(pod.value, "spec", "pod").get("priority")
    return value if isinstance(value, int) else 0
