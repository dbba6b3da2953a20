from pathlib import Path
from typing import Any

import pytest

from gpushare import names
from gpushare_cli.kube_scores import Load
from gpushare_cli.simulate import signature
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.podding import bound, mutated
from testing.cli.simulating import T4S, Result, listed, manifest, simulate, where, workload

NODES = listed(make_node(make_inventory(15, 15)), make_node(make_inventory(15, node="node-b")))
CRON_JOB: Json = {"kind": "CronJob", "metadata": {"name": "web"}, "spec": {"jobTemplate": workload("Job", "x")}}


def pods(result: Result) -> list[str]:
    return [pod["name"] for pod in result.value["pods"]]


def owned(name: str, kind: str, owner: str) -> Json:
    pod = make_pod(name=name)
    pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": owner, "uid": "u", "controller": True}]
    return pod


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (workload("Deployment", "web"), ["web-xmqgn7dpw9-m9tsm"]),
        (workload("Deployment", "web", replicas=2), ["web-xmqgn7dpw9-m9tsm", "web-xmqgn7dpw9-kmtzf"]),
        (workload("Deployment", "web", replicas=0), []),
        (workload("ReplicaSet", "web"), ["web-nfbzk"]),
        (workload("ReplicationController", "web"), ["web-76tv4"]),
        (workload("StatefulSet", "web", replicas=2), ["web-0", "web-1"]),
        (workload("StatefulSet", "web", replicas=2, ordinals={"start": 5}), ["web-5", "web-6"]),
        (workload("DaemonSet", "web"), ["web-4d5cx", "web-f974g"]),
        (workload("Job", "web"), ["web-h27xg"]),
        (workload("Job", "web", parallelism=2), ["web-h27xg", "web-z9shv"]),
        (workload("Job", "web", completions=2), ["web-h27xg"]),
        (workload("Job", "web", parallelism=9, completions=2), ["web-h27xg", "web-z9shv"]),
        (workload("Job", "web", parallelism=2, completionMode="Indexed"), ["web-0-h27xg", "web-1-z9shv"]),
        (workload("Job", "web", suspend=True), []),
        (CRON_JOB, ["web-1-6bc29"]),
    ],
)
def test_workloads_make_pods_with_names_as_kubernetes_gives_them(value: Json, expected: list[str]) -> None:
    assert pods(simulate(NODES, value, as_json=True)) == pods(simulate(NODES, value, as_json=True)) == expected


def test_a_generated_name_has_letters_that_depend_on_the_file() -> None:
    generated = {**manifest(make_pod()), "metadata": {"generateName": "web-"}}
    assert [name[:-5] for name in pods(simulate(NODES, generated, as_json=True))] == ["web-"]


@pytest.mark.parametrize(
    ("value", "owner"),
    [
        (workload("StatefulSet", "web", replicas=3), ("StatefulSet", "web")),
        (workload("Deployment", "web", replicas=3), ("ReplicaSet", "web-5d4f8")),
        (CRON_JOB, ("Job", "web-28000")),
    ],
)
def test_a_workload_whose_pods_are_in_the_list_makes_no_others(value: Json, owner: tuple[str, str]) -> None:
    found = simulate(NODES, value, owned("web-x", *owner), make_pod(namespace="ml", name="other"), as_json=True)
    assert pods(found) == ["web-x", "other"]
    assert found.value["notes"][0] == f"{value['kind']} default/web: its 1 pods are in the input, so no others are made"


def test_a_daemon_set_reaches_every_node_that_it_tolerates() -> None:
    cordoned = make_node(make_inventory(15))
    cordoned["spec"] = {"unschedulable": True}
    tainted = make_node(make_inventory(15, node="node-b"))
    tainted["spec"] = {"taints": [{"key": "a", "effect": "NoSchedule"}]}
    found = simulate(listed(cordoned, tainted), workload("DaemonSet", "web"), as_json=True)
    assert [(pod["of"], pod["node"], pod["outcome"]) for pod in found.value["pods"]] == [
        ("DaemonSet default/web", "node-a", "Placed")
    ]


def test_waiting_pods_are_placed_by_priority_and_then_by_age() -> None:
    def waiting(name: str, created: str, priority: int | None = None) -> Json:
        pod = make_pod(name=name)
        pod["metadata"]["creationTimestamp"] = created
        pod["spec"]["priority"] = priority
        return pod

    found = simulate(
        NODES,
        manifest(make_pod(name="new")),
        waiting("late", "2026-01-01T00:00:02Z"),
        waiting("early", "2026-01-01T00:00:01Z"),
        waiting("urgent", "2026-01-01T00:00:09Z", 100),
        as_json=True,
    )
    assert pods(found) == ["urgent", "early", "late", "new"]


def test_pods_that_are_ending_or_have_ended_get_nothing_new() -> None:
    leaving = make_pod(name="leaving")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    done = make_pod(name="done", phase="Failed")
    held = bound("held", make_grant(0, gib=9), phase="Succeeded")
    found = simulate(NODES, leaving, done, held, as_json=True)
    assert (pods(found), found.value["summary"]["usedMiB"]) == ([], 0)


@pytest.mark.parametrize(("name", "outcome"), [("node-b", "Placed"), ("node-z", "Waits")])
def test_a_preset_node_is_the_only_one(name: str, outcome: str) -> None:
    found = simulate(NODES, manifest(make_pod(node=name)), as_json=True)
    (pod,) = found.value["pods"]
    assert (pod["outcome"], pod["node"]) == (outcome, name if outcome == "Placed" else None)
    if outcome == "Waits":
        assert pod["message"] == "there is no node node-z in the input"


def test_gpus_that_a_config_map_calls_unhealthy_take_nothing() -> None:
    config = {"metadata": {"name": "unhealthy-gpu-node-a", "namespace": "kube-system"}, "data": {"gpus": "0"}}
    found = simulate(NODES, {"kind": "ConfigMap", **config}, workload("StatefulSet", "web"), as_json=True)
    assert where(found) == [("web-0", "node-a", [[1]])]


def test_an_exported_pod_without_its_uid_holds_what_it_holds() -> None:
    pod = manifest(bound("holder", make_grant(0, gib=9)))
    found = simulate(NODES, pod, as_json=True)
    assert (pods(found), found.value["summary"]["usedMiB"]) == ([], 9 * 1024)


def test_pods_that_ask_for_whole_gpus_are_ours_only_if_told() -> None:
    whole = manifest(make_pod(make_container(resources={"limits": {names.GPU: "1"}})))
    (theirs,) = simulate(NODES, whole, as_json=True).value["pods"]
    assert (theirs["outcome"], theirs["message"].partition(";")[0]) == (
        "Waits",
        "node-a has room, but: Insufficient nvidia.com/gpu: 1 asked for, none allocatable, 0 requested by pods there",
    )
    assert where(simulate(whole, profile=T4S, whole_gpus=True, as_json=True)) == [("pod", "node-1", [[0]])]


def test_identical_replicas_that_wait_get_one_search() -> None:
    found = simulate(workload("ReplicaSet", "web", replicas=10_000), profile=T4S, nodes=3, as_json=True)
    assert found.err.splitlines() == ["binpack, seed 1: 10000 pods on 3 nodes ...", "5000 of 10000 pods have come ..."]
    summary = found.value["summary"]
    assert summary.pop("refused") == {"InsufficientGpuMemory": 9_970}
    assert summary.pop("gpus") == [
        {"model": "Tesla T4", "gpus": 6, "allocated": 6, "free": 0, "freeTooSmall": 0, "freeWithoutHost": 0}
    ]
    granted = {"grantedMiB": 92_160, "grantedPercent": 100, "usedMiB": 92_160, "usedPercent": 100}
    assert summary == {"pods": 10_000, "placed": 30, "totalMiB": 92_160, **granted}


def test_made_up_nodes_join_those_of_a_list() -> None:
    existing: Any = listed(make_node(make_inventory(2, node="node-1")))
    profile = T4S + "nodes: {node-0: {gpus: [{model: A100, memoryMiB: 40960}]}}\n"
    found = simulate(existing, manifest(make_pod(make_container(gpu_mem=30))), profile=profile, as_json=True)
    assert [node["name"] for node in found.value["nodes"]] == ["node-0", "node-1", "node-2"]
    assert where(found) == [("pod", "node-0", [[0]])]


def test_a_profile_may_be_the_config_map_of_the_device_plugin() -> None:
    path = Path(__file__).parents[3] / "manifests/gpus/simulated/profile.yaml"
    found = simulate(profile=path.read_text(encoding="utf-8"), nodes=12, as_json=True)
    assert [node["name"] for node in found.value["nodes"]][:2] == ["node-01", "node-02"]
    assert found.value["summary"]["totalMiB"] == 12 * 4 * 15360


def test_a_model_that_a_pod_excludes_is_no_place_for_it() -> None:
    pods = [manifest(make_pod(name=name, annotations={names.ANNOTATION_MODEL: "!T4"})) for name in ("one", "two")]
    for policy in ("dense", "binpack", "fgd"):
        found = simulate(make_node(make_inventory(15)), *pods, policies=(policy,))
        assert "0 of 2 pods placed" in found.details
        assert "other model" in found.details


def test_a_pod_on_a_node_without_gpus_gets_them_there_before_all_others() -> None:
    bypassed = mutated(make_pod(make_container(gpu_mem=10), name="late", node="node-b"))
    foreign = make_pod(make_container(gpu_mem=1), name="foreign", node="node-b", namespace="ml")
    found = simulate(NODES, make_pod(make_container(gpu_mem=10), name="first"), bypassed, foreign, as_json=True)
    assert where(found) == [("late", "node-b", [[0]]), ("foreign", None, []), ("first", "node-a", [[0]])]
    assert found.value["pods"][1]["message"].startswith("the webhook did not change it, ")


@pytest.mark.parametrize(("container", "placed"), [("main", None), ("log", "node-b")])
def test_a_pod_whose_gpu_container_has_started_without_gpus_gets_none(container: str, placed: str | None) -> None:
    bypassed = mutated(make_pod(make_container(gpu_mem=10), name="late", node="node-b"))
    bypassed["status"] = {"phase": "Running", "containerStatuses": [{"name": container, "state": {"running": {}}}]}
    (row,) = simulate(NODES, bypassed, as_json=True).value["pods"]
    assert row["node"] == placed
    assert placed or row["message"].startswith("its containers have started without GPUs from gpushare")


def test_a_pod_of_another_plugin_on_a_node_of_its_own_is_left_out() -> None:
    whole = make_container(resources={"limits": {names.GPU: 1}})
    theirs = make_pod(whole, name="theirs", node="plain", phase="Running")
    ours = mutated(make_pod(make_container(gpu_mem=1), name="ours", node="plain"))
    found = simulate(NODES, make_node(name="plain"), theirs, ours, whole_gpus=True, as_json=True)
    assert [row["name"] for row in found.value["pods"]] == ["ours"]


@pytest.mark.parametrize("replay", [False, True])
def test_a_kind_that_is_no_string_is_named(replay: bool) -> None:
    pod = make_pod(node="node-a")
    pod["metadata"]["ownerReferences"] = [{"kind": ["ReplicaSet"], "controller": True}]
    assert "metadata.ownerReferences.kind: expected a string, found a list" in simulate(NODES, pod, replay=replay).err


def test_scores_count_a_little_for_a_container_that_requests_nothing() -> None:
    assert signature.load(make_pod(make_container())) == Load(scored_cpu_milli=100, scored_memory_mib=200)
    # A pod without a spec is replaced by its owner.
    pod = {"metadata": {"name": "p", "ownerReferences": [{"kind": "ReplicaSet", "uid": "u", "controller": True}]}}
    assert signature.Signatures(()).of(pod, None).replicas_of == signature.owner(pod)
