from typing import Any

import pytest

from gpushare import names
from gpushare.cluster import node_records, pod_records
from gpushare.cluster.pod_records import Bound, Pending, Problem
from gpushare.errors import WireError
from gpushare.model.allocation import footprint
from gpushare.model.capacity import Ask
from gpushare.model.request import ContainerKind
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from gpushare.wire import allocations
from gpushare.wire.interop import OTHER_DEVICES
from testing.builders import (
    Json,
    make_allocation,
    make_container,
    make_grant,
    make_inventory,
    make_node,
    make_pod,
    make_ref,
)

RESOURCE_CONFIG = ResourceConfig()
ALLOCATION = make_allocation("pod", make_grant(0))
WRITTEN = {names.ANNOTATION_ALLOCATION: allocations.encode(ALLOCATION)}


def bound_pod(**annotations: str) -> dict[str, Any]:
    return make_pod(node="node-a", annotations=annotations)


def read(pod: Json) -> Bound:
    record = pod_records.read(pod, RESOURCE_CONFIG)
    assert isinstance(record, Bound)
    return record


def test_a_pod_that_asks_for_no_gpu_leaves_no_trace_whatever_it_carries() -> None:
    plain = make_pod(make_container(), node="node-a", annotations=WRITTEN)
    assert pod_records.read(plain, RESOURCE_CONFIG) is None


def test_an_unbound_pod_is_kept_with_what_it_asks_for() -> None:
    record = pod_records.read(make_pod(labels={names.LABEL_RETRY: "4"}), RESOURCE_CONFIG)
    assert isinstance(record, Pending)
    assert record.request is not None
    assert record.request.shape.containers[0].memory_mib == 3072
    assert (record.unschedulable, record.retry) == (False, "4")


def test_an_unbound_pod_that_asks_for_nonsense_is_kept_with_the_reason() -> None:
    record = pod_records.read(make_pod(make_container(gpu_mem="1.5")), RESOURCE_CONFIG)
    assert record == Pending(
        ref=make_ref(),
        request=None,
        problem="spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 1.5 is not whole;"
        " a share is a whole number of units",
    )


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}, True),
        ({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}, False),
        ({"type": "PodScheduled", "status": "True", "reason": "Unschedulable"}, False),
        ({"type": "Ready", "status": "False", "reason": "Unschedulable"}, False),
    ],
)
def test_the_schedulers_mark_is_read(condition: dict[str, str], expected: bool) -> None:
    pod = make_pod()
    pod["status"]["conditions"] = [condition]
    record = pod_records.read(pod, RESOURCE_CONFIG)
    assert isinstance(record, Pending)
    assert record.unschedulable is expected


def test_a_bound_pod_is_kept_with_what_it_holds() -> None:
    record = pod_records.read(make_pod(node="node-a", annotations=WRITTEN), RESOURCE_CONFIG)
    ask = Ask(gpus=1, memory_mib=3072)
    assert record == Bound(ref=make_ref(), node=ALLOCATION.node, allocation=ALLOCATION, ask=ask)
    assert pod_records.held(record, GIB) == ALLOCATION


def test_a_finished_pod_holds_nothing() -> None:
    record = pod_records.read(make_pod(node="node-a", annotations=WRITTEN, phase="Succeeded"), RESOURCE_CONFIG)
    assert record == Bound(ref=make_ref(), node=ALLOCATION.node)


def test_a_pod_whose_deletion_was_asked_for_still_holds_its_memory() -> None:
    pod = make_pod(node="node-a", annotations=WRITTEN, phase="Running")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    record = read(pod)
    assert record.allocation == ALLOCATION


def test_a_bound_pod_without_allocation_holds_nothing_but_waits_for_gpus() -> None:
    record = read(make_pod(node="node-a"))
    assert (record.allocation, record.problem, pod_records.held(record, GIB)) == (None, "", None)
    assert record.bypassed is not None
    assert (record.bypassed.mutated, record.bypassed.started, record.bypassed.owner) == (False, False, "")


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("[]", "expected an object, found a list"),
        ('{"version":1,"node":"x","containers":[]}', "made for node x, but the pod is on node-a"),
    ],
)
def test_an_allocation_that_cannot_be_read_is_remembered_with_the_reason(annotation: str, problem: str) -> None:
    pod = make_pod(node="node-a", annotations={names.ANNOTATION_ALLOCATION: annotation})
    record = pod_records.read(pod, RESOURCE_CONFIG)
    other = "annotation devices.gpushare.dev/main: expected UUIDs of different GPUs, found None"
    why = f"annotation gpushare.dev/allocation: {problem}; and {other}"
    assert record == Bound(ref=make_ref(), node=ALLOCATION.node, problem=why)
    assert record.holds
    with pytest.raises(WireError, match="annotation "):
        pod_records.held(record, GIB)
    assert pod_records.all_held([record], GIB) == ([], {make_ref(): Problem(why=why, counted=False)})


@pytest.mark.parametrize("annotation", ["garbage", '{"version":3,"minReader":3}'])
def test_an_allocation_that_cannot_be_read_is_counted_from_the_other_annotations(annotation: str) -> None:
    """Kinds are not told there, so the init container's share is added and not compared."""
    written = allocations.binding_annotations(
        make_allocation("pod", make_grant(0, container="init", kind=ContainerKind.INIT), make_grant(0, 1, gib=4)),
        make_inventory(15, 15),
        1,
    )
    pod = make_pod(
        make_container(gpu_mem=8),
        init=[make_container("init", 3)],
        node="node-a",
        annotations={**written, names.ANNOTATION_ALLOCATION: annotation},
    )
    record = read(pod)
    (held,), problems = pod_records.all_held([record], GIB)
    assert {gpu: held.memory_mib for gpu, held in footprint(held.grants).items()} == {"GPU-0": 7168, "GPU-1": 4096}
    assert problems == {make_ref(): Problem(why=record.problem, counted=True)}
    assert record.problem.startswith("annotation gpushare.dev/allocation: ")


@pytest.mark.parametrize(
    ("of", "value", "problem"),
    [
        ("devices", "", "expected UUIDs of different GPUs, found ''"),
        ("devices", "a,a", "expected UUIDs of different GPUs, found 'a,a'"),
        ("memory", "-3", "expected a number of MiB, found '-3'"),
        ("memory", "9" * 16, f"expected a number of MiB, found '{'9' * 16}'"),
    ],
)
def test_other_annotations_that_cannot_be_read_either_are_named(of: str, value: str, problem: str) -> None:
    name = f"{of}.gpushare.dev/main"
    written = {**allocations.binding_annotations(ALLOCATION, make_inventory(15), 1), name: value}
    record = read(bound_pod(**{**written, names.ANNOTATION_ALLOCATION: "[]"}))
    unread = "annotation gpushare.dev/allocation: expected an object, found a list"
    assert (record.allocation, record.problem) == (None, f"{unread}; and annotation {name}: {problem}")


def test_a_pod_of_another_system_is_counted_in_its_nodes_unit() -> None:
    held = pod_records.held(read(bound_pod(**{names.ALIYUN_IDX: "1"})), MemoryUnit(256))
    assert held is not None
    assert (held.grants[0].gpus, held.grants[0].memory_mib) == (("index:1",), 768)


REFUSED = {"waiting": {"reason": "CreateContainerConfigError", "message": f"rpc error: c {OTHER_DEVICES}, with"}}


@pytest.mark.parametrize(
    ("states", "counted"),
    [
        ({}, True),
        ({"main": {"waiting": {"reason": "ContainerCreating"}}}, True),
        ({"main": {"waiting": {"message": "image not found"}}}, True),
        ({"main": REFUSED}, False),
        ({"main": {"running": {}}, "second": REFUSED}, True),
        ({"helper": REFUSED}, True),
        ({"helper": {"running": {}}, "second": REFUSED}, False),
    ],
)
def test_annotations_of_another_system_count_unless_it_never_gave_the_pod_its_devices(
    states: dict[str, Json], *, counted: bool
) -> None:
    containers = [make_container("main", 3), make_container("second", 3), make_container("helper")]
    reports = [{"name": name, "state": state} for name, state in states.items()]
    pod = make_pod(*containers, node="node-a", annotations={names.ACK_ALLOCATION: '{"0":{"1":3}}'})
    pod["status"]["containerStatuses"] = reports
    record = read(pod)
    assert (record.interop_pod is not None, record.bypassed is None) == (counted, counted)


def test_a_pod_of_another_system_that_cannot_be_read_is_a_problem() -> None:
    record = read(bound_pod(**{names.ALIYUN_IDX: "first"}))
    problem = "annotation ALIYUN_COM_GPU_MEM_IDX: expected the number of a GPU, found 'first'"
    assert pod_records.all_held([record], GIB) == ([], {make_ref(): Problem(why=problem, counted=False)})


def test_a_heartbeat_of_a_node_is_recognised() -> None:
    first = node_records.read(make_node(make_inventory(15)))
    assert first.inventory == make_inventory(15)
    assert node_records.read(make_node(make_inventory(15)), first) is first
    assert node_records.read(make_node(make_inventory(15, 7)), first) != first


def test_a_node_without_inventory_has_none() -> None:
    record = node_records.read(make_node())
    assert (record.published, record.inventory, record.problem) == (None, None, "")


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("7", "expected an object, found a number"),
        ('{"version":1,"gpus":[],"unitMiB":"GiB"}', "unitMiB: expected a whole number, 1 or more, found a string"),
    ],
)
def test_an_inventory_that_cannot_be_read_is_remembered_with_the_reason(annotation: str, problem: str) -> None:
    node = make_node()
    node["metadata"]["annotations"] = {names.ANNOTATION_INVENTORY: annotation}
    record = node_records.read(node)
    assert record.inventory is None
    assert record.problem == f"annotation gpushare.dev/inventory of node node-a: {problem}"


@pytest.mark.parametrize(
    ("field", "count", "problem"),
    [
        ("containers", 65, "spec: 65 containers ask for GPUs; let at most 64 of a pod ask"),
        ("containers", 513, "spec.containers: 513 containers are more than any node runs; write at most 512"),
        ("initContainers", 513, "spec.initContainers: 513 containers are more than any node runs; write at most 512"),
    ],
)
def test_a_pod_with_too_many_containers_is_kept_without_them(field: str, count: int, problem: str) -> None:
    pod = make_pod()
    pod["spec"] = {"containers": [make_container()], field: [make_container(f"c{i}", 1) for i in range(count)]}
    record = pod_records.read(pod, ResourceConfig())
    assert isinstance(record, Pending)
    assert (record.request, record.problem) == (None, problem)
    bound = read({**pod, "spec": {**pod["spec"], "nodeName": "node-a"}})
    assert bound.bypassed is not None
    assert (bound.bypassed.request, bound.bypassed.problem) == (None, problem)


def test_of_very_many_labels_the_first_are_kept() -> None:
    labels = {f"k{i:05}": "v" for i in range(30_000)}
    for spec in ({}, {"nodeName": "node-a"}):
        pod = make_pod(labels=labels)
        pod["spec"] |= spec
        record = pod_records.read(pod, ResourceConfig())
        kept = record.request.labels if isinstance(record, Pending) and record.request else record.labels  # type: ignore[union-attr] # a Bound
        assert list(kept) == [f"k{i:05}" for i in range(256)]


def test_what_is_kept_of_another_systems_pod_is_small() -> None:
    pod = make_pod(make_container("main", 1), annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}, labels={"a": "b"})
    pod["spec"] |= {"nodeName": "node-a", "containers": [*pod["spec"]["containers"], *[{"name": "x"}] * 20_000]}
    pod["spec"]["containers"][0]["resources"]["limits"] |= {f"example.com/{i}": "1" for i in range(20_000)}
    record = read(pod)
    assert record.interop_pod is not None
    assert len(record.interop_pod["spec"]["containers"]) == 512
    assert record.interop_pod["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": 1}
    assert record.interop_pod["metadata"]["labels"] == {"a": "b"}


def test_a_message_that_quotes_a_tenant_is_cut() -> None:
    pod = make_pod(annotations={"gpushare.dev/same-gpu-as": "(" * 200_000})
    record = pod_records.read(pod, ResourceConfig())
    assert isinstance(record, Pending)
    assert 0 < len(record.problem) <= 2000
