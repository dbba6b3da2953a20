"""What pods ask for, in every way in which a container asks."""

from typing import Any

import pytest

from gpushare import names
from gpushare.errors import InvalidRequestError
from gpushare.model.request import ContainerKind, ContainerRequest, PodRequest, Policy
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from gpushare.wire import pods, requests
from testing.builders import Json, make_container, make_pod

LIMIT = "spec.containers[0].resources.limits[aliyun.com/gpu-mem]"


def container_requests(pod: dict[str, Any], unit: MemoryUnit = GIB) -> list[tuple[str, ContainerKind, int, int]]:
    found = requests.of_pod(pod, ResourceConfig(unit=unit))
    assert found is not None
    return [(w.container, w.kind, w.memory_mib, w.gpu_count) for w in found.shape.containers]


def test_gpu_mem_is_units_on_one_gpu_and_without_it_there_is_no_request() -> None:
    assert container_requests(make_pod(make_container("a", 3))) == [("a", ContainerKind.APP, 3072, 1)]
    assert container_requests(make_pod(make_container("a", "512")), MemoryUnit(1)) == [("a", ContainerKind.APP, 512, 1)]
    assert requests.of_pod(make_pod(make_container()), ResourceConfig()) is None
    assert not pods.needs_gpu(make_pod(make_container()), ResourceConfig())
    assert pods.needs_gpu(make_pod(make_container("a", 0)), ResourceConfig())


def test_containers_come_in_the_order_in_which_they_start() -> None:
    init = [make_container("i", 1), make_container("s", 2, restartPolicy="Always"), make_container("plain")]
    assert container_requests(make_pod(make_container("a", 3), init=init)) == [
        ("i", ContainerKind.INIT, 1024, 1),
        ("s", ContainerKind.SIDECAR, 2048, 1),
        ("a", ContainerKind.APP, 3072, 1),
    ]


def test_the_amount_is_the_total_by_the_label_and_per_gpu_by_the_annotation() -> None:
    pod = make_pod(make_container("a", 8), labels={"aliyun.com/gpu-count": "2"})
    assert container_requests(pod) == [("a", ContainerKind.APP, 4096, 2)]
    assert container_requests(make_pod(make_container("a", 8), labels={"aliyun.com/gpu-count": "0"}))[0][3] == 1
    pod = make_pod(make_container("a", 3), annotations={"gpushare.dev/gpus": "4"})
    assert container_requests(pod) == [("a", ContainerKind.APP, 3072, 4)]
    annotations = {"gpushare.dev/gpus": "4", "gpushare.dev/limits-are-totals": "true"}
    assert container_requests(make_pod(make_container("a", 12), annotations=annotations)) == [
        ("a", ContainerKind.APP, 3072, 4)
    ]


def test_a_pod_may_choose_its_policy_and_replicas_have_the_same_shape() -> None:
    for policy in list(Policy):
        found = requests.of_pod(make_pod(annotations={"gpushare.dev/gpu-policy": policy.value}), ResourceConfig())
        assert found is not None
        assert found.shape.policy is policy
    one, two = (requests.of_pod(make_pod(name=name), ResourceConfig()) for name in ("web-1", "web-2"))
    assert one is not None
    assert two is not None
    assert one.shape == two.shape
    assert one.shape.containers == (ContainerRequest(container=one.shape.containers[0].container, memory_mib=3072),)


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (make_pod(make_container("a", "-2")), f"{LIMIT}: -2 is negative; write a whole number of units such as 3"),
        (
            make_pod(make_container("a", 7), labels={"aliyun.com/gpu-count": "2"}),
            f"{LIMIT}: 7 cannot be split evenly over 2 GPUs; write 6 or 8",
        ),
        (
            make_pod(make_container("a", 1), labels={"aliyun.com/gpu-count": "2"}),
            f"{LIMIT}: 1 cannot be split evenly over 2 GPUs; write 2",
        ),
        (
            make_pod(labels={"aliyun.com/gpu-count": "two"}),
            "metadata.labels[aliyun.com/gpu-count]: not a number of GPUs: 'two' is not a number;"
            ' write a whole number in quotes, such as "2"',
        ),
        (
            make_pod(annotations={"gpushare.dev/gpus": "65"}),
            "metadata.annotations[gpushare.dev/gpus]: 65 GPUs are more than any node has; write a number up to 64",
        ),
        (
            make_pod(annotations={"gpushare.dev/gpus": "2"}, labels={"aliyun.com/gpu-count": "2"}),
            "metadata.annotations[gpushare.dev/gpus]: the label aliyun.com/gpu-count (amounts are totals) contradicts"
            " it (amounts are per GPU); keep one of the two",
        ),
    ],
)
def test_a_bad_request_says_where_and_what_to_do(pod: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        requests.of_pod(pod, ResourceConfig())
    assert str(caught.value) == message


def test_all_errors_of_a_pod_come_at_once() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        requests.of_pod(make_pod(make_container("a", 0), make_container("b", "x")), ResourceConfig())
    assert [error.path for error in caught.value.errors] == [
        "spec.containers[0].resources.limits[aliyun.com/gpu-mem]",
        "spec.containers[1].resources.limits[aliyun.com/gpu-mem]",
    ]


def running(field: str) -> dict[str, Any]:
    return {"phase": "Failed", field: [{"state": {"terminated": {}}}, {"state": {"running": {}}}]}


@pytest.mark.parametrize(
    ("status", "holds"),
    [
        *(({"phase": "Pending"}, True), ({"phase": "Running"}, True), ({"phase": "Unknown"}, True), (None, True)),
        *(({"phase": "Succeeded"}, False), ({"phase": "Failed"}, False)),
        ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {}}}, {}]}, False),
        (running("containerStatuses"), True),
        (running("initContainerStatuses"), True),
    ],
)
def test_memory_is_held_until_the_containers_have_ended(status: dict[str, Any] | None, holds: bool) -> None:
    pod = make_pod(node="n")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pod["status"] = status
    assert pods.holds_gpus(pod) is holds


@pytest.mark.parametrize("asking", [True, False], ids=["that ask", "of a kind"])
def test_a_pod_has_at_most_so_many_containers(asking: bool) -> None:
    most = 64 if asking else 512

    def of(count: int) -> dict[str, Any]:
        rest = [make_container(f"c{i}", 1 if asking else None) for i in range(1, count)]
        return make_pod(make_container("c0", 1), *rest)

    assert len(container_requests(of(most))) == (most if asking else 1)
    with pytest.raises(InvalidRequestError):
        container_requests(of(most + 1))


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
