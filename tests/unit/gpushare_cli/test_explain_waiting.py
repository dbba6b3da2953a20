"""Why a pod waits: the words, the numbers, and the exit code."""

from dataclasses import replace

import pytest

from gpushare import names
from gpushare.model.gpu import HandOver
from gpushare.units import MemoryUnit
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.explaining import config_map, copy, explain
from testing.cli.podding import bound, mutated
from testing.cli.simulating import lines
from tests.unit.gpushare_cli.findings import Told

NODE_A, NODE_B = make_node(make_inventory(15, 15)), make_node(make_inventory(15, node="node-b"))
HOLDERS = (bound("h0", make_grant(0, gib=12)), bound("h1", make_grant(1, gib=10)))


def waiting(gpu_mem: object = 8, said: str = "", **spec: object) -> Json:
    pod = mutated(make_pod(make_container(gpu_mem=gpu_mem)))
    pod["spec"] |= spec
    if said:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        pod["status"]["conditions"] = [{"type": "Initialized", "status": "True"}, condition]
    return pod


def test_every_node_is_named_with_its_numbers_the_closest_first(told: Told) -> None:
    said = "0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem."
    found = explain(waiting(20, said), NODE_A, NODE_B, make_node(name="cpu"), *HOLDERS)
    assert (found.code, found.err) == (3, "")
    assert found.out == lines(*told())


def test_a_pod_that_fits_is_told_where_and_what_happens_next(told: Told) -> None:
    found = explain(waiting(8, "0/2 nodes are available"), NODE_A, NODE_B, *HOLDERS)
    assert found.code == 0
    assert found.out.splitlines()[1:3] == told()
    assert found.out.splitlines()[-2:] == told()


def test_the_best_nodes_come_first_and_a_few_are_named() -> None:
    nodes = [make_node(make_inventory(15, node=f"node-{name}")) for name in "abcd"]
    found = explain(waiting(), *nodes, bound("holder", make_grant(0, gib=5), node="node-d"))
    assert found.out.splitlines()[1] == "STATE:      waits; it fits on node-d, node-a, node-b and 1 more"
    assert "the scheduler has not come to it yet" in found.out


def test_what_kubernetes_has_against_a_node_with_room_is_named(told: Told) -> None:
    found = explain(waiting(), NODE_A, {**NODE_B, "spec": {"unschedulable": True}}, *HOLDERS)
    assert found.code == 3
    assert found.out.splitlines()[2] == told()[0]


def test_the_sum_of_the_node_is_told_where_its_gpus_would_have_room(told: Told) -> None:
    node = copy(NODE_A)
    node["status"]["allocatable"][names.GPU_MEM] = "15"
    found = explain(waiting(), node, bound("holder", make_grant(1, gib=12)))
    assert found.out.splitlines()[-1] == told()[0]


def test_that_an_autoscaler_sees_room_in_a_sum_is_a_note() -> None:
    """8 GiB would fit into the 15 that the two GPUs of node-a have left, and no single one has as much."""
    holders = [bound(f"h{gpu}", make_grant(gpu, gib=8)) for gpu in range(2)]
    suffices = (
        "note: what is free on node-a is enough in total, but no single GPU has room;"
        " autoscalers count totals, so they add no node"
    )
    assert suffices in explain(waiting(8), NODE_A, *holders).err
    assert "in total" not in explain(waiting(15), NODE_A, *holders).err
    assert "in total" not in explain(waiting(8, nodeSelector={"a": "b"}), NODE_A, *holders).err
    assert "in total" not in explain(waiting(8), NODE_A, NODE_B, *holders).err


def test_gpus_that_a_config_map_calls_unhealthy_do_not_count() -> None:
    marked = config_map("unhealthy-gpu-node-b", "kube-system", {"gpus": "0"})
    found = explain(waiting(), NODE_B, marked)
    assert found.out.splitlines()[-1] == "node-b  no    node-b has no healthy GPU (GPU 0 is unhealthy)"


SCHEDULER = (
    "its scheduler is volcano: only one that asks gpushare's extender gives it GPUs at once (gpushare-scheduler does;"
    " gpushare doctor tells of others)"
)


@pytest.mark.parametrize(
    ("part", "change", "notes"),
    [
        (
            "spec",
            {"topologySpreadConstraints": [{}], "resourceClaims": [{}]},
            ["not evaluated: topology spread constraints, resource claims"],
        ),
        ("spec", {"schedulerName": "volcano"}, [SCHEDULER]),
        ("spec", {"schedulerName": None}, [SCHEDULER.replace("volcano", "default-scheduler")]),
        (
            "spec",
            {"containers": [make_container(gpu_mem=8)]},
            ["the webhook did not change it, so its containers would not see their GPUs; recreate it"],
        ),
        ("status", {"nominatedNodeName": "node-a"}, ["pods on node-a are being evicted to make room for it"]),
        ("metadata", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, ["it is being deleted"]),
    ],
)
def test_what_else_may_keep_a_pod_away_is_a_note(part: str, change: Json, notes: list[str]) -> None:
    pod = waiting()
    pod[part] |= change
    assert explain(pod, NODE_B).err == "".join(f"note: {note}\n" for note in notes)


def test_gates_come_before_all_nodes(told: Told) -> None:
    found = explain(waiting(schedulingGates=[{"name": "quota"}, {"name": "b"}]), NODE_B)
    assert found.code == 3
    assert found.out.splitlines()[1:3] == told()


def test_a_request_that_cannot_be_understood_is_told_with_the_fix(told: Told) -> None:
    found = explain(waiting("1.5"), NODE_B)
    assert found.code == 3
    assert found.out == lines(*told())


def test_all_that_a_pod_asks_for_is_listed(told: Told) -> None:
    pod = mutated(
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
    found = explain(pod, make_node(replace(make_inventory(15, node="node-b"), hand_over=HandOver.CDI)))

    assert found.out.splitlines()[3:11] == told()
    assert found.out.splitlines()[-1] == told()[0]


def test_the_first_of_a_group_may_start_it() -> None:
    pod = waiting()
    pod["metadata"] |= {"labels": {"app": "web"}, "annotations": {names.ANNOTATION_SAME_GPU: "app=web"}}
    assert explain(pod, NODE_B).code == 0
    member = bound("member", make_grant(0, gib=14), node="node-b", labels={"app": "web"})
    assert explain(pod, NODE_A, NODE_B, member).code == 3


def test_settings_of_the_installation_count(told: Told) -> None:
    settings = config_map(
        "gpushare-config",
        "gpushare-system",
        {"GPUSHARE_MEMORY_UNIT": "MiB", "GPUSHARE_WHOLE_GPUS": "true", "GPUSHARE_GPU_POLICY": "spread"},
    )
    whole = make_pod(make_container(resources={"limits": {names.GPU: 2}}))
    found = explain(whole, settings, NODE_A)
    assert found.code == 3
    assert found.out.splitlines()[3:5] == told()
    assert found.out.splitlines()[-1] == told()[0]


def test_a_setting_that_cannot_be_understood_is_an_error(told: Told) -> None:
    settings = config_map("gpushare-config", "gpushare-system", {"GPUSHARE_MEMORY_UNIT": "lots"})
    found = explain(waiting(), NODE_B, settings)
    assert (found.code, found.out) == (1, "")
    assert found.err == lines(*told())


def test_the_unit_of_the_command_line_wins() -> None:
    settings = config_map("gpushare-config", "gpushare-system", {"GPUSHARE_MEMORY_UNIT": "MiB"})
    assert explain(waiting(), NODE_B, settings, unit=MemoryUnit(1024)).code == 0


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
