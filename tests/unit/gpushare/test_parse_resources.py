"""Every way in which a container asks, and what is said of every way to get it wrong."""

from typing import Any

import pytest

from gpushare import names
from gpushare.errors import InvalidRequestError
from gpushare.model.request import ContainerRequest, PodRequest
from gpushare.resource_config import ResourceConfig
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import parse_resources, pods, requests
from testing.builders import Json, make_container, make_pod

WHOLE = ResourceConfig(whole_gpus=True)
LIMITS = "spec.containers[0].resources.limits"
PERCENT = f"{LIMITS}[nano-gpu/gpu-percent]"
CORE = f"{LIMITS}[aliyun.com/gpu-core.percentage]"
GPU = f"{LIMITS}[nvidia.com/gpu]"
SEVERAL = (
    "for several GPUs ask for aliyun.com/gpu-mem with the annotation gpushare.dev/gpus, which gives so much on each"
)


def asking(limits: Json, requests: Json | None = None, **fields: Any) -> Json:
    resources: Json = {"limits": limits} if requests is None else {"limits": limits, "requests": requests}
    return make_pod({**make_container("a"), "resources": resources}, **fields)


def request(pod: Json, resource_config: ResourceConfig = WHOLE) -> PodRequest:
    found = requests.of_pod(pod, resource_config)
    assert found is not None
    return found


def only(pod: Json, resource_config: ResourceConfig = WHOLE) -> ContainerRequest:
    (container_request,) = request(pod, resource_config).shape.containers
    return container_request


def test_percent_is_a_part_of_the_memory_and_of_the_compute_of_one_gpu() -> None:
    container_request = only(asking({names.GPU_PERCENT: "20"}))
    assert (
        container_request.memory_mib,
        container_request.memory_percent,
        container_request.compute_percent,
        container_request.gpu_count,
    ) == (0, 20, 20, 1)
    assert parse_resources.counted(container_request, GIB) == (names.GPU_PERCENT, 20)


def test_whole_gpus_are_ours_only_if_the_administrator_says_so() -> None:
    container_request = only(asking({names.GPU: 2}))
    assert (container_request.whole, container_request.gpu_count, container_request.compute_percent) == (True, 2, 100)
    assert parse_resources.counted(container_request, GIB) == (names.GPU, 2)
    assert requests.of_pod(asking({names.GPU: 2}), ResourceConfig()) is None
    assert not pods.needs_gpu(asking({names.GPU: 2}), ResourceConfig())


def test_core_is_the_part_of_compute_beside_gpu_mem() -> None:
    container_request = only(asking({names.GPU_MEM: 4, names.GPU_CORE: 30}))
    assert (container_request.memory_mib, container_request.compute_percent) == (4096, 30)
    assert parse_resources.counted(container_request, GIB) == (names.GPU_MEM, 4)


def test_the_unit_of_gpu_mem_is_a_setting() -> None:
    container_request = only(asking({names.GPU_MEM: 3}), ResourceConfig(unit=MemoryUnit(256)))
    assert container_request.memory_mib == 768
    assert parse_resources.counted(container_request, MemoryUnit(256)) == (names.GPU_MEM, 3)


def test_whole_gpus_count_by_themselves_whatever_the_pods_label_says_of_memory() -> None:
    assert only(asking({names.GPU: 3}, labels={names.LABEL_GPU_COUNT: "2"})).gpu_count == 3


def test_containers_of_one_pod_may_ask_in_different_ways() -> None:
    first = {**make_container("a"), "resources": {"limits": {names.GPU_MEM: 3}}}
    second = {**make_container("b"), "resources": {"limits": {names.GPU_PERCENT: 50}}}
    third = {**make_container("c"), "resources": {"limits": {names.GPU: 1}}}
    found = request(make_pod(first, second, third, make_container("idle")))
    assert [
        (container_request.container, parse_resources.counted(container_request, GIB))
        for container_request in found.shape.containers
    ] == [
        ("a", (names.GPU_MEM, 3)),
        ("b", (names.GPU_PERCENT, 50)),
        ("c", (names.GPU, 1)),
    ]
    assert found.app_containers == ("a", "b", "c", "idle")


@pytest.mark.parametrize(
    ("limits", "also", "message"),
    [
        ({names.GPU_PERCENT: 0}, None, f"{PERCENT}: 0 asks for nothing; remove the entry or write at least 1"),
        (
            {names.GPU_PERCENT: "101"},
            None,
            f"{PERCENT}: 101 per cent are more than one GPU; write up to 100; {SEVERAL}",
        ),
        ({names.GPU_PERCENT: 200}, None, f"{PERCENT}: 200 per cent are more than one GPU; write up to 100; {SEVERAL}"),
        (
            {names.GPU_PERCENT: "20%"},
            None,
            f"{PERCENT}: '20%' is not a number; write a whole number of per cent such as 3",
        ),
        (
            {names.GPU_PERCENT: "500m"},
            None,
            f"{PERCENT}: 500m is not whole (m stands for thousandths); a share is a whole number of per cent",
        ),
        ({names.GPU_PERCENT: 0.5}, None, f"{PERCENT}: 0.5 is not whole; a share is a whole number of per cent"),
        (
            {names.GPU_PERCENT: -1},
            None,
            f"{PERCENT}: -1 is negative; write a whole number of per cent such as 3",
        ),
        (
            {names.GPU_PERCENT: True},
            None,
            f"{PERCENT}: True is not a number; write a whole number of per cent such as 3",
        ),
        (
            {},
            {names.GPU_PERCENT: 20},
            f"{LIMITS}: requests nano-gpu/gpu-percent without a limit; write the same amount under limits",
        ),
        (
            {names.GPU_PERCENT: 20},
            {names.GPU_PERCENT: 10},
            "spec.containers[0].resources.requests[nano-gpu/gpu-percent]: 10 differs from the limit 20;"
            " write 20 or leave requests out",
        ),
        (
            {names.GPU_MEM: 3, names.GPU_PERCENT: 20},
            None,
            f"{LIMITS}: asks for aliyun.com/gpu-mem and nano-gpu/gpu-percent, which count the same GPUs in different"
            " ways; keep one of them",
        ),
        (
            {names.GPU_MEM: 3, names.GPU_PERCENT: 20, names.GPU: 1},
            None,
            f"{LIMITS}: asks for aliyun.com/gpu-mem and nano-gpu/gpu-percent and nvidia.com/gpu, which count the same"
            " GPUs in different ways; keep one of them",
        ),
        (
            {names.GPU_PERCENT: 20, names.GPU_CORE: 20},
            None,
            f"{LIMITS}: aliyun.com/gpu-core.percentage is the part of compute beside aliyun.com/gpu-mem; add"
            " aliyun.com/gpu-mem, or ask for nano-gpu/gpu-percent alone, which is memory and compute",
        ),
        (
            {names.GPU: 1, names.GPU_CORE: 20},
            None,
            f"{LIMITS}: aliyun.com/gpu-core.percentage is the part of compute beside aliyun.com/gpu-mem; add"
            " aliyun.com/gpu-mem, or ask for nano-gpu/gpu-percent alone, which is memory and compute",
        ),
        (
            {names.GPU_MEM: 3, names.GPU_CORE: 150},
            None,
            f"{CORE}: 150 per cent are more than one GPU's compute; write up to 100",
        ),
        (
            {names.GPU_MEM: 3, names.GPU_CORE: "x"},
            None,
            f"{CORE}: 'x' is not a number; write a whole number of per cent such as 3",
        ),
        (
            {names.GPU_MEM: 3, names.GPU_CORE: 0},
            None,
            f"{CORE}: 0 asks for nothing; remove the entry or write at least 1",
        ),
        (
            {names.GPU_PERCENT: "9" * 5000},
            None,
            f"{PERCENT}: '{'9' * 40}'... is too long for an amount; write a whole number of per cent such as 3",
        ),
        ({names.GPU: 0}, None, f"{GPU}: 0 asks for nothing; remove the entry or write at least 1"),
        ({names.GPU: "1.5"}, None, f"{GPU}: 1.5 is not whole; a share is a whole number of GPUs"),
        (
            {names.GPU: "2Gi"},
            None,
            f"{GPU}: 2Gi has a suffix, but the resource is counted in GPUs; write the number alone, such as 2",
        ),
        ({names.GPU: 65}, None, f"{GPU}: 65 GPUs are more than any node has; write a number up to 64"),
        (
            {names.GPU: 10**10},
            None,
            f"{GPU}: 10000000000 is more than any node can hold; write a number of GPUs up to 1000000000",
        ),
    ],
)
def test_a_bad_amount_says_where_and_what_to_do(limits: Json, also: Json | None, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        requests.of_pod(asking(limits, also), WHOLE)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("limits", "fields", "message"),
    [
        (
            {names.GPU_PERCENT: 40},
            {"annotations": {names.ANNOTATION_GPUS: "2"}},
            "metadata.annotations[gpushare.dev/gpus]: container a asks for nano-gpu/gpu-percent, which is a part of one"
            f" GPU; remove it; {SEVERAL}",
        ),
        (
            {names.GPU_PERCENT: 40},
            {"labels": {names.LABEL_GPU_COUNT: "2"}},
            "metadata.labels[aliyun.com/gpu-count]: container a asks for nano-gpu/gpu-percent, which is a part of one"
            f" GPU; remove it; {SEVERAL}",
        ),
        (
            {names.GPU_MEM: 4, names.GPU_CORE: 10},
            {"labels": {names.LABEL_GPU_COUNT: "2"}},
            "metadata.labels[aliyun.com/gpu-count]: container a asks for aliyun.com/gpu-core.percentage, which is a"
            " part of one GPU; remove it, or remove aliyun.com/gpu-core.percentage",
        ),
    ],
)
def test_a_part_of_a_gpu_cannot_be_on_several(limits: Json, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        requests.of_pod(asking(limits, **fields), WHOLE)
    assert str(caught.value) == message


def test_a_request_needs_exactly_one_way_to_say_how_much() -> None:
    with pytest.raises(ValueError, match="container a: 1 MiB, 20 % of memory, 20 % of compute, whole False, on 1 GPUs"):
        ContainerRequest(container="a", memory_mib=1, memory_percent=20, compute_percent=20)  # type: ignore[arg-type]  # a literal
