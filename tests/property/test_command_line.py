"""`gpushare simulate` and `gpushare explain` against what the controller then does."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, strategies as st

from controller.cluster_table import ClusterTable, PodKind
from controller.outlooks import QUIET_S, Outlooks
from controller.state import ClusterState, Reserved
from controller.watches import NodeSink, PodSink
from gpushare import names
from gpushare.cluster import node_records, pod_records
from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName
from gpushare.model.capacity import FreeHost
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest, Policy
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB, ResourceConfig
from gpushare.wire import allocations, requests
from gpushare_cli import world
from gpushare_cli.explain import decide
from gpushare_cli.explain.decide import State
from gpushare_cli.kube_scores import Rules
from gpushare_cli.reading import Objects, Settings
from gpushare_cli.simulate import objects, plan, question
from gpushare_cli.simulate.plan import Plan
from gpushare_cli.simulate.scheduler import SchedulerConfig
from testing.builders import Json, env_of, make_container, make_inventory, make_node, make_pod
from testing.cli.explaining import copy, explain
from testing.cli.podding import mutated
from testing.cli.simulating import listed, manifest, simulate
from testing.clock import ManualClock
from testing.controller import bypassing
from testing.controller.world import World
from tests.property.strategies import ledgers

LABELS: tuple[dict[str, str], ...] = ({}, {"app": "web"})
Limits = dict[str, Any]
percents = st.sampled_from([5, 20, 33, 50, 60, 100])
memory: st.SearchStrategy[Limits] = st.integers(1, 8).map(lambda gib: {names.GPU_MEM: gib})
parts: st.SearchStrategy[Limits] = percents.map(lambda of: {names.GPU_PERCENT: of})
computes = st.builds(lambda limits, of: {**limits, names.GPU_CORE: of}, memory, percents)
wholes: st.SearchStrategy[Limits] = st.integers(1, 2).map(lambda number: {names.GPU: number})


@st.composite
def nodes(draw: st.DrawFn) -> list[Json]:
    """One to three nodes, some of whose GPUs are unhealthy or cordoned, without a status of their own."""
    found = []
    for i in range(draw(st.integers(1, 3))):
        node = make_node(draw(ledgers(f"node-{i}")).inventory)
        del node["status"]
        node["metadata"]["annotations"][names.ANNOTATION_CORDON] = draw(st.sampled_from(["", "", "0"]))
        found.append(node)
    return found


@st.composite
def pods(draw: st.DrawFn, name: str) -> Json:
    """A pod that waits, in any spelling that a pod may mix."""
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    annotations: dict[str, str] = {}
    if beside := draw(st.sampled_from(["", "", names.ANNOTATION_SAME_GPU, names.ANNOTATION_OTHER_GPU])):
        annotations[beside] = "app=web"
    if count > 1:
        annotations[names.ANNOTATION_GPUS] = str(count)
    if policy := draw(st.sampled_from(["", "binpack", "spread"])):
        annotations[names.ANNOTATION_POLICY] = policy
    spelled = memory if count > 1 else memory | parts | computes | wholes

    def container(name: str, **fields: Any) -> Json:
        return make_container(name, resources={"limits": draw(spelled)}, env=[env_of(name)], **fields)

    containers = [container(f"c{i}") for i in range(draw(st.integers(1, 2)))]
    sidecar: Json = {"restartPolicy": "Always"}
    early = [container("i0", **draw(st.sampled_from([{}, sidecar])))] if draw(st.booleans()) else []
    return make_pod(*containers, init=early, name=name, annotations=annotations, labels=draw(st.sampled_from(LABELS)))


workloads = st.integers(1, 6).flatmap(lambda number: st.tuples(*(pods(f"p{i}") for i in range(number))).map(list))


RESOURCE_CONFIG = ResourceConfig(whole_gpus=True)


def simulated(found: Sequence[Json], pods: Sequence[Json]) -> Plan:
    read = objects.collect([("cluster", found), ("pods", [manifest(pod) for pod in pods])])
    asked = question.prepare(read, None, GIB, whole_gpus=True)
    config = SchedulerConfig(policy=Policy.BINPACK, rules=Rules(), weight=26)
    return plan.run(asked, config, range(len(pods)), lambda _: 0)


def request_of(pod: Json) -> PodRequest:
    request = requests.of_pod(pod, RESOURCE_CONFIG)
    assert request is not None
    return request


def kind_of(state: ClusterState, pod: Json) -> PodKind:
    request = request_of(pod)
    return PodKind(state.index.resolve(request.shape, request.labels), FreeHost.of(request))


@given(nodes(), workloads)
def test_neither_contradicts_what_the_scheduler_then_does(found: list[Json], pods: list[Json]) -> None:
    made = simulated(found, pods)
    state = ClusterState(resource_config=RESOURCE_CONFIG, policy=Policy.BINPACK)
    NodeSink(state.index).replace([node_records.read(node) for node in found])
    table = ClusterTable(state, SystemClock())
    names = sorted(node_records.name_of(node) for node in found)
    present: list[Json] = []
    assert [row.pod.ref.name for row in made.rows] == [pod["metadata"]["name"] for pod in pods]
    for row, pod in zip(made.rows, pods, strict=True):
        settings = Settings(memory_unit=GIB, whole_gpus=True, gpu_policy=Policy.BINPACK)
        said = decide.explain(pod, world.of(Objects(nodes=tuple(found), pods=(*present, pod)), settings))
        kind = kind_of(state, pod)
        assert kind.shape is not None
        fits = table.filter(kind.shape, names).fits
        scores = dict(zip(names, table.grades(kind, names).tolist(), strict=True))
        assert said.state is State.WAITS
        assert sorted(answer.node for answer in said.answers if answer.fits) == fits
        assert said.good == bool(fits)
        chosen = min(fits, key=lambda name: (-scores[name], name), default=None)
        assert row.node == chosen
        if chosen is None:
            continue
        assert said.answers[0].node == chosen
        reserved, on_it = bound(state, pod, chosen)
        assert reserved.allocation.grants == row.grants
        present.append(on_it)
        held = decide.explain(
            present[-1], world.of(Objects(nodes=tuple(found), pods=tuple(present)), Settings(memory_unit=GIB))
        )
        assert (held.state, held.node, held.good) == (State.HOLDS, chosen, True)
        assert {share.uuid for share in held.shares} == {gpu for grant in row.grants for gpu in grant.gpus}
    for name, ledger in state.index.snapshot().ledgers.items():
        planned = made.ledgers[name]
        assert isinstance(ledger, NodeLedger)
        assert isinstance(planned, NodeLedger)
        assert planned.used_mib == ledger.used_mib


@given(nodes(), workloads)
def test_explain_names_the_node_that_the_controller_ranks_first(found: list[Json], pods: list[Json]) -> None:
    """By what both know of typical pods."""
    state, clock = ClusterState(resource_config=RESOURCE_CONFIG), ManualClock()
    NodeSink(state.index).replace([node_records.read(node) for node in found])
    table = ClusterTable(state, clock)
    outlooks = Outlooks(state.index, table, clock)
    names = sorted(node_records.name_of(node) for node in found)
    present: list[Json] = []
    for pod in pods:
        waiting = pod_records.read(pod, RESOURCE_CONFIG)
        assert waiting is not None
        PodSink(state.index).upsert(waiting)
        clock.at += QUIET_S
        assert outlooks.tick()
        cluster_ = Objects(nodes=tuple(found), pods=(*present, pod))
        said = decide.explain(pod, world.of(cluster_, Settings(memory_unit=GIB, whole_gpus=True)))
        scores = dict(zip(names, table.grades(kind_of(state, pod), names).tolist(), strict=True))
        assert {answer.node: answer.score or 0 for answer in said.answers} == scores
        present.append(pod)
        if not any(scores.values()):
            continue
        _, present[-1] = bound(state, pod, said.answers[0].node)


def bound(state: ClusterState, pod: Json, node: NodeName) -> tuple[Reserved, Json]:
    """Bind a pod as the controller does; the pod as it is then."""
    reserved = state.reserve(request_of(pod), node, now=0.0)
    assert isinstance(reserved, Reserved)
    metadata, allocation = pod["metadata"], reserved.allocation
    annotations = {**metadata.get("annotations", {}), "gpushare.dev/allocation": allocations.encode(allocation)}
    made = {**pod, "metadata": {**metadata, "annotations": annotations}}
    made["spec"] = {**pod["spec"], "nodeName": allocation.node}
    state.confirm(reserved, allocation)
    record = pod_records.read(made, RESOURCE_CONFIG)
    assert isinstance(record, Bound)
    PodSink(state.index).upsert(record)
    return reserved, made


NODES = {"shared": [make_node(make_inventory(15))], "plain": [make_node(name="node-a")], "gone": []}
OTHER = make_node(make_inventory(15, node="node-b"))
OF_EVENT = {
    "GpuShareInvalidRequest": "invalid",
    "GpuShareWithoutGpu": "too late",
    "GpuShareNotMutated": "author",
    "GpuShareBoundLate": "bound",
    "GpuShareWaiting": "waits",
}
OF_TEXT = {
    "leaves it alone": "left alone",
    "cannot be understood": "invalid",
    "its containers have started": "too late",
    "the controller deletes it": "recreated",
    "the webhook did not change it": "author",
    "the controller chooses its GPUs": "bound",
}


@st.composite
def bypassed_pods(draw: st.DrawFn) -> Json:
    pod = make_pod(make_container(gpu_mem=draw(st.sampled_from([3, 20, "many"]))), node="node-a", namespace="team")
    if draw(st.booleans()):
        mutated(pod)
    if kind := draw(st.sampled_from(["", "ReplicaSet", "Job", "Node"])):
        owner = {"kind": kind, "name": "web", "uid": "u", "controller": draw(st.booleans())}
        pod["metadata"]["ownerReferences"] = [owner]
    if draw(st.booleans()):
        pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    return pod


def controller(pod: Json, nodes: list[Json]) -> str:
    """What the controller does."""
    world = World()
    for node in nodes:
        world.api.seed("/api/v1/nodes", copy(node))
    world.list_all()
    seeded = world.api.seed("/api/v1/namespaces/team/pods", copy(pod))
    bypassing.tick(world)
    if not bypassing.is_there(world, seeded):
        return "recreated"
    return "".join(OF_EVENT[reason] for reason, _ in bypassing.said(world)) or "left alone"


def of_text(text: str) -> str:
    return next((outcome for part, outcome in OF_TEXT.items() if part in text), "waits")


def explained(pod: Json, nodes: list[Json]) -> str:
    """What `explain` says."""
    return of_text(" ".join(explain(copy(pod), *nodes, namespace="team").out.split()))


def simulated_fate(pod: Json, nodes: list[Json]) -> str:
    """What `simulate` says."""
    rows = simulate(listed(*nodes), pod, as_json=True).value["pods"]
    if not rows:
        return "left alone"
    (row,) = rows
    return "bound" if row["node"] else of_text(row["message"])


@given(bypassed_pods(), st.sampled_from(sorted(NODES)))
def test_the_three_agree(pod: Json, kind: str) -> None:
    nodes = [*NODES[kind], OTHER]
    does, explains = controller(pod, nodes), explained(pod, nodes)

    assert simulated_fate(pod, nodes) == does
    if kind != "gone":  # all that `explain` says then is that the node is gone
        assert explains == does
