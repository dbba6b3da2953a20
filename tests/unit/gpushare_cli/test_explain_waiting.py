"""Why a pod waits: the words, the numbers, and the exit code."""

from dataclasses import replace

import pytest

from gpushare import names
from gpushare.model.gpu import HandOver
from gpushare.units import MemoryUnit
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.explaining import config_map, copy, explain
from testing.cli.podding import bound, changed, mutated
from tests.unit.gpushare_cli import findings

NODE_A, NODE_B = make_node(make_inventory(15, 15)), make_node(make_inventory(15, node="node-b"))
HOLDERS = (bound("h0", make_grant(0, gib=12)), bound("h1", make_grant(1, gib=10)))


def waiting(gpu_mem: object = 8, said: str = "", **spec: object) -> Json:
    pod = changed(mutated(make_pod(make_container(gpu_mem=gpu_mem))), "spec", **spec)
    if said:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        pod["status"]["conditions"] = [{"type": "Initialized", "status": "True"}, condition]
    return pod


SUM = copy(NODE_A)
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


CASES: dict[str, list[Json]] = {
    "every node is named with its numbers, the closest first": [
        waiting(20, "0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem."),
        *(NODE_A, NODE_B, make_node(name="cpu"), *HOLDERS),
    ],
    "a pod that fits is told where and what happens next": [waiting(8, "0/2 nodes"), NODE_A, NODE_B, *HOLDERS],
    "the best nodes come first and a few are named": [
        waiting(),
        *(make_node(make_inventory(15, node=f"node-{name}")) for name in "abcd"),
        bound("holder", make_grant(0, gib=5), node="node-d"),
    ],
    "what Kubernetes has against a node with room is named": [
        *(waiting(), NODE_A, {**NODE_B, "spec": {"unschedulable": True}}, *HOLDERS)
    ],
    "the sum of the node is told where its GPUs would have room": [
        *(waiting(), SUM, bound("holder", make_grant(1, gib=12)))
    ],
    # 8 GiB would fit into the 15 that the two GPUs of node-a have left, and no single one has as much.
    "that an autoscaler sees room in a sum is a note": [waiting(8), NODE_A, *TWO_HALVES],
    "it sees none in a sum that is too small": [waiting(15), NODE_A, *TWO_HALVES],
    "nor where the pod may not go": [waiting(8, nodeSelector={"a": "b"}), NODE_A, *TWO_HALVES],
    "nor is it told of a pod that fits": [waiting(8), NODE_A, NODE_B, *TWO_HALVES],
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
    "the next of a group waits for a GPU on which one is": [GROUP, NODE_A, NODE_B, MEMBER],
    "settings of the installation count": [
        make_pod(make_container(resources={"limits": {names.GPU: 2}})),
        *(settings(MEMORY_UNIT="MiB", WHOLE_GPUS="true", GPU_POLICY="spread"), NODE_A),
    ],
    "a setting that cannot be understood is an error": [waiting(), NODE_B, settings(MEMORY_UNIT="lots")],
}


@pytest.mark.parametrize("case", CASES)
def test_why_a_pod_waits_is_told(case: str) -> None:
    assert explain(*CASES[case]).lines == findings.golden("explain", case)


def test_the_unit_of_the_command_line_wins() -> None:
    assert explain(waiting(), NODE_B, settings(MEMORY_UNIT="MiB"), unit=MemoryUnit(1024)).code == 0


def test_json_has_the_same_facts() -> None:
    nodes = NODE_A, NODE_B, *HOLDERS
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
