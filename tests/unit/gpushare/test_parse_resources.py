"""Every way in which a container asks."""

from typing import Any

import pytest

from gpushare import names
from gpushare.model.request import ContainerRequest, PodRequest
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from gpushare.wire import pods, requests
from testing.builders import Json, make_container, make_pod

WHOLE = ResourceConfig(whole_gpus=True)


def asking(limits: Json, **fields: Any) -> Json:
    return make_pod({**make_container("a"), "resources": {"limits": limits}}, **fields)


def request(pod: Json, resource_config: ResourceConfig = WHOLE) -> PodRequest:
    found = requests.of_pod(pod, resource_config)
    assert found is not None
    return found


def only(pod: Json, resource_config: ResourceConfig = WHOLE) -> ContainerRequest:
    (container_request,) = request(pod, resource_config).shape.containers
    return container_request


def test_percent_and_core_are_parts_of_gpus_in_units_of_the_setting() -> None:
    container_request = only(asking({names.GPU_PERCENT: "20"}))
    assert (
        *(container_request.memory_mib, container_request.memory_percent, container_request.compute_percent),
        container_request.gpu_count,
    ) == (0, 20, 20, 1)
    assert requests.counted(container_request, GIB) == (names.GPU_PERCENT, 20)
    container_request = only(asking({names.GPU_MEM: 4, names.GPU_CORE: 30}))
    assert (container_request.memory_mib, container_request.compute_percent) == (4096, 30)
    assert requests.counted(container_request, GIB) == (names.GPU_MEM, 4)
    container_request = only(asking({names.GPU_MEM: 3}), ResourceConfig(unit=MemoryUnit(256)))
    assert container_request.memory_mib == 768
    assert requests.counted(container_request, MemoryUnit(256)) == (names.GPU_MEM, 3)


def test_whole_gpus_are_ours_only_if_the_administrator_says_so() -> None:
    container_request = only(asking({names.GPU: 2}))
    assert (container_request.whole, container_request.gpu_count, container_request.compute_percent) == (True, 2, 100)
    assert requests.counted(container_request, GIB) == (names.GPU, 2)
    assert requests.of_pod(asking({names.GPU: 2}), ResourceConfig()) is None
    assert not pods.needs_gpu(asking({names.GPU: 2}), ResourceConfig())
    assert only(asking({names.GPU: 3}, labels={names.LABEL_GPU_COUNT: "2"})).gpu_count == 3


def test_containers_of_one_pod_may_ask_in_different_ways_but_each_in_one() -> None:
    first = {**make_container("a"), "resources": {"limits": {names.GPU_MEM: 3}}}
    second = {**make_container("b"), "resources": {"limits": {names.GPU_PERCENT: 50}}}
    third = {**make_container("c"), "resources": {"limits": {names.GPU: 1}}}
    found = request(make_pod(first, second, third, make_container("idle")))
    assert [
        (container_request.container, requests.counted(container_request, GIB))
        for container_request in found.shape.containers
    ] == [("a", (names.GPU_MEM, 3)), ("b", (names.GPU_PERCENT, 50)), ("c", (names.GPU, 1))]
    assert found.app_containers == ("a", "b", "c", "idle")
    with pytest.raises(ValueError, match="container a: 1 MiB, 20 % of memory, 20 % of compute, whole False, on 1 GPUs"):
        ContainerRequest(container="a", memory_mib=1, memory_percent=20, compute_percent=20)  # type: ignore[arg-type]  # a literal
