"""What is kept of a pod, whether it waits, was bound, came past this system or was rejected."""

from typing import Any

import pytest

from gpushare import names
from gpushare.cluster import bypass, node_ledger, pod_records
from gpushare.cluster.bypass import Fate
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, Bypassed, Pending, Problem
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.model.capacity import Ask
from gpushare.model.ledger import LedgerOrRefused, NodeLedger
from gpushare.model.request import ContainerKind
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from gpushare.wire import allocations
from gpushare.wire.interop import OTHER_DEVICES
from testing.builders import (
    Json,
    env_of,
    make_allocation,
    make_container,
    make_grant,
    make_inventory,
    make_pod,
    make_ref,
)

RESOURCE_CONFIG = ResourceConfig()
ALLOCATION = make_allocation("pod", make_grant(0))
WRITTEN = {names.ANNOTATION_ALLOCATION: allocations.encode(ALLOCATION)}
REFUSED = {"waiting": {"reason": "CreateContainerConfigError", "message": f"rpc error: c {OTHER_DEVICES}, with"}}


def read(pod: Json) -> Bound:
    record = pod_records.read(pod, RESOURCE_CONFIG)
    assert isinstance(record, Bound)
    return record


def pending(pod: Json) -> Pending:
    record = pod_records.read(pod, RESOURCE_CONFIG)
    assert isinstance(record, Pending)
    return record


def bound_pod(**annotations: str) -> dict[str, Any]:
    return make_pod(node="node-a", annotations=annotations)


def bypassed(pod: Json) -> Bypassed:
    found = read(pod).bypassed
    assert found is not None
    return found


def mutated(name: str = "main", gpu_mem: object = 3) -> Json:
    return make_container(name, gpu_mem, env=[env_of(name)])


def test_a_pod_that_asks_for_no_gpu_leaves_no_trace_whatever_it_carries() -> None:
    plain = make_pod(make_container(), node="node-a", annotations=WRITTEN)
    assert pod_records.read(plain, RESOURCE_CONFIG) is None


def test_an_unbound_pod_is_kept_with_what_it_asks_for() -> None:
    record = pending(make_pod(labels={names.LABEL_RETRY: "4"}))
    assert record.request is not None
    assert record.request.shape.containers[0].memory_mib == 3072
    assert (record.unschedulable, record.retry) == (False, "4")
    assert pending(make_pod(labels={"app": "a"})) != pending(make_pod(labels={"app": "b"}))


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
    assert pending(pod).unschedulable is expected


def test_a_bound_pod_is_kept_with_what_it_holds_until_its_containers_have_ended() -> None:
    pod = bound_pod(**WRITTEN)
    record = read(pod)
    assert record == Bound(
        ref=make_ref(), node=ALLOCATION.node, allocation=ALLOCATION, ask=Ask(gpus=1, memory_mib=3072)
    )
    assert pod_records.held(record, GIB) == ALLOCATION
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert read(pod).allocation == ALLOCATION
    finished = make_pod(node="node-a", annotations=WRITTEN, phase="Succeeded")
    assert read(finished) == Bound(ref=make_ref(), node=ALLOCATION.node)


def test_a_bound_pod_without_an_allocation_holds_nothing_and_is_bypassed() -> None:
    record, found = read(make_pod(mutated(), node="node-a")), bypassed(make_pod(mutated(), node="node-a"))
    assert (record.allocation, record.problem, pod_records.held(record, GIB)) == (None, "", None)
    assert (found.mutated, found.started, found.owner, found.problem) == (True, False, "", "")
    assert found.request is not None
    assert found.request.shape.containers[0].memory_mib == 3072
    plain = make_container("plain")  # asks for nothing
    assert bypassed(make_pod(mutated(), plain, node="node-a")).mutated


@pytest.mark.parametrize(
    "container",
    [
        make_container(gpu_mem=3),
        make_container(gpu_mem=3, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        mutated("other") | {"name": "main"},
        {**mutated(), "env": [*mutated()["env"], {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
    ],
)
def test_a_pod_whose_devices_come_from_elsewhere_is_not_mutated(container: Json) -> None:
    assert not bypassed(make_pod(container, node="node-a")).mutated


def with_owner(pod: Json, **fields: Any) -> Json:
    pod["metadata"]["ownerReferences"] = [{"uid": "other"}, {"uid": "rs-1", **fields}]
    return pod


def test_what_preemption_looks_at_and_who_recreates_a_pod_is_kept() -> None:
    assert bypassed(with_owner(make_pod(node="node-a"), controller=True)).owner == "rs-1"
    assert read(with_owner(make_pod(node="node-a"), controller=True)).owned
    assert not read(with_owner(make_pod(node="node-a"))).owned
    pod = make_pod(node="node-a", labels={"app": "web"})
    pod["spec"]["priority"] = 7
    pod["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z"}
    found = read(pod)
    assert (found.labels, found.priority, found.deleting) == ({"app": "web"}, 7, True)
    assert found.created == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("status", "failed"),
    [
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no"}, "UnexpectedAdmissionError: no"),
        ({"phase": "Failed"}, ""),
        ({"phase": "Succeeded", "reason": "x"}, ""),
        ({"phase": "Failed", "reason": "Evicted", "containerStatuses": [{"state": {"terminated": {}}}]}, ""),
    ],
)
def test_a_pod_that_its_node_rejected_says_why(status: Json, failed: str) -> None:
    found = read({**make_pod(node="node-a"), "status": status})
    assert (found.failed, found.bypassed, found.allocation) == (failed, None, None)


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
    init, shared = make_grant(0, container="init", kind=ContainerKind.INIT), make_grant(0, 1, gib=4)
    written = allocations.binding_annotations(make_allocation("pod", init, shared), make_inventory(15, 15), 1)
    found = {**written, names.ANNOTATION_ALLOCATION: annotation}
    record = read(
        make_pod(make_container(gpu_mem=8), init=[make_container("init", 3)], node="node-a", annotations=found)
    )
    (held,), problems = pod_records.all_held([record], GIB)
    ledger = NodeLedger.of(make_inventory(15, 15), [held])
    assert ledger.used_mib == {"GPU-0": 7168, "GPU-1": 4096}
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
def test_another_systems_annotations_count_if_it_gave_devices(states: dict[str, Json], *, counted: bool) -> None:
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


LIMIT = "spec.containers[0].resources.limits[aliyun.com/gpu-mem]"
TOO_MANY = "513 containers are more than any node runs; write at most 512"


@pytest.mark.parametrize(
    ("field", "amount", "count", "problem"),
    [
        ("containers", "1.5", 1, f"{LIMIT}: 1.5 is not whole; a share is a whole number of units"),
        ("containers", 1, 65, "spec: 65 containers ask for GPUs; let at most 64 of a pod ask"),
        ("containers", 1, 513, f"spec.containers: {TOO_MANY}"),
        ("initContainers", 1, 513, f"spec.initContainers: {TOO_MANY}"),
    ],
)
def test_a_pod_that_asks_for_nonsense_or_too_often_is_kept_with_the_reason(
    field: str, amount: object, count: int, problem: str
) -> None:
    pod = make_pod()
    pod["spec"] = {"containers": [make_container()], field: [make_container(f"c{i}", amount) for i in range(count)]}
    record = pending(pod)
    assert (record.request, record.problem) == (None, problem)
    found = bypassed({**pod, "spec": {**pod["spec"], "nodeName": "node-a"}})
    assert (found.request, found.problem) == (None, problem)


def test_of_very_many_labels_the_first_are_kept() -> None:
    pod = make_pod(labels={f"k{i:05}": "v" for i in range(30_000)})
    request = pending(pod).request
    assert request is not None
    first = [f"k{i:05}" for i in range(256)]
    assert list(request.labels) == first
    pod["spec"] |= {"nodeName": "node-a"}
    assert list(read(pod).labels) == first


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
    assert 0 < len(pending(make_pod(annotations={"gpushare.dev/same-gpu-as": "(" * 200_000})).problem) <= 2000


def odd_pod(node: str = "", **metadata: object) -> Json:
    made = make_pod(make_container("main", 3), node=node or None)
    return {**made, "metadata": {**made["metadata"], **metadata}}


def test_of_odd_metadata_what_can_be_read_is_kept_with_the_problem() -> None:
    with pytest.raises(WireError, match=r"^metadata\.uid: missing$"):
        pod_records.read(odd_pod(uid=""), RESOURCE_CONFIG)
    problem = "metadata.labels: expected an object, found a number"
    waiting, placed = pending(odd_pod(labels=7)), read(odd_pod("node-a", labels=7))
    assert (waiting.ref.name, waiting.problem) == ("pod", problem)
    assert (placed.node, placed.labels, placed.problem) == ("node-a", {}, problem)
    marked = read(odd_pod("node-a", annotations={names.ANNOTATION_ALLOCATION: 7}))
    assert (marked.node, marked.allocation) == ("node-a", None)
    assert "metadata.annotations" in marked.problem


def test_other_annotations_are_not_looked_at_where_there_is_none_of_ours() -> None:
    assert allocations.held(odd_pod("node-a", annotations={}), RESOURCE_CONFIG, GIB).allocation is None
    with pytest.raises(WireError, match=names.ALIYUN_IDX):
        allocations.held(odd_pod("node-a", annotations={names.ALIYUN_IDX: "x"}), RESOURCE_CONFIG, GIB)


def test_the_mark_of_devices_that_their_author_chose_is_kept_of_waiting_and_of_bound_pods() -> None:
    marks = {names.ANNOTATION_OVERRIDDEN: "main,side"}
    pods = make_pod(annotations=marks), make_pod(annotations=marks, node="node-a"), make_pod()
    found = [pod_records.read(pod, RESOURCE_CONFIG) for pod in pods]
    assert [each.overridden for each in found if isinstance(each, Pending | Bound)] == ["main,side", "main,side", ""]
    assert names.ANNOTATION_OVERRIDDEN in names.WEBHOOK_ANNOTATIONS
    assert not names.is_reserved(names.ANNOTATION_OVERRIDDEN)


@pytest.mark.parametrize(
    ("kind", "report", "started"),
    [
        ("containerStatuses", {"name": "main", "state": {"running": {}}}, True),
        ("containerStatuses", {"name": "main", "state": {"waiting": {}}, "lastState": {"terminated": {}}}, True),
        ("containerStatuses", {"name": "main", "state": {"waiting": {}}}, False),
        ("containerStatuses", {"name": "log", "state": {"running": {}}}, False),
        ("initContainerStatuses", {"name": "first", "state": {"terminated": {}}}, True),
    ],
)
def test_only_containers_that_ask_for_gpus_count_as_started(kind: str, report: Json, started: bool) -> None:
    pod = make_pod(make_container("main", 3), make_container("log"), init=[make_container("first", 1)], node="node-a")
    pod["status"][kind] = [report]

    assert bypassed(pod).started == started


@pytest.mark.parametrize("mutated", [True, False])
def test_a_node_is_foreign_as_long_as_nothing_says_what_gpus_it_shares(mutated: bool) -> None:
    def foreign(ledger: LedgerOrRefused | None) -> bool:
        return bypass.outcome(pod, ledger, None)[0] is Fate.LEFT_ALONE

    pod = Bypassed(request=None, mutated=mutated, started=False)
    plain = NodeRecord(name=NodeName("node-a"), published=None)
    sharing = NodeRecord(name=NodeName("node-a"), published="", inventory=make_inventory(15))
    assert foreign(None) is not mutated
    assert foreign(node_ledger.of_node(plain, (), (), GIB)[0]) is not mutated
    assert not foreign(node_ledger.of_node(sharing, (), (), GIB)[0])
    assert not foreign(node_ledger.of_node(sharing, (), (), MemoryUnit(1))[0])
