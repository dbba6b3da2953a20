"""What `gpushare simulate` prints of a plan or of input that it cannot read, to the letter, in golden/simulate.txt."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare import names
from gpushare.model.gpu import GpuHealth
from gpushare.units import MemoryUnit
from gpushare_cli import __main__ as cli
from gpushare_cli.simulate.command import Order
from testing.builders import Json, make_container, make_gpu, make_grant, make_inventory, make_mig, make_node, make_pod
from testing.cli.podding import bound
from testing.cli.simulating import T4S, Result, listed, manifest, simulate, workload
from tests.unit.gpushare_cli.findings import golden


def asking(gib: int | str, name: str = "pod", **more: object) -> Json:
    return manifest(make_pod(make_container(gpu_mem=gib), name=name, **more))  # type: ignore[arg-type] # of a test


def cluster_before_manifests() -> Result:
    cluster = listed(
        make_node(make_inventory(15, 15)),
        make_node(make_inventory(10, 20, node="node-b")),
        make_pod(name="holder", node="node-a", annotations={names.ALIYUN_IDX: "0"}),
        make_pod(name="waiting", namespace="ml"),
    )
    two = make_pod(make_container("a", 4), make_container("b", 16), init=[make_container("prepare", 2)], name="two")
    others = asking(30, "big"), asking("1.5", "odd")
    return simulate(workload("StatefulSet", "binpack", replicas=4), manifest(two), *others, cluster)


def parts_and_whole_gpus() -> Result:
    part = make_pod(make_container(resources={"limits": {names.GPU_PERCENT: 33}}), name="part")
    whole = make_pod(make_container(resources={"limits": {names.GPU: 1}}), name="whole")
    each = make_pod(make_container(gpu_mem=3), name="each", annotations={names.ANNOTATION_GPUS: "2"})
    return simulate(*map(manifest, (part, whole, each)), profile=T4S, nodes=2, whole_gpus=True)


def mig_instances() -> Result:
    inventory = make_inventory(15)
    node = make_node(replace(inventory, gpus=(*inventory.gpus, make_mig(1, 2))))
    return simulate(listed(node, bound("holder", make_grant("MIG-1-2", gib=2))))


def no_new_pods() -> Result:
    inventory = make_inventory(15, 15, 15)
    ill = make_gpu(1, health=GpuHealth.UNHEALTHY)
    node = make_node(replace(inventory, gpus=(inventory.gpus[0], ill, inventory.gpus[2])))
    node["metadata"]["annotations"][names.ANNOTATION_CORDON] = "2"
    return simulate(listed(node, make_node(name="cpu-only"), bound("holder", make_grant(0, gib=6))))


def nodes_that_kubernetes_keeps_a_pod_from() -> Result:
    cordoned, tainted, full = (make_node(make_inventory(15, node=f"node-{name}")) for name in "abc")
    cordoned["spec"] = {"unschedulable": True}
    tainted["spec"] = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
    holder = bound("holder", make_grant(0, gib=14), node="node-c", namespace="ml")
    return simulate(listed(cordoned, tainted, full, holder, make_node(name="cpu"), make_pod(name="waits")))


def other_units() -> Result:
    return simulate(listed(make_node(make_inventory(1, unit=MemoryUnit(256)))), asking(3))


def aliyuns_node() -> Json:
    node = make_node(name="old")
    node["status"]["allocatable"] = {names.GPU_MEM: "30", names.GPU_COUNT: "2"}
    return node


def nodes_of_aliyuns_plugin() -> Result:
    holder = make_pod(make_container(gpu_mem=9), name="holder", node="old", annotations={names.ALIYUN_IDX: "1"})
    return simulate(listed(aliyuns_node(), holder, make_pod(namespace="ml")))


def a_group_that_no_one_can_read() -> Result:
    member = bound("member", node="node-b", labels={"app": "web"})
    member["metadata"]["annotations"] = {names.ANNOTATION_ALLOCATION: "{}"}
    member["spec"]["containers"] = [make_container(gpu_mem=1)]
    near = make_pod(annotations={names.ANNOTATION_SAME_GPU: "app=web"}, labels={"app": "web"})
    nodes = listed(make_node(make_inventory(15)), make_node(make_inventory(15, node="node-b")))
    return simulate(nodes, member, manifest(near))


def oversubscribed_gpu() -> Result:
    known = make_inventory(16)
    node = make_node(replace(known, gpus=(replace(known.gpus[0], extra_mib=8 * 1024),)))
    never = asking(3, "never", annotations={names.ANNOTATION_OVERSUBSCRIPTION: "never"})
    return simulate(*(asking(8, name) for name in "abc"), never, listed(node))


def sum_of_a_node_beside_its_gpus() -> Result:
    node = make_node(make_inventory(15, 15))
    node["status"]["allocatable"][names.GPU_MEM] = "15"  # one of its GPUs is unhealthy for the kubelet
    return simulate(listed(node), bound("holder", make_grant(1, gib=14)), manifest(make_pod(namespace="ml")))


def pods_on_unknown_nodes() -> Result:
    away = [bound(name, make_grant(0), node=f"node-{name}", namespace="ml") for name in "yx"]
    return simulate(*away, make_pod(), profile=T4S)


def gated() -> Result:
    pod = asking(3)
    pod["spec"]["schedulingGates"] = [{"name": "quota"}, {"name": "team"}]
    return simulate(TWO_NODES, pod)


def counted_by_other_annotations() -> Result:
    holder = bound("holder", make_grant(0, gib=9), namespace="ml")
    holder["metadata"]["annotations"] |= {
        names.ANNOTATION_ALLOCATION: '{"version":9,"minReader":9}',
        f"{names.PREFIX_DEVICES}main": "GPU-0",
        f"{names.PREFIX_MEMORY}main": "9216",
    }
    return simulate(TWO_NODES, holder, make_pod())


def not_evaluated() -> Result:
    busy = make_container(resources={"limits": {names.GPU_MEM: 1, "cpu": 2}})
    fast = make_container(resources={"limits": {names.GPU_MEM: 1, "example.com/fpga": 1}})
    spread = manifest(make_pod(busy, name="spread"))
    spread["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    return simulate(manifest(make_pod(fast, name="plain")), spread, profile=T4S, as_json=True)


def all_numbers() -> Result:
    part = make_pod(make_container(resources={"limits": {names.GPU_PERCENT: 50}}), name="part")
    profile = T4S.replace("count: 2", "count: 1")
    return simulate(manifest(part), asking(20, "big"), make_node(name="cpu"), profile=profile, as_json=True)


def left_out() -> list[Result]:
    selecting = {"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "c"}]}}
    objects: list[Json] = [
        workload("Job", "web", completions=5),
        workload("Job", "web", suspend=True),
        workload("DaemonSet", "web", template=selecting),
        {"kind": "Service", "metadata": {}},
        listed({"kind": "B"}, {"kind": "A"}, {"kind": "B"}),
    ]
    return [simulate(TWO_NODES, each, asking(3), summary=True) for each in objects]


TWO_NODES = listed(make_node(make_inventory(15, 15)), make_node(make_inventory(15, node="node-b")))
NO_POLICY = {"kind": "Namespace", "metadata": {"name": "ml", "labels": {names.ANNOTATION_POLICY: "best"}}}


def test_what_is_left_out_is_noted() -> None:
    assert [line for found in left_out() for line in found.err.splitlines()] == golden("simulate", "left out")


CASES: dict[str, Callable[[], Result]] = {
    "pods of a list come before those of manifests": cluster_before_manifests,
    "parts and whole GPUs of a made-up cluster": parts_and_whole_gpus,
    "MIG instances are named as nvidia-smi counts them": mig_instances,
    "a cluster without new pods shows how full it is": no_new_pods,
    "nodes that Kubernetes keeps a pod from are named with the cause": nodes_that_kubernetes_keeps_a_pod_from,
    "only the closest nodes are named": lambda: simulate(asking(20), profile=T4S, nodes=5),
    "a cluster without GPUs says so": lambda: simulate(listed(make_node(name="cpu"), make_pod())),
    "the units of the nodes are those of the output": other_units,
    "nodes of Aliyun's plugin have equal GPUs": nodes_of_aliyuns_plugin,
    "in the unit that is given": lambda: simulate(listed(aliyuns_node()), memory_unit=MemoryUnit(256)),
    "from the standard input": lambda: simulate("-", stdin="kind: Node\nmetadata: {name: cpu}\n"),
    "a group that no one can read is a group all the same": a_group_that_no_one_can_read,
    "an oversubscribed GPU takes more than it has, but no pod that refuses that": oversubscribed_gpu,
    "Kubernetes' sum of a node counts beside its GPUs": sum_of_a_node_beside_its_gpus,
    "pods on unknown nodes are told": pods_on_unknown_nodes,
    "scheduling gates hold a pod back": gated,
    "a pod counted by its other annotations is noted": counted_by_other_annotations,
    "what is not evaluated is noted with how many pods demand it": not_evaluated,
    "JSON of a plan has all numbers": all_numbers,
    "without a pod no free GPU counts as too small": lambda: simulate(make_node(make_inventory(15)), as_json=True),
    "a namespace that names no policy there is": lambda: simulate(TWO_NODES, NO_POLICY),
    "a replay of nothing": lambda: simulate(TWO_NODES, asking(1), replay=True),
    "only the summary": lambda: simulate(make_node(make_inventory(15)), asking(20), summary=True),
}


@pytest.mark.parametrize("case", CASES)
def test_plans_are_printed_to_the_letter(case: str) -> None:
    assert CASES[case]().lines == golden("simulate", case)


NODE = make_node(make_inventory(15))


def changed(value: Json, **fields: Any) -> Json:
    return {**value, **fields}


def cron_job(**spec: Any) -> Json:
    return {"kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": spec}}}


def numbers() -> list[Result]:
    """Where a whole number is expected."""
    values = [
        workload("Deployment", "web", replicas=-1),
        workload("ReplicaSet", "web", replicas="3"),
        workload("StatefulSet", "s", replicas=True),
        workload("StatefulSet", "s", ordinals={"start": -1}),
        workload("Job", "j", parallelism=1.5),
        workload("Job", "j", completions=-2),
        cron_job(completions="all"),
        workload("Deployment", "web", replicas=10**12),
        workload("Deployment", "web", replicas=10**12, template={}),  # none is made
    ]
    return [simulate(value, NODE) for value in values]


def objects() -> list[Result]:
    """Where an object, or a part of it, is expected."""
    limits = manifest(make_pod(make_container(resources={"limits": 3})))
    metadata = {"name": "unhealthy-gpu-a", "namespace": "kube-system"}
    labelled = {"metadata": {"labels": {"v": 1}}, "spec": {"containers": [{}]}}
    values = [
        workload("DaemonSet", "d", template={"spec": "x"}),
        changed(workload("Deployment", "web"), spec=[]),
        limits,
        {"kind": "ConfigMap", "metadata": metadata, "data": 3},
        cron_job(),
        *(workload(kind, "d", template={}) for kind in ("Deployment", "DaemonSet")),
        workload("Deployment", "web", template=labelled),
        manifest(make_pod({"resources": {"limits": {names.GPU_MEM: 3}}})),
    ]
    nodes: list[Json] = [{"spec": []}, {"status": {"allocatable": 3}}, {"spec": {"taints": [{}]}}]
    return [*(simulate(value, NODE) for value in values), *(simulate(changed(NODE, **odd)) for odd in nodes)]


def together() -> list[Result]:
    """Objects that do not go together."""
    job, same_uid = workload("Job", "a"), changed(make_pod(), metadata={"name": "other", "uid": "uid-pod"})
    many = workload("Deployment", "a", replicas=99_999), workload("Deployment", "b", replicas=2)
    return [
        simulate(NODE, NODE),
        simulate(listed(NODE, make_node(name="b"), NODE)),
        simulate(NODE, make_pod(), manifest(make_pod())),
        simulate(NODE, job, job),
        simulate(NODE, make_pod(), same_uid),
        simulate(make_pod()),
        simulate(NODE, *many),
    ]


def arguments() -> list[Result]:
    """Arguments that do not go together or mean nothing."""
    two = "nodes: {a: {gpus: [{model: T, memoryMiB: 1}]}, b: {gpus: [{model: T, memoryMiB: 1}]}}"
    return [
        simulate(),
        simulate(nodes=3),
        simulate("-", "-"),
        simulate(profile=T4S, replay=True, order=Order.SHUFFLED),
        simulate(NODE, nodes=2),
        simulate(profile=T4S, nodes=5001),
        simulate(profile=two, nodes=1),
    ]


@pytest.mark.parametrize("runs", [numbers, objects, together, arguments])
def test_what_cannot_be_used_is_named_and_nothing_is_printed(runs: Callable[[], list[Result]]) -> None:
    assert [line for run in runs() for line in run.lines] == golden("simulate", runs.__name__)


@pytest.mark.parametrize("case", golden("simulate", "texts"))
def test_texts_that_are_no_objects(case: str) -> None:
    text, _, message = case.partition(" => ")
    assert simulate(json.loads(text), NODE).lines == ["exit code 1", f"error: 1.yaml{message}"]


@pytest.mark.parametrize("case", golden("simulate", "profiles"))
def test_profiles_that_cannot_be_used(case: str) -> None:
    text, _, message = case.partition(" => ")
    assert simulate(profile=json.loads(text)).lines == ["exit code 1", f"error: profile.yaml: {message}"]


@pytest.mark.parametrize("path", ["spec.affinity", "spec.affinity.podAffinity", "spec.volumes"])
def test_a_field_of_the_spec_that_is_odd_is_named(path: str) -> None:
    odd = manifest(make_pod())
    odd["spec"] |= {"affinity": {"podAffinity": 3}} if path.endswith("podAffinity") else {path.partition(".")[2]: 3}
    assert f"{path}: expected a" in simulate(NODE, odd).err


def test_nodes_in_different_units_need_the_clusters() -> None:
    nodes = listed(NODE, make_node(make_inventory(15, node="node-b", unit=MemoryUnit(1))))
    message = "--memory-unit: needed, because nodes count in different ones: node-a in GiB and node-b in MiB"
    assert simulate(nodes).err == f"error: {message}\n"
    found = simulate(nodes, manifest(make_pod(make_container(gpu_mem=20))), memory_unit=MemoryUnit(1024))
    assert "node-b counts aliyun.com/gpu-mem in MiB, the controller in GiB; give both the same memory unit" in found.out


def test_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    (tmp_path / "folder").mkdir()
    for name, problem in [
        ("latin.yaml", "no text (byte 3 is not UTF-8)"),
        ("folder", "Is a directory"),
        ("nothing", "No such file or directory"),
    ]:
        path = str(tmp_path / name)

        assert cli.main(["simulate", "-f", path]) == 1
        assert capsys.readouterr() == ("", f"error: {path}: {problem}\n")


@pytest.mark.parametrize("inventory", ["", "{}", "[1]", '{"version":1,"unitMiB":0,"gpus":[]}', "x"])
def test_an_unreadable_inventory_takes_no_pods_and_is_noted(inventory: str) -> None:
    node = make_node(name="node-x")
    node["metadata"]["annotations"] = {names.ANNOTATION_INVENTORY: inventory}
    found = simulate(node, manifest(make_pod()))
    assert found.code == 3
    assert found.err.startswith(
        "note: node node-x: takes no new pods: annotation gpushare.dev/inventory of node node-x: "
    )
    assert "waits: node-x has an inventory that cannot be read: " in found.out


def test_an_unreadable_allocation_keeps_new_pods_away() -> None:
    holder = bound("holder")
    holder["metadata"]["annotations"] = {names.ANNOTATION_ALLOCATION: "{}"}
    holder["spec"]["containers"] = [make_container(gpu_mem=3)]
    found = simulate(NODE, holder, manifest(make_pod(namespace="ml")))
    assert found.code == 3
    assert "counted by" not in found.err
    assert "node-a takes no new pods, because what default/holder holds there cannot be read: annotation" in found.out
