"""Where a pod is and what it has there, or why it waits: all that is said, and the exit code."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare import names
from gpushare.identity import ContainerName, GpuUuid
from gpushare.model.gpu import HandOver
from gpushare.model.ledger import Grant
from gpushare.model.request import ContainerKind
from gpushare.units import MemoryUnit
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.explaining import config_map, copy, explain
from testing.cli.podding import bound, changed, mutated
from tests.unit.gpushare_cli import findings

NODE = make_node(make_inventory(15, 15))
GROWN = make_inventory(16)
PLAIN_NODE = make_node(name="node-a")


def noted(pod: Json, **annotations: str) -> Json:
    """With these annotations in the place of that of its binding."""
    pod["metadata"]["annotations"].pop(names.ANNOTATION_ALLOCATION)
    pod["metadata"]["annotations"] |= annotations
    return pod


def states(pod: Json, **of: Json) -> Json:
    """With these states of its containers."""
    pod["status"]["containerStatuses"] = [{"name": name, "state": state} for name, state in of.items()]
    return pod


def waits(reason: str, **more: str) -> Json:
    return {"waiting": {"reason": reason, **more}}


def with_env(pod: Json, **values: str) -> Json:
    pod["spec"]["containers"][0]["env"] += [{"name": name, "value": value} for name, value in values.items()]
    return pod


def rejected(**metadata: object) -> Json:
    pod = make_pod(node="node-a", phase="Failed")
    pod["status"] |= {"reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
    pod["metadata"] |= metadata
    return pod


def bypassed(gpu_mem: object = 3) -> Json:
    return mutated(make_pod(make_container(gpu_mem=gpu_mem), node="node-a"))


def owned(kind: str) -> Json:
    return {"ownerReferences": [{"kind": kind, "name": "web", "uid": "u", "controller": True}]}


def started(pod: Json, container: str = "main") -> Json:
    pod = copy(pod)
    pod["status"] |= {"phase": "Running"}
    return states(pod, **{container: {"running": {}}})


def plain(**metadata: object) -> Json:
    """Not changed by the webhook."""
    pod = make_pod(node="node-a")
    pod["metadata"] |= metadata
    return pod


def offering(name: str, **amounts: str) -> Json:
    node = make_node(name=name)
    node["status"] = {"allocatable": {key.replace("_", "/", 1).replace("_", "-"): of for key, of in amounts.items()}}
    return node


def asking(limits: dict[str, Any], **fields: Any) -> Json:
    return make_pod(make_container(resources={"limits": limits}), **fields)


def with_claims(pod: Json) -> Json:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "x"}]
    return {**pod, "spec": {**pod["spec"], "resourceClaims": claims}}


PART = Grant(container=ContainerName("main"), gpus=(GpuUuid("GPU-0"),), memory_mib=5068, compute_percent=33)
ALL = Grant(
    container=ContainerName("main"), gpus=(GpuUuid("GPU-1"),), memory_mib=15360, compute_percent=100, whole=True
)
NANO = {names.NANO_ASSUME: "true", f"{names.PREFIX_NANO_CONTAINER}main": "0"}
OTHERS = {
    names.ANNOTATION_ALLOCATION: '{"version":9,"minReader":9}',
    f"{names.PREFIX_DEVICES}main": "GPU-0",
    f"{names.PREFIX_MEMORY}main": "3072",
}
SIDECAR = bypassed()
SIDECAR["spec"]["containers"].append({"name": "log"})
WHOLE = asking({names.GPU: 1})
ELSEWHERE = [{**copy(NODE), "spec": {"unschedulable": True}}, make_node(make_inventory(9, node="b"))]
EIGHT = {"nvidia.com_gpu": "8"}
CASES: dict[str, list[Json]] = {
    "a running pod is told where, what, beside whom, and what holds it": [
        with_env(
            bound("pod", make_grant(0, gib=3), make_grant(0, 1, gib=2, container="side")),
            **{names.ENV_MPS_MEMORY_LIMIT: "0=3072M", names.ALIYUN_CONTAINER: "3", "HOME": "/"},
        ),
        *(NODE, bound("web-1", make_grant(0, gib=4)), bound("web-0", make_grant(0, gib=1))),
    ],
    "parts show their compute": [bound("pod", PART), NODE],
    "whole GPUs need no limit": [bound("pod", ALL), NODE],
    "beside a whole GPU a part has one": [bound("pod", ALL, make_grant(0, container="side")), NODE],
    "chosen late": [bound("pod", make_grant(1, gib=3), annotations={names.ANNOTATION_LATE: "true"}), NODE],
    "chosen by Aliyun gpushare": [noted(bound("pod", make_grant(1, gib=3)), **{names.ALIYUN_IDX: "1"}), NODE],
    "chosen by ACK": [noted(bound("pod", make_grant(1, gib=3)), **{names.ACK_ALLOCATION: '{"0":{"1":3}}'}), NODE],
    "a part that nano-gpu gave is shown as memory": [
        *(asking({names.GPU_PERCENT: 50}, node="node-a", phase="Running", annotations=NANO), NODE)
    ],
    "pods on a node of Aliyun's plugin are shown with its equal GPUs": [
        make_pod(node="node-a", phase="Running", annotations={names.ALIYUN_IDX: "1"}),
        offering("node-a", **{"aliyun.com_gpu_mem": "30", "aliyun.com_gpu_count": "2"}),
    ],
    "ill and lost GPUs and stuck containers are notes": [
        states(
            bound("pod", make_grant(0, "GPU-gone", gib=3), phase="Pending"),
            main=waits("CreateContainerError", message="no device"),
            next=waits("PodInitializing"),
        ),
        *(NODE, config_map("unhealthy-gpu-node-a", "kube-system", {"gpus": "0"})),
    ],
    "an allocation that only its other annotations tell is a note": [
        *(noted(bound("pod", make_grant(0, gib=3)), **OTHERS), NODE)
    ],
    "what no one can read blocks the node": [
        *(noted(bound("pod", make_grant(0, gib=3)), **{names.ANNOTATION_ALLOCATION: "{}"}), NODE)
    ],
    "a pod that has ended has given back what it held": [
        *(bound("pod", make_grant(0, gib=3), phase="Succeeded"), NODE)
    ],
    "a failed pod whose container still runs still holds": [
        *(states(bound("pod", make_grant(0, gib=3), phase="Failed"), main={"running": {}}), NODE)
    ],
    "a pod that its node rejected is told why": [rejected(), NODE],
    "and that its controller makes another": [rejected(**owned("ReplicaSet")), NODE],
    "a pod that ended on no node is over": [make_pod(phase="Failed"), NODE],
    "a pod that asks for no GPU is none of ours": [make_pod(make_container(), node="node-a", phase="Running"), NODE],
    "a pod with claims is kube-scheduler's": [with_claims(make_pod(make_container())), NODE],
    "whole GPUs of another plugin are named": [WHOLE, NODE, offering("node-b", **EIGHT)],
    "with the number of its nodes": [WHOLE, NODE, offering("node-b", **EIGHT), offering("node-c", **EIGHT)],
    "whole GPUs that nothing serves are not blamed on another plugin": [WHOLE, NODE],
    "a misspelt resource is told with what was probably meant": [asking({"aliyun.com/gpu-memory": 3}), NODE],
    "a GPU of which more may be granted than it has is told": [
        bound("pod", make_grant(0, gib=10)),
        make_node(replace(GROWN, gpus=(replace(GROWN.gpus[0], extra_mib=8 * 1024),))),
        bound("other", make_grant(0, gib=10)),
    ],
    "there is room for a pod that bypassed the scheduler": [bypassed(), *ELSEWHERE],
    "there is none": [bypassed(20), *ELSEWHERE],
    "it has started without GPUs": [started(bypassed()), *ELSEWHERE],
    "the webhook did not change it": [plain(), *ELSEWHERE],
    "its owner recreates it": [plain(**owned("ReplicaSet")), *ELSEWHERE],
    "unless it has started": [started(plain(**owned("ReplicaSet"))), *ELSEWHERE],
    "without an owner it is for its author": [started(plain()), *ELSEWHERE],
    "a pod of a Job counts as failed": [plain(**owned("Job")), *ELSEWHERE],
    "static pods cannot ask": [plain(**owned("Node")), *ELSEWHERE],
    "its request cannot be understood": [make_pod(make_container(gpu_mem="many"), node="node-a"), *ELSEWHERE],
    "a container that asks for no GPU may have started": [started(SIDECAR, "log"), NODE],
    "a pod of another plugin is left alone": [plain(**owned("ReplicaSet")), PLAIN_NODE],
    "also when it has started": [started(plain()), PLAIN_NODE],
    "a pod whose node is gone gets nothing": [bypassed(), make_node(name="node-b")],
    "nor one that the webhook did not change": [plain(), make_node(name="node-b")],
    "and a request that cannot be understood is told all the same": [bypassed("many"), make_node(name="node-b")],
}


def test_json_has_the_shares_and_the_neighbours() -> None:
    init = make_grant(1, gib=2, container="first", kind=ContainerKind.INIT)
    pod = bound("pod", make_grant(0, gib=3), init, annotations={names.ANNOTATION_POLICY: "spread"})
    value = explain(pod, NODE, bound("web", make_grant(0, gib=1)), as_json=True).value
    assert value["state"] == "HoldsGpus"
    place = {"container": "first", "kind": "init", "gpu": 1, "uuid": "GPU-1", "model": "Tesla T4"}
    share = {"memoryMiB": 2048, "memoryPercent": 13, "computePercent": 0, "whole": False, "limit": "advisory"}
    assert value["containers"][1] == {**place, **share, "usedMiB": None, "peakMiB": None, "trouble": None}
    web = {"namespace": "default", "name": "web", "grantedMiB": 1024, "usedMiB": 1024, "computePercent": 0}
    gpu = {"index": 0, "uuid": "GPU-0", "model": "Tesla T4", "totalMiB": 15360, "grantedMiB": 4096, "usedMiB": 4096}
    assert value["gpus"][0] == {**gpu, "computePercent": 0, "sharedWith": [web]}
    assert value["policy"] == "spread: the emptiest GPU first (named by the pod)"
    assert value["useProblem"] == "there is no gpushare-device-plugin on it"


def test_programs_get_what_a_pod_is_and_where() -> None:
    gpu = make_grant(0)
    for pod, state, node, good in (
        (bound("pod", gpu, phase="Failed"), "Ended", "node-a", True),
        (bound("pod", gpu, annotations={names.ANNOTATION_ALLOCATION: "{}"}), "Unreadable", "node-a", True),
        (bypassed(), "WithoutGpu", "node-a", True),
        (bypassed(20), "WithoutGpu", "node-a", False),
        (make_pod(phase="Failed"), "Ended", None, True),
        (make_pod(make_container(), node="node-a"), "AsksForNoGpu", "node-a", True),
    ):
        value = explain(pod, NODE, as_json=True).value
        assert (value["state"], value["node"], value["good"]) == (state, node, good)
        assert [answer["node"] for answer in value["nodes"]] == (["node-a"] if state == "WithoutGpu" else [])


NODE_B = make_node(make_inventory(15, node="node-b"))
HOLDERS = (bound("h0", make_grant(0, gib=12)), bound("h1", make_grant(1, gib=10)))


def waiting(gpu_mem: object = 8, said: str = "", **spec: object) -> Json:
    pod = changed(mutated(make_pod(make_container(gpu_mem=gpu_mem))), "spec", **spec)
    if said:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        pod["status"]["conditions"] = [{"type": "Initialized", "status": "True"}, condition]
    return pod


SUM = copy(NODE)
SUM["status"]["allocatable"][names.GPU_MEM] = "15"
CDI = make_node(replace(make_inventory(15, node="node-b"), hand_over=HandOver.CDI))
GROUP = waiting()
GROUP["metadata"] |= {"labels": {"app": "web"}, "annotations": {names.ANNOTATION_SAME_GPU: "app=web"}}
MEMBER = bound("member", make_grant(0, gib=14), node="node-b", labels={"app": "web"})
TWO_HALVES = [bound(f"h{gpu}", make_grant(gpu, gib=8)) for gpu in range(2)]
MANY = mutated(
    make_pod(
        make_container("main", resources={"limits": {names.GPU_MEM: 3, names.GPU_CORE: 20}}),
        make_container("part", resources={"limits": {names.GPU_PERCENT: 30}}),
        init=[make_container("first", 1)],
        annotations={
            names.ANNOTATION_MODEL: "T4",
            names.ANNOTATION_SAME_GPU: "app=web",
            names.ANNOTATION_OTHER_GPU: "app=batch",
            names.ANNOTATION_POLICY: "spread",
            names.ANNOTATION_HAND_OVER: "cdi",
        },
    )
)


def settings(**data: str) -> Json:
    return config_map("gpushare-config", "gpushare-system", {f"GPUSHARE_{key}": value for key, value in data.items()})


CASES |= {
    "every node is named with its numbers, the closest first": [
        waiting(20, "0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem."),
        *(NODE, NODE_B, make_node(name="cpu"), *HOLDERS),
    ],
    "a pod that fits is told where and what happens next": [waiting(8, "0/2 nodes"), NODE, NODE_B, *HOLDERS],
    "the best nodes come first and a few are named": [
        waiting(),
        *(make_node(make_inventory(15, node=f"node-{name}")) for name in "abcd"),
        bound("holder", make_grant(0, gib=5), node="node-d"),
    ],
    "what Kubernetes has against a node with room is named": [
        *(waiting(), NODE, {**NODE_B, "spec": {"unschedulable": True}}, *HOLDERS)
    ],
    "the sum of the node is told where its GPUs would have room": [
        *(waiting(), SUM, bound("holder", make_grant(1, gib=12)))
    ],
    # 8 GiB would fit into the 15 that the two GPUs of node-a have left, and no single one has as much.
    "that an autoscaler sees room in a sum is a note": [waiting(8), NODE, *TWO_HALVES],
    "it sees none in a sum that is too small": [waiting(15), NODE, *TWO_HALVES],
    "nor where the pod may not go": [waiting(8, nodeSelector={"a": "b"}), NODE, *TWO_HALVES],
    "nor is it told of a pod that fits": [waiting(8), NODE, NODE_B, *TWO_HALVES],
    "GPUs that a ConfigMap calls unhealthy do not count": [
        *(waiting(), NODE_B, config_map("unhealthy-gpu-node-b", "kube-system", {"gpus": "0"}))
    ],
    "what is not evaluated is a note": [waiting(topologySpreadConstraints=[{}], resourceClaims=[{}]), NODE_B],
    "another scheduler is a note": [waiting(schedulerName="volcano"), NODE_B],
    "so is the cluster's own": [waiting(schedulerName=None), NODE_B],
    "a pod that the webhook did not change is a note": [waiting(containers=[make_container(gpu_mem=8)]), NODE_B],
    "evictions for it are a note": [changed(waiting(), "status", nominatedNodeName="node-a"), NODE_B],
    "its deletion is a note": [changed(waiting(), "metadata", deletionTimestamp="2026-01-01T00:00:00Z"), NODE_B],
    "gates come before all nodes": [waiting(schedulingGates=[{"name": "quota"}, {"name": "b"}]), NODE_B],
    "a request that cannot be understood is told with the fix": [waiting("1.5"), NODE_B],
    "all that a pod asks for is listed": [MANY, CDI],
    "the first of a group may start it": [GROUP, NODE_B],
    "the next of a group waits for a GPU on which one is": [GROUP, NODE, NODE_B, MEMBER],
    "settings of the installation count": [
        make_pod(make_container(resources={"limits": {names.GPU: 2}})),
        *(settings(MEMORY_UNIT="MiB", WHOLE_GPUS="true", GPU_POLICY="spread"), NODE),
    ],
    "a setting that cannot be understood is an error": [waiting(), NODE_B, settings(MEMORY_UNIT="lots")],
}


@pytest.mark.parametrize("case", CASES)
def test_where_a_pod_is_and_what_it_has_is_told(case: str) -> None:
    assert explain(*CASES[case]).lines == findings.golden("explain", case)


def test_the_unit_of_the_command_line_wins() -> None:
    assert explain(waiting(), NODE_B, settings(MEMORY_UNIT="MiB"), unit=MemoryUnit(1024)).code == 0


def test_json_has_the_same_facts() -> None:
    nodes = NODE, NODE_B, *HOLDERS
    headline, summary, _, policy = (line[12:] for line in explain(waiting(8, "full"), *nodes).out.splitlines()[1:5])
    fills = "GPU 0: 15 of 15 GiB are free, and 7 GiB stay free, which few pods here ask for"
    lack = "needs 8 GiB on one GPU; free per GPU on node-a: 3, 5 GiB"
    fits = {"node": "node-b", "fits": True, "gpusFit": True, "score": 10, "reason": None, "message": None}
    refuses = {"node": "node-a", "fits": False, "gpusFit": False, "score": None, "reason": "InsufficientGpuMemory"}
    pod = {"namespace": "default", "name": "pod", "uid": "uid-pod", "phase": "Pending", "state": "Waits", "good": True}
    choice = {"node": "node-b", "why": fills, "next": None, "lack": "it fits on no other node", "inHindsight": False}
    empty: Json = {"containers": [], "gpus": [], "notes": []}
    none = dict.fromkeys(("node", "chosenBy", "limitHeldBy", "useProblem"))
    assert explain(waiting(8, "full"), *nodes, as_json=True).value == pod | empty | none | {
        "headline": headline,
        "summary": summary,
        "policy": policy,
        "asks": ["main: 8 GiB on one GPU"],
        "scheduler": "gpushare-scheduler",
        "schedulerMessage": "full",
        "choice": choice,
        "nodes": [{**fits, "blockers": []}, {**refuses, "message": lack, "blockers": []}],
    }
