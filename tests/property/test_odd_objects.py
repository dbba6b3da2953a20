"""Whatever an object looks like, it is read, refused with the reason, or left out; what is written is what is read."""

import contextlib
from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from controller.cluster_table import ClusterTable, PodKind
from controller.outlooks import Outlooks
from controller.reconcile import loop
from controller.state import ClusterState
from controller.watches import NodeSink, PodSink
from deviceplugin import pods as plugin_pods
from gpushare import names
from gpushare.cluster import node_records
from gpushare.errors import InvalidRequestError, WireError
from gpushare.identity import NodeName
from gpushare.model.capacity import NOTHING
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Allocation
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB, ResourceConfig
from gpushare.wire import allocations as allocations_wire
from gpushare.wire import fields as fields_wire
from gpushare.wire import interop, inventory, pods, requests
from testing.builders import Json, make_container, make_inventory, make_node, make_pod, make_ref, make_shape
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
readable = contextlib.suppress(WireError, InvalidRequestError)


def negative_index() -> Json:
    return make_pod(node="node-a", annotations={names.ACK_ALLOCATION: '{"-1":{"0":3}}'})


def grant_of_nothing() -> Json:
    container = {"name": "main", "kind": "app", "gpus": ["GPU-0"], "memoryMiB": 0}
    granted = orjson.dumps({"version": 1, "node": "node-a", "containers": [container]}).decode()
    return make_pod(make_container(gpu_mem=3), node="node-a", annotations={names.ANNOTATION_ALLOCATION: granted})


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
@example(negative_index())
def test_no_pod_crashes_its_readers(pod: Json) -> None:
    for read in (pods.ref, pods.node_of, pods.annotations, pods.holds_gpus, pods.has_started):
        with readable:
            read(pod)
    weigh(pod)
    with readable:
        interop.allocation(pod, make_ref(), make_inventory().node, GIB)


@given(st.lists(odd_pods, max_size=3), st.booleans())
@example([make_pod(node="node-a", annotations={names.ALIYUN_IDX: "9" * 5000})], False)
@example([grant_of_nothing()], False)
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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["version", "minReader", "gpus", "unitMiB", "uuid", "index", "node", "containers", "kind"]),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(inventories())
def test_an_inventory_survives_the_annotation(value: NodeInventory) -> None:
    assert inventory.decode(inventory.encode(value), NodeName("node-a")) == value


@given(allocations)
def test_an_allocation_survives_the_annotation(value: Allocation) -> None:
    assert allocations_wire.decode(allocations_wire.encode(value), make_ref()) == value


in_the_right_places = st.dictionaries(st.sampled_from(["gpus", "unitMiB", "node", "containers"]), json_values)


@given(st.text(max_size=60) | in_the_right_places.map(lambda value: fields_wire.dump_json({"version": 1, **value})))
def test_garbage_is_a_wire_error(text: str) -> None:
    with contextlib.suppress(WireError):
        inventory.decode(text, NodeName("n"))
    with contextlib.suppress(WireError):
        allocations_wire.decode(text, make_ref())
