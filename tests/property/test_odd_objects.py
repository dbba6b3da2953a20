"""Whatever objects and files hold, there is an answer, or an error says what is wrong; all that is written is read."""

import contextlib
import json
from typing import Any

import orjson
from hypothesis import example, given, strategies as st

from controller.cluster_table import ClusterTable, PodKind
from controller.outlooks import Outlooks
from controller.reconcile import loop
from controller.state import ClusterState
from controller.watches import NodeSink, PodSink
from deviceplugin import pods as plugin_pods
from gpushare import names
from gpushare.cluster import node_records
from gpushare.errors import InvalidRequestError, SettingsError, WireError
from gpushare.identity import NodeName
from gpushare.model.capacity import NOTHING
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Allocation
from gpushare.model.request import Policy
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB, ResourceConfig
from gpushare.wire import allocations as allocations_wire, interop, inventory, pods, profile, requests
from gpushare_cli import world, yamls
from gpushare_cli.explain import command, decide
from gpushare_cli.kube_scores import Rules
from gpushare_cli.reading import Objects, Settings
from gpushare_cli.simulate import objects, plan, question, render
from gpushare_cli.simulate.question import Profile
from gpushare_cli.simulate.render import Run
from gpushare_cli.simulate.scheduler import SchedulerConfig
from testing.builders import (
    Json,
    make_allocation,
    make_container,
    make_grant,
    make_inventory,
    make_node,
    make_pod,
    make_ref,
    make_shape,
)
from testing.cli.explaining import config_map, copy
from testing.cli.podding import bound, mutated
from testing.cli.simulating import manifest, workload
from tests.property.strategies import allocations, inventories

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
amounts = st.sampled_from([3, "3", "0", "1k", "9" * 5000, 1e300]) | anything
short = '0 -1 GPU-0,GPU-1 [] {"0":{"0":3}} {"-1":{"0":3}} {"0":{"0":1e400}} {"0":[1]} {"version":2,"minReader":2}'
granted = '{"version":1,"node":"node-a","containers":[{"name":"c","kind":%s,"gpus":["GPU-0"],"memoryMiB":1}]}'
texts = st.sampled_from(["9" * 5000, "[" * 3000, *short.split(), granted % "[]", granted % '"app"'])


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what is expected."""
    return st.one_of(strategy, strategy, strategy, anything)


def an_object(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return maybe(st.fixed_dictionaries({}, optional=fields))


resources = [names.GPU_MEM, names.GPU_PERCENT, names.GPU, names.GPU_CORE, names.GPU_COUNT, "cpu", "memory"]
quantities = maybe(st.dictionaries(st.sampled_from(resources), amounts, max_size=2))
container = an_object(
    name=maybe(st.sampled_from(["c", "main"])),
    restartPolicy=maybe(st.just("Always")),
    env=maybe(st.lists(an_object(name=maybe(st.just(names.ENV_VISIBLE_DEVICES))), max_size=1)),
    resources=an_object(limits=quantities, requests=quantities),
)
containers = maybe(st.lists(container, max_size=2))
prefixed = (prefix + "c" for prefix in (names.PREFIX_DEVICES, names.PREFIX_MEMORY, names.PREFIX_NANO_CONTAINER))
asked = (*names.REQUEST_ANNOTATIONS, names.ANNOTATION_TOTALS, names.LABEL_RETRY, names.LABEL_GPU_COUNT)
keys = st.sampled_from([*sorted(names.RESERVED_ANNOTATIONS), *prefixed, *asked])
marks = st.sampled_from([names.ANNOTATION_INVENTORY, names.ANNOTATION_CORDON])
reports = maybe(st.lists(an_object(state=an_object(running=anything)), max_size=2))
conditions = maybe(st.lists(an_object(type=maybe(st.just("PodScheduled")), status=anything), max_size=2))
odd_pods = an_object(
    metadata=an_object(
        name=maybe(st.just("pod")),
        namespace=maybe(st.just("default")),
        uid=maybe(st.just("uid-pod")),
        labels=maybe(st.dictionaries(keys, maybe(texts), max_size=2)),
        annotations=maybe(st.dictionaries(keys, maybe(texts), max_size=4)),
    ),
    spec=an_object(
        nodeName=maybe(st.just("node-a")),
        initContainers=containers,
        containers=containers,
        overhead=quantities,
        resources=an_object(limits=quantities, requests=quantities),
    ),
    status=an_object(
        phase=maybe(st.sampled_from(["Running", "Failed"])),
        containerStatuses=reports,
        initContainerStatuses=reports,
        conditions=conditions,
    ),
).filter(lambda pod: isinstance(pod, dict))
odd_nodes = an_object(
    metadata=an_object(
        name=maybe(st.just("node-a")), annotations=maybe(st.dictionaries(marks, maybe(texts), max_size=2))
    ),
    status=an_object(allocatable=quantities),
).filter(lambda node: isinstance(node, dict))
RESOURCE_CONFIG = ResourceConfig(whole_gpus=True)
OF_NOTHING = {names.ANNOTATION_ALLOCATION: allocations_wire.encode(make_allocation("pod", make_grant(0, gib=0)))}
readable = contextlib.suppress(WireError, InvalidRequestError)


def weigh(pod: pods.Pod) -> None:
    """Ask for everything that is counted."""
    for read in (pods.needs_gpu, requests.of_pod, pods.is_mutated):
        with readable:
            read(pod, RESOURCE_CONFIG)
    with readable:
        allocations_wire.granted(pod, GIB)
    with readable:
        allocations_wire.held(pod, RESOURCE_CONFIG, GIB)


def look(state: ClusterState) -> None:
    """Learn from what is there, as the thread for that does, and rank its nodes."""
    table = ClusterTable(state, SystemClock())
    assert Outlooks(state.index, table, SystemClock()).tick() or not state.index.changes
    for shape in (None, make_shape(3)):
        table.grades(PodKind(shape, NOTHING), list(state.index.snapshot().ledgers))


@given(odd_pods)
@example(make_pod(node="node-a", annotations={names.ALIYUN_IDX: "9" * 5000}))
@example(make_pod(node="node-a", annotations={names.ACK_ALLOCATION: '{"-1":{"0":3}}'}))
def test_no_pod_crashes_its_readers(pod: Json) -> None:
    for read in (pods.ref, pods.node_of, pods.annotations, pods.holds_gpus, pods.has_started):
        with readable:
            read(pod)
    weigh(pod)
    with readable:
        interop.allocation(pod, make_ref(), make_inventory().node, GIB)


@given(st.lists(odd_pods, max_size=3), st.booleans())
@example([make_pod(node="node-a", annotations={names.ALIYUN_IDX: "9" * 5000})], False)
@example([make_pod(make_container(gpu_mem=3), node="node-a", annotations=OF_NOTHING)], False)
def test_the_controller_survives_every_pod(found: list[Json], listed: bool) -> None:
    state = ClusterState(resource_config=RESOURCE_CONFIG)
    NodeSink(state.index).upsert(node_records.read(make_node(make_inventory(15))))
    sink = PodSink(state.index)
    kept = [record for pod in found if (record := sink.read(pod)) is not None]
    if listed:
        sink.replace(kept)
    for pod in kept:
        sink.upsert(pod)
    assert loop.audit(state.index) == []
    look(state)
    for pod in kept:
        sink.remove(pod)
    look(state)
    index = state.index
    assert (index.demand().asks, index._others._on_node) == ({}, {})
    assert (state.index.snapshot().problems, list(state.index.snapshot().pods)) == ({}, [])


@given(st.lists(odd_nodes, max_size=3), st.booleans())
def test_the_controller_survives_every_node(found: list[Json], listed: bool) -> None:
    state = ClusterState(resource_config=RESOURCE_CONFIG)
    sink = NodeSink(state.index)
    for node in found:
        with readable:
            inventory.of_node(node)
    kept = [record for node in found if (record := sink.read(node)) is not None]
    if listed:
        sink.replace(kept)
    for record in kept:
        sink.upsert(record)
    look(state)
    for record in kept:
        sink.remove(record)
    assert state.index.snapshot().ledgers == {}


@given(odd_pods)
def test_the_plugin_survives_every_pod(pod: Json) -> None:
    cache = plugin_pods.PodCache(SystemClock())
    if (kept := cache.read(pod)) is None:
        return
    cache.replace([kept])
    cache.upsert(kept)
    for one in cache.all():
        weigh(one)
    cache.remove(kept)
    assert cache.all() == ()


@given(inventories())
def test_an_inventory_survives_the_annotation(value: NodeInventory) -> None:
    assert inventory.decode(inventory.encode(value), NodeName("node-a")) == value


@given(allocations)
def test_an_allocation_survives_the_annotation(value: Allocation) -> None:
    assert allocations_wire.decode(allocations_wire.encode(value), make_ref()) == value


readable_file = contextlib.suppress(WireError, SettingsError)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
PODS = {"topologyKey": "gpu", "namespaces": ["default"], "labelSelector": {"matchLabels": {"app": "web"}}}
AVOIDED = {"topologyKey": "gpu", "namespaceSelector": {}, "labelSelector": {"matchExpressions": []}}
EXPRESSION = {"key": "gpu", "operator": "In", "values": ["t4"]}


def rich_pod(name: str) -> Json:
    """A waiting pod with all that is ever read."""
    containers = (
        make_container("main", resources={"limits": {names.GPU_MEM: 2, names.GPU_CORE: 5}, "requests": {"cpu": 1}}),
        make_container("part", resources={"limits": {names.GPU_PERCENT: 10}}, ports=[{"hostPort": 1}]),
    )
    early = [make_container("side", 1, restartPolicy="Always")]
    notes = {names.ANNOTATION_SAME_GPU: "app=web", names.ANNOTATION_MODEL: "T4", names.ANNOTATION_POLICY: "spread"}
    pod = mutated(make_pod(*containers, init=early, name=name, labels={"app": "web"}, annotations=notes))
    pod["metadata"] |= {"ownerReferences": [{"kind": "ReplicaSet", "name": "x-y", "uid": "u", "controller": True}]}
    pod["spec"] |= {
        "nodeSelector": {"gpu": "t4"},
        "tolerations": [{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION], "matchFields": []}]},
                PREFERRED: [{"weight": 5, "preference": {"matchExpressions": [EXPRESSION]}}],
            },
            "podAffinity": {REQUIRED: [PODS], PREFERRED: [{"weight": 5, "podAffinityTerm": PODS}]},
            "podAntiAffinity": {REQUIRED: [AVOIDED]},
        },
        "volumes": [{"persistentVolumeClaim": {}}],
        "schedulingGates": [],
        "priority": 5,
    }
    pod["status"] |= {
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "full"}],
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "r", "message": "m"}}}],
    }
    return pod


def rich_node() -> Json:
    node = make_node(make_inventory(15, 10))
    node["metadata"] |= {"labels": {"gpu": "t4"}}
    node["metadata"]["annotations"][names.ANNOTATION_CORDON] = "1"
    node["spec"] = {"unschedulable": False, "taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
    node["status"]["allocatable"][names.GPU_PERCENT] = "200"
    return node


def old_node() -> Json:
    node = make_node(name="old")
    node["status"]["allocatable"] = {names.GPU_MEM: "30", names.GPU_COUNT: "2"}
    return node


def cluster_objects() -> list[Json]:
    """Objects that an API server may send."""
    alone = bound("alone", make_grant(0, gib=3))
    interop_pod = make_pod(name="legacy", node="old", phase="Running", annotations={names.ALIYUN_IDX: "0"})
    bypassed = mutated(make_pod(name="late", node="node-a"))
    marked = config_map("unhealthy-gpu-node-a", "kube-system", {"gpus": "0"})
    return [rich_node(), old_node(), alone, interop_pod, bypassed, rich_pod("waits"), marked]


def workload_objects() -> list[Json]:
    """Objects that a user may write."""
    template = {"metadata": {"labels": {"app": "web"}}, "spec": manifest(rich_pod("x"))["spec"]}
    made = [
        workload(kind, "w", copy(template), replicas=2, parallelism=2, completions=3, completionMode="Indexed")
        for kind in sorted(objects.WORKLOADS - {"CronJob"})
    ]
    cron = {"kind": "CronJob", "metadata": {"name": "w"}, "spec": {"jobTemplate": workload("Job", "w", copy(template))}}
    ordered = workload("StatefulSet", "o", copy(template), ordinals={"start": 1})
    return [*made, cron, ordered, manifest(rich_pod("new")), {"kind": "List", "items": [{"kind": "Service"}]}]


def paths(value: Any, start: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a value, but the value itself."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in entries for found in ((*start, key), *paths(inner, (*start, key)))]


@st.composite
def odd(draw: st.DrawFn, right: list[Json]) -> list[Json]:
    """The objects with one or two places that hold something else, or are gone."""
    found = copy({"items": right})["items"]
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from([path for path in paths(found) if len(path) > 1]))
        parent: Any = found
        with contextlib.suppress(LookupError, TypeError):
            for key in path[:-1]:
                parent = parent[key]
            if draw(st.booleans()) and isinstance(parent, dict):
                del parent[path[-1]]
            else:
                parent[path[-1]] = draw(anything | amounts | texts | st.sampled_from([-1, 0, 2**70, [], {}, ""]))
    return list(found)


WRITTEN = [inventory.encode(make_inventory(15)), allocations_wire.encode(make_allocation("p", make_grant(0)))]
odd_objects = st.sampled_from(WRITTEN).flatmap(lambda text: odd([orjson.loads(text)]))


@given(st.text(max_size=60) | odd_objects.map(lambda found: json.dumps(found[0])))
def test_garbage_is_a_wire_error(text: str) -> None:
    with contextlib.suppress(WireError):
        inventory.decode(text, NodeName("n"))
    with contextlib.suppress(WireError):
        allocations_wire.decode(text, make_ref())


@given(odd([*cluster_objects(), *workload_objects()]), st.booleans(), st.booleans())
def test_simulate_answers_or_says_what_is_wrong(found: list[Any], whole: bool, replay: bool) -> None:
    with readable_file:
        read = objects.collect([("f", found)])
        asked = question.prepare(read, None, None, whole_gpus=whole, replay=replay)
        config = SchedulerConfig(policy=Policy.BINPACK, rules=Rules(), weight=26)
        made = plan.run(asked, config, range(len(asked.pods)), lambda _: 0)
        runs = [Run.of("binpack", 1, made)]
        render.text(made, runs, asked.unit, 80, details=True)
        render.overlooked(made)
        render.as_json(made, runs, asked.unit, asked.notes)


@given(odd(cluster_objects()), st.integers(2, 5), st.booleans())
def test_explain_answers_or_says_what_is_wrong(found: list[Any], which: int, whole: bool) -> None:
    with readable_file:
        nodes, pods = tuple(found[:2]), tuple(found[2:6])
        around = Objects(nodes=nodes, pods=pods, unhealthy=node_records.unhealthy_by_node(found[6:]))
        said = decide.explain(pods[which - 2], world.of(around, Settings(whole_gpus=whole)))
        command.text(said, 80)
        command.as_json(said)


def test_the_objects_are_right_to_begin_with() -> None:
    read = objects.collect([("f", [*cluster_objects(), *workload_objects()])])
    asked = question.prepare(read, None, None, whole_gpus=True)

    assert len(asked.pods) == 16
    assert all(pod.request is not None for pod in asked.pods)


@given(st.text(max_size=40) | st.text("{}[]:-&*!|>#'\"\n \t,a1", max_size=60))
def test_any_text_is_values_or_an_error(text: str) -> None:
    with readable_file:
        objects.collect([("f", yamls.load_all(text, "f"))])


PROFILE: Json = {
    "seed": 1,
    "gpus": [{"model": "T4", "memoryMiB": 1, "count": 2, "numa": 0}, {"model": "A", "memoryMiB": 9, "mig": []}],
    "faults": [{"gpu": 0, "kind": "xid", "afterPolls": 3, "afterSeconds": 1}],
    "nodes": {"node-b": {"gpus": [{"model": "X", "memoryMiB": 7, "mig": [{"profile": "1g", "memoryMiB": 1}]}]}},
}


@given(anything | odd([PROFILE]).map(lambda found: found[0]), st.none() | st.integers(-1, 3))
def test_any_profile_is_nodes_or_an_error(document: Any, count: int | None) -> None:
    with readable_file:
        question.synthetic_nodes(Profile(document, "f", count), make_inventory(1).unit, ())
    with readable_file:
        profile.nodes(document)
