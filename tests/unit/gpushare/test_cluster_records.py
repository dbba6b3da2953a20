"""What is kept of pods that came past this system or were rejected, and of GPUs that an administrator takes away."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare import names
from gpushare.cluster import node_ledger, node_records, pod_records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, Bypassed, Pending
from gpushare.errors import WireError
from gpushare.model.allocation import RefusalReason, Refused
from gpushare.model.gpu import GpuHealth
from gpushare.units import GIB, ResourceConfig
from gpushare.wire import allocations
from testing import ledgers
from testing.builders import Json, make_container, make_inventory, make_mig, make_node, make_pod

RESOURCE_CONFIG = ResourceConfig()


def bound(pod: Json) -> Bound:
    record = pod_records.read(pod, RESOURCE_CONFIG)
    assert isinstance(record, Bound)
    return record


def bypassed(pod: Json) -> Bypassed:
    found = bound(pod).bypassed
    assert found is not None
    return found


def mutated(name: str = "main", gpu_mem: object = 3) -> Json:
    path = f"metadata.annotations['devices.gpushare.dev/{name}']"
    variable = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return make_container(name, gpu_mem, env=[variable])


def test_a_pod_without_an_allocation_is_bypassed() -> None:
    found = bypassed(make_pod(mutated(), node="node-a"))
    assert (found.mutated, found.started, found.owner, found.problem) == (True, False, "", "")
    assert found.request is not None
    assert found.request.shape.containers[0].memory_mib == 3072


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


def test_containers_that_ask_for_nothing_need_not_be_mutated() -> None:
    assert bypassed(make_pod(mutated(), make_container("plain"), node="node-a")).mutated


def test_a_bypassed_pod_that_asks_for_nonsense_says_what() -> None:
    found = bypassed(make_pod(mutated(gpu_mem="x"), node="node-a"))
    assert found.request is None
    assert found.problem.startswith("spec.containers[0].resources.limits[aliyun.com/gpu-mem]: 'x' is not a number")


def test_a_node_on_which_another_plugin_gave_out_whole_gpus_takes_no_one_until_they_have_ended() -> None:
    pod = make_pod({**make_container("main"), "resources": {"limits": {names.GPU: "2"}}}, name="old", node="node-a")
    pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    whole = ResourceConfig(whole_gpus=True)
    record = pod_records.read(pod, whole)
    assert isinstance(record, Bound)
    ledger, _ = node_ledger.of_node(node(), [record], (), whole.unit)
    assert ledger == Refused(
        RefusalReason.NO_UNTOUCHED_GPU,
        "node-a takes no new pods, because default/old runs there on nvidia.com/gpu that another plugin gave to it, and"
        " no one can tell which GPUs these are; delete that pod, or wait until it has ended",
    )
    assert ledgers.of_objects([make_node(make_inventory(15))], [pod], whole) == {}
    pod["status"]["phase"] = "Succeeded"
    pod["status"]["containerStatuses"] = []
    assert list(ledgers.of_objects([make_node(make_inventory(15))], [pod], whole)) == ["node-a"]


def with_owner(pod: Json, **fields: Any) -> Json:
    pod["metadata"]["ownerReferences"] = [{"uid": "other"}, {"uid": "rs-1", **fields}]
    return pod


def test_the_controller_of_a_pod_is_known() -> None:
    assert bypassed(with_owner(make_pod(node="node-a"), controller=True)).owner == "rs-1"
    assert bound(with_owner(make_pod(node="node-a"), controller=True)).owned
    assert not bound(with_owner(make_pod(node="node-a"))).owned


def test_what_preemption_looks_at_is_kept() -> None:
    pod = make_pod(node="node-a", labels={"app": "web"})
    pod["spec"]["priority"] = 7
    pod["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z"}
    found = bound(pod)
    assert (found.labels, found.priority, found.created, found.deleting) == (
        {"app": "web"},
        7,
        "2026-01-01T00:00:00Z",
        True,
    )


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
    found = bound({**make_pod(node="node-a"), "status": status})
    assert (found.failed, found.bypassed, found.allocation) == (failed, None, None)


def test_a_pending_pods_labels_are_part_of_what_it_is() -> None:
    one, other = (pod_records.read(make_pod(labels={"app": app}), RESOURCE_CONFIG) for app in ("a", "b"))
    assert isinstance(one, Pending)
    assert one != other


def node(cordon: object = None, **fields: Any) -> NodeRecord:
    document = make_node(make_inventory(15, 15, 15))
    if cordon is not None:
        document["metadata"]["annotations"][names.ANNOTATION_CORDON] = cordon
    return node_records.read(document, **fields)


def health(record: NodeRecord) -> list[GpuHealth]:
    assert record.inventory is not None
    return [gpu.health for gpu in record.inventory.gpus]


H, U, C = GpuHealth.HEALTHY, GpuHealth.UNHEALTHY, GpuHealth.CORDONED


@pytest.mark.parametrize(
    ("cordon", "unhealthy", "expected"),
    [
        (None, (), [H, H, H]),
        ("", (), [H, H, H]),
        ("1", (), [H, C, H]),
        (" 0 , GPU-2,", (), [C, H, C]),
        ("1", (1, 2), [H, U, U]),
        ("9,x", (7,), [H, H, H]),
    ],
)
def test_gpus_are_taken_away_by_number_or_uuid(
    cordon: str | None, unhealthy: tuple[int, ...], expected: list[GpuHealth]
) -> None:
    assert health(node(cordon, unhealthy=frozenset(unhealthy))) == expected


@pytest.mark.parametrize(
    ("cordon", "unhealthy", "expected"),
    [
        ("0:1", (), [H, C, H]),
        ("65", (), [H, C, H]),
        ("0", (), [C, C, H]),
        ("", (0,), [U, U, H]),
        ("", (80,), [H, H, U]),
    ],
)
def test_mig_instances_are_taken_away_by_their_own_number_and_by_that_of_their_gpu(
    cordon: str, unhealthy: tuple[int, ...], expected: list[GpuHealth]
) -> None:
    inventory = replace(make_inventory(15), gpus=(make_mig(0, 0), make_mig(0, 1), make_mig(1, 0)))
    document = make_node(inventory)
    document["metadata"]["annotations"][names.ANNOTATION_CORDON] = cordon
    record = node_records.read(document, unhealthy=frozenset(unhealthy))
    assert health(record) == expected
    assert node_records.unknown_gpus(record) == []


def test_a_node_that_has_not_changed_is_the_same_record() -> None:
    first = node("1", unhealthy=frozenset({0}))
    assert node("1", known=first, unhealthy=frozenset({0})) is first
    assert node("2", known=first, unhealthy=frozenset({0})) is not first
    bare = node_records.read({"metadata": {"name": "node-a"}})
    labelled = {"metadata": {"name": "node-a", "labels": {"gpushare": "true"}}}
    assert node_records.read(labelled, known=bare).awaited


def test_gpus_called_unhealthy_later_change_the_record() -> None:
    first = node("1")
    assert node_records.marked_unhealthy(first, frozenset()) is first
    assert health(node_records.marked_unhealthy(first, frozenset({2}))) == [H, C, U]
    bare = node_records.read({"metadata": {"name": "node-a", "labels": {"gpushare": "true"}}})
    assert node_records.marked_unhealthy(bare, frozenset({2})) == NodeRecord(
        name=bare.name, published=None, unhealthy=frozenset({2}), awaited=True
    )


def test_entries_that_name_no_gpu_are_known() -> None:
    assert node_records.unknown_gpus(node("1, 9,GPU-2,GPU-x")) == ["9", "GPU-x"]
    assert node_records.unknown_gpus(node_records.read({"metadata": {"name": "node-a"}})) == []


def test_annotations_of_a_node_that_are_no_texts_are_refused() -> None:
    with pytest.raises(WireError, match="expected strings"):
        node(7)


def odd_pod(node: str = "", **metadata: object) -> Json:
    made = make_pod(make_container("main", 3), node=node or None)
    return {**made, "metadata": {**made["metadata"], **metadata}}


def test_a_pod_without_a_uid_cannot_be_kept_apart_from_others() -> None:
    with pytest.raises(WireError, match=r"^metadata\.uid: missing$"):
        pod_records.read(odd_pod(uid=""), RESOURCE_CONFIG)


def test_a_waiting_pod_keeps_its_name_and_the_problem() -> None:
    record = pod_records.read(odd_pod(labels=7), RESOURCE_CONFIG)
    assert isinstance(record, Pending)
    assert (record.ref.name, record.problem) == ("pod", "metadata.labels: expected an object, found a number")


def test_a_bound_pod_keeps_what_can_be_read_and_the_problem() -> None:
    record = pod_records.read(odd_pod("node-a", annotations={names.ANNOTATION_ALLOCATION: 7}), RESOURCE_CONFIG)
    assert isinstance(record, Bound)
    assert (record.node, record.allocation) == ("node-a", None)
    assert "metadata.annotations" in record.problem


def test_of_a_bound_pod_with_odd_labels_only_its_place_is_kept() -> None:
    record = pod_records.read(odd_pod("node-a", labels=7), RESOURCE_CONFIG)
    assert isinstance(record, Bound)
    assert (record.node, record.labels) == ("node-a", {})
    assert record.problem == "metadata.labels: expected an object, found a number"


@pytest.mark.parametrize("annotations", [{}, {names.ALIYUN_IDX: "x"}])
def test_other_annotations_are_not_looked_at_where_there_is_none_of_ours(annotations: Json) -> None:
    found = odd_pod("node-a", annotations=annotations)
    if not annotations:
        assert allocations.held(found, RESOURCE_CONFIG, GIB).allocation is None
        return
    with pytest.raises(WireError, match=names.ALIYUN_IDX):
        allocations.held(found, RESOURCE_CONFIG, GIB)


def test_the_mark_of_devices_that_their_author_chose_is_kept_of_waiting_and_of_bound_pods() -> None:
    marks = {names.ANNOTATION_OVERRIDDEN: "main,side"}
    pods = make_pod(annotations=marks), make_pod(annotations=marks, node="node-a"), make_pod()
    found = [pod_records.read(pod, RESOURCE_CONFIG) for pod in pods]
    assert [each.overridden for each in found if isinstance(each, Pending | Bound)] == ["main,side", "main,side", ""]
    assert names.ANNOTATION_OVERRIDDEN in names.WEBHOOK_ANNOTATIONS
    assert not names.is_reserved(names.ANNOTATION_OVERRIDDEN)
