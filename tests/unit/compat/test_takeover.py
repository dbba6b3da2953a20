"""Point 7: pods that run under one system are counted by the next, in both directions."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from testing.controller.world import World
from tests.unit.compat.cluster import cluster, create, make_pod, run

MEM, PERCENT = "aliyun.com/gpu-mem", "nano-gpu/gpu-percent"
ACK = "scheduler.framework.gpushare.allocation"
Json = dict[str, Any]


def running(limits: Json, annotations: Mapping[str, str], **fields: object) -> Json:
    """A pod of the former system: no one has changed its variables."""
    pod = make_pod(limits, annotations=annotations)
    pod["metadata"] |= {"name": "old", **fields}
    pod["spec"]["nodeName"] = "node-a"
    return {**pod, "status": {"phase": "Running"}}


FORMER = {
    "Aliyun": (running({MEM: 6}, {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "6"}), {"GPU-1": 6}),
    "Aliyun, an annotation that its tenant changed": (
        running({MEM: 6}, {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "1"}),
        {"GPU-1": 6},
    ),
    "ACK, two GPUs": (running({MEM: 8}, {ACK: '{"0":{"0":4,"1":4}}'}), {"GPU-0": 4, "GPU-1": 4}),
    "nano-gpu": (running({PERCENT: 50}, {"nano-gpu/assume": "true", "nano-gpu/container-c0": "1"}), {"GPU-1": 5}),
}


@pytest.mark.parametrize("name", FORMER)
def test_point_7_running_pods_of_the_former_system_are_counted(name: str) -> None:
    pod, held = FORMER[name]
    world = cluster((10, 10))
    world.api.seed("/api/v1/namespaces/team/pods", pod)
    world.see()
    assert world.used() == held
    assert world.ledger() == world.truth()[NodeName("node-a")]

    free = {f"GPU-{i}": 10 - held.get(f"GPU-{i}", 0) for i in range(2)}
    for gib in free.values():
        run(world, make_pod({MEM: gib}))
    assert world.used() == {"GPU-0": 10, "GPU-1": 10}
    too_much = world.post("filter", {"Pod": create(world, make_pod({MEM: 1})), "NodeNames": ["node-a"]})
    assert too_much["FailedNodes"] == {"node-a": "needs 1 GiB on one GPU; free per GPU on node-a: 0, 0 GiB"}


def test_point_7_a_former_pod_that_has_ended_gives_its_memory_back() -> None:
    pod, _ = FORMER["Aliyun"]
    world = cluster((10, 10))
    seeded = world.api.seed("/api/v1/namespaces/team/pods", pod)
    world.see()
    world.finish(seeded)
    world.see()
    assert not world.used()


# The way back. The functions count as the former systems do: from annotations and labels of running pods alone.


def counted_by_aliyun(pods: Iterable[JsonObject]) -> dict[str, int]:
    """Units on each GPU: what a pod's annotation says that it has, on the one GPU that another one names."""
    result: dict[str, int] = {}
    for pod in pods:
        annotations = pod["metadata"]["annotations"]
        if "ALIYUN_COM_GPU_MEM_IDX" in annotations and annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true":
            index = annotations["ALIYUN_COM_GPU_MEM_IDX"]
            result[index] = result.get(index, 0) + int(annotations["ALIYUN_COM_GPU_MEM_POD"])
    return result


def counted_by_ack(pods: Iterable[JsonObject]) -> dict[str, int]:
    """The same, and pods on several GPUs by what each container has on each."""
    pods = list(pods)
    result = counted_by_aliyun(pods)
    for pod in pods:
        for shares in json.loads(pod["metadata"]["annotations"].get(ACK, "{}")).values():
            for index, units in shares.items():
                result[index] = result.get(index, 0) + units
    return result


def counted_by_nano(pods: Iterable[JsonObject]) -> dict[str, int]:
    """Per cent of each GPU, of pods with the label."""
    result: dict[str, int] = {}
    for pod in pods:
        if pod["metadata"]["labels"].get("nano-gpu/assume") != "true":
            continue
        for container in pod["spec"]["containers"]:
            index = pod["metadata"]["annotations"][f"nano-gpu/container-{container['name']}"]
            if index != "-1":
                percent = int(container["resources"]["limits"][PERCENT])
                result[index] = result.get(index, 0) + percent
    return result


def world_with(*pods: Json) -> tuple[World, list[JsonObject]]:
    world = cluster((10, 10))
    return world, [run(world, pod) for pod in pods]


def test_point_7_the_former_schedulers_count_pods_of_this_system() -> None:
    world, pods = world_with(make_pod({MEM: 6}), make_pod({MEM: 3}, {MEM: 1}), make_pod({MEM: 9}))
    assert {f"GPU-{index}": units for index, units in counted_by_aliyun(pods).items()} == world.used()
    world, pods = world_with(
        make_pod({MEM: 8}, labels={"aliyun.com/gpu-count": "2"}),
        make_pod({MEM: 2}, annotations={"gpushare.dev/gpus": "2"}),
        make_pod({}, {MEM: 4}, {MEM: 3}),
    )
    assert {f"GPU-{index}": units for index, units in counted_by_ack(pods).items()} == world.used()
    world, pods = world_with(make_pod({PERCENT: 30}, {}), make_pod({PERCENT: 60}, {PERCENT: 50}))
    counted = {f"GPU-{index}": percent for index, percent in counted_by_nano(pods).items()}
    assert counted == dict(world.ledger().used_percent)
