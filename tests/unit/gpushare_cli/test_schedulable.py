"""What Kubernetes itself has against a node, in the words that users read."""

import re
from typing import Any

import pytest

from gpushare import names
from gpushare.cluster import node_ledger
from gpushare.errors import WireError
from gpushare_cli import schedulable
from gpushare_cli.schedulable import NodeFacts
from testing.builders import Json, make_container, make_inventory, make_node, make_pod
from tests.unit.gpushare_cli.findings import Told

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
TAINTED = "taint dedicated=ml:NoSchedule is not tolerated"
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
T4_WANTED = {"nodeSelector": {"gpu": "t4"}}


def facts(
    *, labels: dict[str, str] | None = None, allocatable: dict[str, str] | None = None, **spec: object
) -> NodeFacts:
    node = make_node()
    node["metadata"]["labels"] = labels or {}
    node["spec"] = spec
    node["status"]["allocatable"] = allocatable
    return schedulable.node_facts(node)


def pod(**spec: object) -> Json:
    found = make_pod()
    found["spec"] |= spec
    return found


def affinity(*expressions: Any, fields: Any = ()) -> Json:
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("node", "spec", "expected"),
    [
        ({}, {}, []),
        ({"unschedulable": True}, {}, ["cordoned (spec.unschedulable)"]),
        ({"unschedulable": True}, {"tolerations": [{"operator": "Exists"}]}, []),
        ({"unschedulable": True}, {"tolerations": [{"key": "node.kubernetes.io/unschedulable"}]}, []),
        ({"taints": [TAINT]}, {}, [TAINTED]),
        ({"taints": [TAINT | {"effect": "NoExecute"}]}, {}, ["taint dedicated=ml:NoExecute is not tolerated"]),
        ({"taints": [{"key": "a", "effect": "NoSchedule"}]}, {}, ["taint a:NoSchedule is not tolerated"]),
        ({"taints": [TAINT | {"effect": "PreferNoSchedule"}]}, {}, []),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "dedicated", "value": "ml"}]}, []),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}, []),
        ({"taints": [TAINT]}, {"tolerations": [TAINT | {"operator": "Equal"}]}, []),
        ({"taints": [TAINT]}, {"tolerations": [TAINT | {"key": "other"}]}, [TAINTED]),
        ({"taints": [TAINT]}, {"tolerations": [TAINT | {"effect": "NoExecute"}]}, [TAINTED]),
        ({"taints": [TAINT]}, {"tolerations": [TAINT | {"value": "web"}]}, [TAINTED]),
        ({"taints": [TAINT]}, {"tolerations": [TAINT | {"operator": "Lt"}]}, [TAINTED]),
        ({"taints": [CORDON], "unschedulable": True}, {}, ["cordoned (spec.unschedulable)"]),
        ({}, {"nodeSelector": {"gpu": "t4"}}, ["spec.nodeSelector wants gpu=t4, the node has no such label"]),
        ({"labels": {"gpu": "a10"}}, T4_WANTED, ["spec.nodeSelector wants gpu=t4, the node has a10"]),
        ({"labels": {"gpu": "t4"}}, {"nodeSelector": {"gpu": "t4"}}, []),
        ({}, {"nodeSelector": {"kubernetes.io/hostname": "node-a"}}, []),
        ({}, {"nodeName": "node-b"}, ["spec.nodeName is node-b"]),
        ({"unschedulable": True, "taints": [TAINT]}, {"nodeName": "node-a", "nodeSelector": {"gpu": "t4"}}, []),
    ],
)
def test_nodes_are_refused_as_by_the_scheduler(node: Json, spec: Json, expected: list[str]) -> None:
    assert schedulable.misplaced(pod(**spec), facts(**node)) == expected


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "gpu", "operator": "In", "values": ["t4", "a10"]}, True),
        ({"key": "gpu", "operator": "In", "values": ["a10"]}, False),
        ({"key": "gpu", "operator": "NotIn", "values": ["a10"]}, True),
        ({"key": "gpu", "operator": "NotIn", "values": ["t4"]}, False),
        ({"key": "other", "operator": "NotIn", "values": ["t4"]}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "other", "operator": "DoesNotExist"}, True),
        ({"key": "gpu", "operator": "DoesNotExist"}, False),
        ({"key": "size", "operator": "Gt", "values": ["3"]}, True),
        ({"key": "size", "operator": "Gt", "values": ["4"]}, False),
        ({"key": "size", "operator": "Lt", "values": ["5"]}, True),
        ({"key": "size", "operator": "Lt", "values": ["4"]}, False),
        ({"key": "gpu", "operator": "Lt", "values": ["5"]}, False),
        ({"key": "size", "operator": "Lt", "values": []}, False),
        ({"key": "other", "operator": "Lt", "values": ["5"]}, False),
        ({"key": "gpu", "operator": "Like", "values": ["t"]}, False),
    ],
)
def test_required_node_affinity_is_looked_at(expression: Json, fits: bool) -> None:
    found = schedulable.misplaced(pod(affinity=affinity(expression)), facts(labels={"gpu": "t4", "size": "4"}))
    assert found == ([] if fits else ["no term of the required node affinity matches"])


@pytest.mark.parametrize(("name", "fits"), [("node-a", True), ("node-b", False)])
def test_node_affinity_by_name_is_that_of_daemon_sets(name: str, fits: bool) -> None:
    wanted = affinity(fields=[{"key": "metadata.name", "operator": "In", "values": [name]}])
    assert (schedulable.misplaced(pod(affinity=wanted), facts()) == []) is fits


OF_NODES = "spec.affinity.nodeAffinity"


@pytest.mark.parametrize(
    "path",
    [
        *(f"spec.{field}" for field in ("nodeSelector", "tolerations", "tolerations.value", "affinity")),
        OF_NODES,
        *(f"{OF_NODES}.{REQUIRED}{end}" for end in ("", ".nodeSelectorTerms", ".nodeSelectorTerms[0].matchFields")),
        f"{OF_NODES}.{REQUIRED}.nodeSelectorTerms[0].matchFields[0].values",
        f"{OF_NODES}.{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].values",
        *(f"{OF_NODES}.{PREFERRED}{end}" for end in ("", "[0].preference", "[0].preference.matchExpressions")),
    ],
)
def test_a_field_of_another_type_is_named(path: str) -> None:
    value: Any = 3
    for part in reversed(re.findall(r"\w+", path)):
        value = [value] if part == "0" else {part: [value] if part == "tolerations" and value != 3 else value}
    found, node = pod(**value["spec"]), facts(taints=[TAINT])
    with pytest.raises(WireError, match=f"^{re.escape(path)}: expected"):
        _ = schedulable.misplaced(found, node), schedulable.attracting(found, node)


@pytest.mark.parametrize("required", [{}, {"nodeSelectorTerms": []}, {"nodeSelectorTerms": [{}]}])
def test_an_empty_affinity_matches_no_node(required: Json) -> None:
    wanted = {"nodeAffinity": {REQUIRED: required}}
    assert schedulable.misplaced(pod(affinity=wanted), facts()) == ["no term of the required node affinity matches"]


@pytest.mark.parametrize(
    ("allocatable", "requested", "has"),
    [
        ({names.GPU_MEM: "30"}, 27, ""),
        ({names.GPU_MEM: "30"}, 28, "30"),
        ({names.GPU_MEM: "30k", "cpu": "8"}, 29_998, "30000"),
        ({"cpu": "8"}, 0, "none"),
        (None, 0, ""),
    ],
)
def test_the_nodes_own_sum_counts(allocatable: dict[str, str] | None, requested: int, has: str) -> None:
    node, told = facts(allocatable=allocatable), f"3 asked for, {has} allocatable, {requested} requested by pods there"
    expected = [f"Insufficient aliyun.com/gpu-mem: {told}"] if has else []
    assert node_ledger.short(schedulable.requests(pod()), node.allocatable, {names.GPU_MEM: requested}) == expected


def test_requests_follow_the_formula_of_kubernetes() -> None:
    init = [
        make_container("first", 9),
        make_container("sidecar", 2, restartPolicy="Always"),
        make_container("second", 8),
    ]
    apps = [make_container("a", 3), make_container("b", 4)]
    assert schedulable.requests(make_pod(*apps, init=init)) == {names.GPU_MEM: 10}
    assert schedulable.requests(make_pod(*apps, init=init[:2])) == {names.GPU_MEM: 9}
    assert schedulable.requests(make_pod(make_container())) == {}


def test_a_manifest_of_the_per_gpu_form_counts_as_the_webhook_will_multiply_it() -> None:
    annotations = {names.ANNOTATION_GPUS: "4"}
    assert schedulable.requests(make_pod(make_container(gpu_mem=3), annotations=annotations)) == {names.GPU_MEM: 12}
    annotations[names.ANNOTATION_TOTALS] = "true"
    assert schedulable.requests(make_pod(make_container(gpu_mem=12), annotations=annotations)) == {names.GPU_MEM: 12}


def test_what_is_not_evaluated_is_named(told: Told) -> None:
    container = make_container(gpu_mem=3, ports=[{"hostPort": 80}])
    container["resources"]["requests"] = {"cpu": "1"}
    found = make_pod(container)
    found["spec"] |= {
        "affinity": {"podAntiAffinity": {REQUIRED: []}},
        "topologySpreadConstraints": [{}],
        "volumes": [{"persistentVolumeClaim": {}}],
        "resourceClaims": [{}],
        "workloadRef": {"name": "gang"},
    }
    assert schedulable.overlooked(found) == told()
    assert schedulable.overlooked(make_pod()) == []


def test_a_node_without_a_status_has_no_sum() -> None:
    node = make_node(make_inventory(15))
    del node["status"]
    assert schedulable.node_facts(node).allocatable is None
