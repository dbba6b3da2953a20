"""Where a pod is and what it has there, or why it was given nothing: the words, the numbers, and the exit code."""

from dataclasses import replace

import pytest

from gpushare import names
from gpushare.identity import ContainerName, GpuUuid
from gpushare.model.allocation import Grant
from gpushare.model.request import ContainerKind
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.explaining import config_map, copy, explain
from testing.cli.podding import bound, mutated
from testing.cli.simulating import lines
from tests.unit.gpushare_cli.findings import Told

NODE = make_node(make_inventory(15, 15))


def test_a_running_pod_is_told_where_what_beside_whom_and_what_holds_it(told: Told) -> None:
    pod = bound("pod", make_grant(0, gib=3), make_grant(0, 1, gib=2, container="side"))
    pod["spec"]["containers"][0]["env"] += [
        {"name": names.ENV_MPS_MEMORY_LIMIT, "value": "0=3072M"},
        {"name": names.ALIYUN_CONTAINER, "value": "3"},
        {"name": "HOME", "value": "/"},
    ]
    neighbours = [bound("web-1", make_grant(0, gib=4)), bound("web-0", make_grant(0, gib=1))]
    found = explain(pod, NODE, *neighbours)

    assert (found.code, found.err) == (0, "")
    assert found.out == lines(*told())


def test_parts_show_their_compute_and_whole_gpus_need_no_limit() -> None:
    part = Grant(container=ContainerName("main"), gpus=(GpuUuid("GPU-0"),), memory_mib=5068, compute_percent=33)
    found = explain(bound("pod", part), NODE)
    assert "main       0    GPU-0  Tesla T4  5068 MiB (32%)  33%\n" in found.out
    assert found.out.endswith("SHARED WITH\n0    5068 MiB of 15 GiB (32%), 33% of compute  none\n")
    whole = Grant(
        container=ContainerName("main"), gpus=(GpuUuid("GPU-1"),), memory_mib=15360, compute_percent=100, whole=True
    )
    assert "LIMIT:      nothing: no" in explain(bound("pod", whole, make_grant(0, container="side")), NODE).out
    found = explain(bound("pod", whole), NODE)
    assert "WHY:        it has all of GPU 1\n" in found.out
    assert "LIMIT:      nothing is needed: no one else is on its GPUs\n" in found.out
    assert "main       1    GPU-1  Tesla T4  whole   100%\n" in found.out


@pytest.mark.parametrize(
    ("annotations", "chooser"),
    [
        ({names.ANNOTATION_LATE: "true"}, "gpushare, after the pod had come to its node by another way"),
        ({names.ANNOTATION_ALLOCATION: None, names.ALIYUN_IDX: "1"}, "Aliyun gpushare"),
        ({names.ANNOTATION_ALLOCATION: None, names.ACK_ALLOCATION: '{"0":{"1":3}}'}, "ACK's scheduler"),
    ],
)
def test_it_is_told_who_chose_the_gpus(annotations: dict[str, str | None], chooser: str) -> None:
    pod = bound("pod", make_grant(1, gib=3))
    notes = pod["metadata"]["annotations"] | annotations
    pod["metadata"]["annotations"] = {key: value for key, value in notes.items() if value is not None}
    found = explain(pod, NODE)
    assert (found.code, found.err) == (0, "")
    assert f"CHOSEN BY:  {chooser}" in found.out
    assert "main       1    GPU-1  Tesla T4  3 GiB (20%)  shared\n" in found.out


def test_a_part_that_nano_gpu_gave_is_shown_as_memory() -> None:
    pod = make_pod(make_container(resources={"limits": {names.GPU_PERCENT: 50}}), node="node-a", phase="Running")
    pod["metadata"]["annotations"] = {names.NANO_ASSUME: "true", f"{names.PREFIX_NANO_CONTAINER}main": "0"}
    found = explain(pod, NODE)
    assert "CHOSEN BY:  nano-gpu\n" in found.out
    assert "main       0    GPU-0  Tesla T4  7680 MiB (50%)  50%\n" in found.out


def test_pods_on_a_node_of_aliyuns_plugin_are_shown_with_its_equal_gpus() -> None:
    node = make_node(name="node-a")
    node["status"]["allocatable"] = {names.GPU_MEM: "30", names.GPU_COUNT: "2"}
    pod = make_pod(node="node-a", phase="Running", annotations={names.ALIYUN_IDX: "1"})
    assert "main       1    index:1  unknown  3 GiB (20%)  shared\n" in explain(pod, node).out


def test_ill_and_lost_gpus_and_stuck_containers_are_notes(told: Told) -> None:
    pod = bound("pod", make_grant(0, "GPU-gone", gib=3), phase="Pending")
    pod["status"]["containerStatuses"] = [
        {"name": "main", "state": {"waiting": {"reason": "CreateContainerError", "message": "no device"}}},
        {"name": "next", "state": {"waiting": {"reason": "PodInitializing"}}},
    ]
    found = explain(pod, NODE, config_map("unhealthy-gpu-node-a", "kube-system", {"gpus": "0"}))
    assert found.code == 0
    assert found.err == lines(*told())
    assert "main       ?    GPU-gone  ?         3 GiB        shared\n" in found.out
    assert "main       ?    ?         3 GiB    ?     ?\n" in found.out


def test_an_allocation_that_only_its_other_annotations_tell_is_a_note() -> None:
    pod = bound("pod", make_grant(0, gib=3))
    pod["metadata"]["annotations"] |= {
        names.ANNOTATION_ALLOCATION: '{"version":9,"minReader":9}',
        f"{names.PREFIX_DEVICES}main": "GPU-0",
        f"{names.PREFIX_MEMORY}main": "3072",
    }
    found = explain(pod, NODE)
    assert found.code == 0
    assert found.err.startswith("note: its allocation cannot be read: annotation gpushare.dev/allocation: version 9 ")
    assert found.err.endswith("; told by the other annotations of its binding\n")
    assert "WHY:        it has 3 GiB of GPU 0\n" in found.out


def test_what_no_one_can_read_blocks_the_node(told: Told) -> None:
    pod = bound("pod", make_grant(0, gib=3))
    pod["metadata"]["annotations"] = {names.ANNOTATION_ALLOCATION: "{}"}
    found = explain(pod, NODE)
    assert found.code == 0
    assert found.out.splitlines()[1:3] == told()


def test_a_pod_that_has_ended_has_given_back_what_it_held(told: Told) -> None:
    found = explain(bound("pod", make_grant(0, gib=3), phase="Succeeded"), NODE)
    assert found.code == 0
    assert found.out == lines(*told())


def test_a_failed_pod_whose_container_still_runs_still_holds() -> None:
    pod = bound("pod", make_grant(0, gib=3), phase="Failed")
    pod["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}}]
    assert "STATE:      Failed on node-a\n" in explain(pod, NODE).out


@pytest.mark.parametrize(
    ("owned", "then"), [(True, ", and its controller makes another"), (False, "; delete it and create it again")]
)
def test_a_pod_that_its_node_rejected_is_told_why(owned: bool, then: str) -> None:
    pod = make_pod(node="node-a", phase="Failed")
    pod["status"] |= {"reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
    if owned:
        pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}]
    assert explain(pod, NODE).out.splitlines()[2] == (
        "WHY:       node-a rejected it before any container ran: UnexpectedAdmissionError: Allocate failed; it holds no"
        f" GPU{then}"
    )


def test_a_pod_that_ended_on_no_node_is_over(told: Told) -> None:
    found = explain(make_pod(phase="Failed"), NODE)
    assert (found.code, found.out.splitlines()[1:3]) == (0, told())


def test_a_pod_that_asks_for_no_gpu_is_none_of_ours(told: Told) -> None:
    found = explain(make_pod(make_container(), node="node-a", phase="Running"), NODE)
    assert (found.code, found.out.splitlines()[1:]) == (0, told())


WHOLE = make_pod(make_container(resources={"limits": {names.GPU: 1}}))


def test_whole_gpus_of_another_plugin_are_named() -> None:
    other = make_node(make_inventory(8, node="node-b"))
    other["status"] = {"allocatable": {names.GPU: "8"}}
    third = {**copy(other), "metadata": {"name": "node-c"}}
    for others, where in (([other], "1 node"), ([other, third], "2 nodes")):
        state, why = explain(WHOLE, NODE, *others).out.splitlines()[1:3]
        assert state == "STATE:  Pending; none of gpushare's"
        assert why.endswith(f"gpushare does not hand out in this cluster; another device plugin does, on {where}")


def test_whole_gpus_that_nothing_serves_are_not_blamed_on_another_plugin(told: Told) -> None:
    found = explain(WHOLE, NODE)
    assert found.code == 3
    assert found.out.splitlines()[2] == told()[0]


def test_a_misspelt_resource_is_told_with_what_was_probably_meant(told: Told) -> None:
    found = explain(make_pod(make_container(resources={"limits": {"aliyun.com/gpu-memory": 3}})), NODE)
    assert found.code == 3
    assert found.out.splitlines()[1:3] == told()


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


def test_a_gpu_of_which_more_may_be_granted_than_it_has_is_told() -> None:
    known = make_inventory(16)
    node = make_node(replace(known, gpus=(replace(known.gpus[0], extra_mib=8 * 1024),)))
    found = explain(bound("pod", make_grant(0, gib=10)), node, bound("other", make_grant(0, gib=10)))
    assert "20 GiB of 16 GiB (125%), oversubscribed up to 24 GiB" in found.out


def bypassed(gpu_mem: object = 3, **metadata: object) -> Json:
    pod = mutated(make_pod(make_container(gpu_mem=gpu_mem), node="node-a"))
    pod["metadata"] |= metadata
    return pod


def owned(kind: str) -> Json:
    return {"ownerReferences": [{"kind": kind, "name": "web", "uid": "u", "controller": True}]}


OWNER = owned("ReplicaSet")


def started(pod: Json, container: str = "main") -> Json:
    pod = copy(pod)
    pod["status"] |= {"phase": "Running", "containerStatuses": [{"name": container, "state": {"running": {}}}]}
    return pod


def plain(**metadata: object) -> Json:
    """Not changed by the webhook."""
    pod = make_pod(node="node-a")
    pod["metadata"] |= metadata
    return pod


def test_what_is_said_of_a_pod_without_gpus_is_what_the_controller_does(told: Told) -> None:
    others = {**copy(NODE), "spec": {"unschedulable": True}}, make_node(make_inventory(9, node="b"))
    pods = [
        bypassed(),
        bypassed(20),
        started(bypassed()),
        plain(),
        plain(**OWNER),
        started(plain(**OWNER)),
        started(plain()),
        plain(**owned("Job")),
        plain(**owned("Node")),
        make_pod(make_container(gpu_mem="many"), node="node-a"),
    ]
    whys = []
    for pod in pods:
        found = explain(copy(pod), *others)
        state, why = (" ".join(line.split()) for line in found.out.splitlines()[1:3])
        assert state == "STATE: on node-a without GPUs"
        assert found.code == (0 if why.startswith("WHY: there is room") else 3)
        whys.append(why.removeprefix("WHY: "))
    assert whys == told()


def test_a_container_that_asks_for_no_gpu_may_have_started() -> None:
    pod = bypassed()
    pod["spec"]["containers"].append({"name": "log"})
    assert explain(started(pod, "log"), NODE).code == 0


@pytest.mark.parametrize(
    ("pod", "code", "may"), [(plain(**OWNER), 3, "may start it"), (started(plain()), 0, "has started it")]
)
def test_a_pod_of_another_plugin_is_left_alone(pod: Json, code: int, may: str) -> None:
    found = explain(pod, make_node(name="node-a"))
    assert (found.code, found.out) == (
        code,
        lines(
            "POD:    default/pod",
            "STATE:  on node-a without GPUs from gpushare",
            "WHY:    the webhook did not change it, and nothing says that gpushare hands out GPUs there: anyone else"
            f" who does so {may}, and gpushare leaves it alone",
        ),
    )


def test_a_pod_whose_node_is_gone_gets_nothing() -> None:
    gone = " its node node-a is gone"
    for pod, why in ((bypassed(), gone), (plain(), gone), (bypassed("many"), " what it asks for cannot ")):
        assert why in explain(pod, make_node(name="node-b")).out.splitlines()[2]
