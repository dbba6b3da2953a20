from typing import Any

import pytest

from gpushare.errors import InvalidRequestError
from gpushare.model.request import ContainerKind, ContainerRequest, Policy
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from gpushare.wire import pods, requests
from testing.builders import make_container, make_pod

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
