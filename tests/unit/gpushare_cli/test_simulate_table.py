"""What `gpushare simulate` prints, to the letter, in golden/simulate.txt."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpushare import names
from gpushare.model.gpu import GpuHealth
from gpushare.units import MemoryUnit
from testing.builders import (
    Json,
    make_container,
    make_gpu,
    make_grant,
    make_inventory,
    make_mig,
    make_node,
    make_pod,
)
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
