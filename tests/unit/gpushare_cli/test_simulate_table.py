from dataclasses import replace

import pytest

from gpushare import names
from gpushare.model.gpu import GpuHealth
from gpushare.model.request import Policy
from gpushare.units import MemoryUnit
from testing.builders import make_container, make_gpu, make_grant, make_inventory, make_mig, make_node, make_pod
from testing.cli.podding import bound
from testing.cli.simulating import T4S, lines, listed, manifest, simulate, workload


def test_pods_of_a_list_come_before_those_of_manifests() -> None:
    cluster = listed(
        make_node(make_inventory(15, 15)),
        make_node(make_inventory(10, 20, node="node-b")),
        make_pod(name="holder", node="node-a", annotations={names.ALIYUN_IDX: "0"}),
        make_pod(name="waiting", namespace="ml"),
    )
    two = make_pod(make_container("a", 4), make_container("b", 16), init=[make_container("prepare", 2)], name="two")
    big = make_pod(make_container(gpu_mem=30), name="big")
    odd = make_pod(make_container(gpu_mem="1.5"), name="odd")
    found = simulate(workload("StatefulSet", "binpack", replicas=4), *map(manifest, (two, big, odd)), cluster)

    assert found.code == 3
    assert found.err == ""
    assert found.details == lines(
        "POD                NODE    CONTAINER       GPU  AMOUNT",
        "ml/waiting         node-a  main            0    3 GiB",
        "default/binpack-0  node-a  main            0    3 GiB",
        "default/binpack-1  node-a  main            0    3 GiB",
        "default/binpack-2  node-a  main            0    3 GiB",
        "default/binpack-3  node-a  main            1    3 GiB",
        "default/two        node-b  prepare (init)  1    2 GiB",
        "                           a               1    4 GiB",
        "                           b               1    16 GiB",
        "default/big        -       -               -    waits: needs 30 GiB on one GPU; free per GPU on node-a:"
        " 0, 12 GiB (its largest GPU has 15 GiB in all); free per GPU on node-b: 10, 0 GiB (its largest GPU has 20 GiB"
        " in all)",
        "default/odd        -       -               -    refused: spec.containers[0].resources.limits[aliyun.com/"
        "gpu-mem]: 1.5 is not whole; a share is a whole number of units",
        "",
        "NODE    GPU0   GPU1   MEMORY(GiB)",
        "node-a  15/15  3/15   18/30 (60%)",
        "node-b  0/10   20/20  20/30 (66%)",
        "6 of 8 pods placed; 38/60 GiB (63%) of GPU memory in use",
    )


def test_parts_and_whole_gpus_of_a_made_up_cluster() -> None:
    part = make_pod(make_container(resources={"limits": {names.GPU_PERCENT: 33}}), name="part")
    whole = make_pod(make_container(resources={"limits": {names.GPU: 1}}), name="whole")
    each = make_pod(make_container(gpu_mem=3), name="each", annotations={names.ANNOTATION_GPUS: "2"})
    found = simulate(*map(manifest, (part, whole, each)), profile=T4S, nodes=2, whole_gpus=True)
    assert (found.code, found.err) == (0, "")
    assert found.details == lines(
        "POD            NODE    CONTAINER  GPU  AMOUNT",
        "default/part   node-1  main       0    5068 MiB and 33% of compute",
        "default/whole  node-1  main       1    whole",
        "default/each   node-2  main       0,1  3 GiB on each",
        "",
        "NODE    GPU0              GPU1         MEMORY(GiB)",
        "node-1  5/15 33% compute  15/15 whole  20/30 (66%)",
        "node-2  3/15              3/15         6/30 (20%)",
        "3 of 3 pods placed; 26/60 GiB (43%) of GPU memory in use",
    )


@pytest.mark.parametrize(("policy", "gpus"), [(Policy.BINPACK, "0 0"), (Policy.SPREAD, "0 1")])
def test_the_policy_is_that_of_pods_that_name_none(policy: Policy, gpus: str) -> None:
    found = simulate(workload("StatefulSet", "s", replicas=2), profile=T4S, policies=[policy.value])
    assert " ".join(line.split()[3] for line in found.details.splitlines()[1:3]) == gpus


def test_mig_instances_are_named_as_nvidia_smi_counts_them() -> None:
    inventory = make_inventory(15)
    node = make_node(replace(inventory, gpus=(*inventory.gpus, make_mig(1, 2))))
    found = simulate(listed(node, bound("holder", make_grant("MIG-1-2", gib=2))))
    assert found.details.splitlines()[:2] == ["NODE    GPU0  GPU1:2  MEMORY(GiB)", "node-a  0/15  2/5     2/20 (10%)"]


def test_a_cluster_without_new_pods_shows_how_full_it_is() -> None:
    ill = make_gpu(1, health=GpuHealth.UNHEALTHY)
    inventory = make_inventory(15, 15, 15)
    node = make_node(replace(inventory, gpus=(inventory.gpus[0], ill, inventory.gpus[2])))
    node["metadata"]["annotations"][names.ANNOTATION_CORDON] = "2"
    found = simulate(listed(node, make_node(name="cpu-only"), bound("holder", make_grant(0, gib=6))))
    assert found.code == 0
    assert found.details == lines(
        "NODE    GPU0  GPU1            GPU2           MEMORY(GiB)",
        "node-a  6/15  0/15 unhealthy  0/15 cordoned  6/45 (13%)",
        "0 of 0 pods placed; 6/45 GiB (13%) of GPU memory in use",
    )
    assert found.err == (
        "note: all pods of the input are in namespace default; if the list was made without -A, others hold more than"
        " is counted here\n"
    )


def test_nodes_that_kubernetes_keeps_a_pod_from_are_named_with_the_cause() -> None:
    cordoned, tainted, full = (make_node(make_inventory(15, node=f"node-{name}")) for name in "abc")
    cordoned["spec"] = {"unschedulable": True}
    tainted["spec"] = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
    holder = bound("holder", make_grant(0, gib=14), node="node-c", namespace="ml")
    found = simulate(listed(cordoned, tainted, full, holder, make_node(name="cpu"), make_pod(name="waits")))
    assert found.code == 3
    assert found.details.splitlines()[1] == (
        "default/waits  -     -          -    waits: node-a has room, but: cordoned (spec.unschedulable);"
        " node-b has room, but: taint team=ml:NoSchedule is not tolerated; needs 3 GiB on one GPU;"
        " free per GPU on node-c: 1 GiB"
    )


def test_only_the_closest_nodes_are_named() -> None:
    found = simulate(manifest(make_pod(make_container(gpu_mem=20))), profile=T4S, nodes=5)
    assert found.details.splitlines()[1].endswith(
        "waits: needs 20 GiB on one GPU; free per GPU on node-1: 15, 15 GiB (its largest GPU has 15 GiB in all);"
        " free per GPU on node-2: 15, 15 GiB (its largest GPU has 15 GiB in all);"
        " free per GPU on node-3: 15, 15 GiB (its largest GPU has 15 GiB in all); and 2 more nodes with GPUs"
    )


def test_a_cluster_without_gpus_says_so() -> None:
    found = simulate(listed(make_node(name="cpu"), make_pod()))
    assert found.details == lines(
        "POD          NODE  CONTAINER  GPU  AMOUNT",
        "default/pod  -     -          -    waits: cpu has no GPU inventory: no gpushare device plugin has reported"
        " GPUs there",
        "",
        "0 of 1 pods placed; 0/0 GiB (0%) of GPU memory in use",
    )


def test_the_units_of_the_nodes_are_those_of_the_output() -> None:
    node = make_node(make_inventory(1, unit=MemoryUnit(256)))
    found = simulate(listed(node), manifest(make_pod(make_container(gpu_mem=3))))
    assert found.details == lines(
        "POD          NODE    CONTAINER  GPU  AMOUNT",
        "default/pod  node-a  main       0    768 MiB",
        "",
        "NODE    GPU0  MEMORY(256MiB)",
        "node-a  3/4   3/4 (75%)",
        "1 of 1 pods placed; 3/4 units of 256MiB (75%) of GPU memory in use",
    )


def test_nodes_of_aliyuns_plugin_have_equal_gpus() -> None:
    node = make_node(name="old")
    node["status"]["allocatable"] = {names.GPU_MEM: "30", names.GPU_COUNT: "2"}
    holder = make_pod(make_container(gpu_mem=9), name="holder", node="old", annotations={names.ALIYUN_IDX: "1"})
    found = simulate(listed(node, holder, make_pod(namespace="ml")))
    assert found.err == "note: node old: has no inventory; assuming equal GPUs\n"
    assert found.details.splitlines()[1:] == [
        "ml/pod  old   main       1    3 GiB",
        "",
        "NODE  GPU0  GPU1   MEMORY(GiB)",
        "old   0/15  12/15  12/30 (40%)",
        "1 of 1 pods placed; 12/30 GiB (40%) of GPU memory in use",
    ]
    assert "MEMORY(256MiB)\nold   0/15  0/15  0/30 (0%)\n" in simulate(listed(node), memory_unit=MemoryUnit(256)).out


def test_input_may_come_from_the_standard_input() -> None:
    found = simulate("-", stdin="kind: Node\nmetadata: {name: cpu}\n")
    assert (found.code, found.details) == (0, "0 of 0 pods placed; 0/0 GiB (0%) of GPU memory in use\n")


def test_a_group_that_no_one_can_read_is_a_group_all_the_same() -> None:
    member = bound("member", node="node-b", labels={"app": "web"})
    member["metadata"]["annotations"] = {names.ANNOTATION_ALLOCATION: "{}"}
    member["spec"]["containers"] = [make_container(gpu_mem=1)]
    near = make_pod(annotations={names.ANNOTATION_SAME_GPU: "app=web"}, labels={"app": "web"})
    nodes = listed(make_node(make_inventory(15)), make_node(make_inventory(15, node="node-b")))
    found = simulate(nodes, member, manifest(near))
    assert found.code == 3
    assert "waits: needs 3 GiB on one GPU; free per GPU on node-a: without app=web" in found.details


def test_an_oversubscribed_gpu_takes_more_than_it_has_but_no_pod_that_refuses_that() -> None:
    known = make_inventory(16)
    node = make_node(replace(known, gpus=(replace(known.gpus[0], extra_mib=8 * 1024),)))
    pods = [make_pod(make_container(gpu_mem=8), name=name) for name in ("a", "b", "c")]
    never = make_pod(name="never", annotations={names.ANNOTATION_OVERSUBSCRIPTION: "never"})
    found = simulate(*map(manifest, (*pods, never)), listed(node))
    assert found.code == 3
    assert "waits: needs a GPU with no oversubscription; GPUs of node-a: 0: oversubscribed" in found.details
    assert "node-a  24/16 of 24 oversubscribed  24/16 (150%)" in found.details
