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
SHARED, WHOLE = ResourceConfig(), ResourceConfig(whole_gpus=True)


def request(pod: Json, resource_config: ResourceConfig = WHOLE) -> PodRequest:
    found = requests.of_pod(pod, resource_config)
    assert found is not None
    return found


def asking(limits: Json, **fields: Any) -> Json:
    return make_pod({**make_container("a"), "resources": {"limits": limits}}, **fields)


def asked(name: str = "a", mib: int = 0, gpu_count: int = 1, **more: Any) -> ContainerRequest:
    return ContainerRequest(container=name, memory_mib=mib, gpu_count=gpu_count, **more)  # type: ignore[arg-type]  # a literal


@pytest.mark.parametrize(
    ("pod", "unit", "containers"),
    [
        (asking({names.GPU_MEM: 3}), 1024, [asked(mib=3072)]),
        (asking({names.GPU_MEM: "512"}), 1, [asked(mib=512)]),
        (asking({names.GPU_MEM: 3}), 256, [asked(mib=768)]),
        (asking({names.GPU_MEM: 8}, labels={names.LABEL_GPU_COUNT: "2"}), 1024, [asked(mib=4096, gpu_count=2)]),
        (asking({names.GPU_MEM: 8}, labels={names.LABEL_GPU_COUNT: "0"}), 1024, [asked(mib=8192)]),
        (asking({names.GPU_MEM: 3}, annotations={names.ANNOTATION_GPUS: "4"}), 1024, [asked(mib=3072, gpu_count=4)]),
        (
            asking({names.GPU_MEM: 12}, annotations={names.ANNOTATION_GPUS: "4", names.ANNOTATION_TOTALS: "true"}),
            1024,
            [asked(mib=3072, gpu_count=4)],
        ),
        (asking({names.GPU_PERCENT: "20"}), 1024, [asked(memory_percent=20, compute_percent=20)]),
        (asking({names.GPU_MEM: 4, names.GPU_CORE: 30}), 1024, [asked(mib=4096, compute_percent=30)]),
        (asking({names.GPU: 2}), 1024, [asked(whole=True, compute_percent=100, gpu_count=2)]),
        (
            asking({names.GPU: 3}, labels={names.LABEL_GPU_COUNT: "2"}),
            1024,
            [asked(whole=True, compute_percent=100, gpu_count=3)],
        ),
        (
            make_pod(
                make_container("a", 3),
                init=[make_container("i", 1), make_container("s", 2, restartPolicy="Always"), make_container("plain")],
            ),
            1024,
            [asked("i", 1024, kind=ContainerKind.INIT), asked("s", 2048, kind=ContainerKind.SIDECAR), asked("a", 3072)],
        ),
    ],
)
def test_containers_ask_in_every_way_in_the_order_in_which_they_start(
    pod: Json, unit: int, containers: list[ContainerRequest]
) -> None:
    config = ResourceConfig(unit=MemoryUnit(unit), whole_gpus=True)
    assert list(request(pod, config).shape.containers) == containers


def test_without_a_resource_of_ours_there_is_no_request() -> None:
    for pod in (make_pod(make_container()), asking({names.GPU: 2})):
        assert requests.of_pod(pod, SHARED) is None
        assert not pods.needs_gpu(pod, SHARED)
    assert pods.needs_gpu(make_pod(make_container("a", 0)), SHARED)


def test_a_pod_may_choose_its_policy_and_replicas_have_the_same_shape() -> None:
    for policy in Policy:
        assert request(make_pod(annotations={names.ANNOTATION_POLICY: policy.value})).shape.policy is policy
    one, two = (request(make_pod(name=name)) for name in ("web-1", "web-2"))
    assert one.shape == two.shape


def test_containers_of_one_pod_may_ask_in_different_ways_but_each_in_one() -> None:
    ways = {"a": (names.GPU_MEM, 3), "b": (names.GPU_PERCENT, 50), "c": (names.GPU, 1)}
    containers = [
        {**make_container(name), "resources": {"limits": {resource: amount}}}
        for name, (resource, amount) in ways.items()
    ]
    found = request(make_pod(*containers, make_container("idle")))
    assert {each.container: requests.counted(each, GIB) for each in found.shape.containers} == ways
    assert requests.counted(asked(mib=768), MemoryUnit(256)) == (names.GPU_MEM, 3)
    assert found.app_containers == ("a", "b", "c", "idle")
    with pytest.raises(ValueError, match="container a: 1 MiB, 20 % of memory, 20 % of compute, whole False, on 1 GPUs"):
        asked(mib=1, memory_percent=20, compute_percent=20)


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
        request(make_pod(make_container("a", 0), make_container("b", "x")))
    assert [error.path for error in caught.value.errors] == [LIMIT, LIMIT.replace("[0]", "[1]")]


@pytest.mark.parametrize(("gib", "most", "asking"), [(1, 64, 64), (None, 512, 1)], ids=["that ask", "of a kind"])
def test_a_pod_has_at_most_so_many_containers(gib: int | None, most: int, asking: int) -> None:
    containers = [make_container("c0", 1), *(make_container(f"c{i}", gib) for i in range(1, most))]
    assert len(request(make_pod(*containers)).shape.containers) == asking
    with pytest.raises(InvalidRequestError):
        request(make_pod(*containers, make_container("more", gib)))


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


@pytest.mark.parametrize(
    ("resource", "meant"),
    [
        *(
            (f"aliyun.com/{name}", names.GPU_MEM)
            for name in ("gpu-memory", "gpumem", "gpu_mem", "GPU-mem", "gpu", "mem")
        ),
        *((f"{domain}/gpu-mem", names.GPU_MEM) for domain in ("alyun.com", "aliyun.co", "nano-gpu", "gpushare.dev")),
        *((f"{domain}/gpu-mem", names.GPU_MEM) for domain in ("example.com", "nvidia.com", "x.aliyun.com")),
        *(
            (f"nano-gpu/{name}", names.GPU_PERCENT)
            for name in ("gpu-percentage", "gpu_percent", "percent", "gpupercent")
        ),
        *((f"{domain}/gpu-percent", names.GPU_PERCENT) for domain in ("aliyun.com", "nanogpu", "nano-gpu.com")),
        *(
            (f"aliyun.com/{name}", names.GPU_CORE)
            for name in ("gpu-core", "gpu-cores.percentage", "gpucore.percentage")
        ),
        ("aliyun.com/gpu-core-percentage", names.GPU_CORE),
        ("nano-gpu/gpu-memory", names.GPU_MEM),
        ("nvidia.com/gpumem", "aliyun.com/gpu-mem in GiB, where HAMi counts MiB"),
        ("nvidia.com/gpumem-percentage", names.GPU_PERCENT),
        ("nvidia.com/gpucores", names.GPU_CORE),
    ],
)
def test_the_nearest_of_ours_is_meant(resource: str, meant: str) -> None:
    assert requests.meant(resource, SHARED) == meant


def test_what_is_ours_or_somebody_elses_means_what_it_says() -> None:
    for resource in [
        *(names.GPU_MEM, names.GPU_PERCENT, names.GPU_CORE, names.GPU_COUNT, "cpu", "memory", "hugepages-2Mi", ""),
        *("aliyun.com/eni", "aliyun.com/rdma", "aliyun.com/ppu", "nano-gpu/x", "aliyun.com/", "nvidia.com/gpu"),
        *("nvidia.com/gpumem-x", "nvidia.com/mig-1g.5gb", "volcano.sh/gpu-memory", "amd.com/gpu"),
        *("tencent.com/vcuda-core", "aliyun.com/gpu-mem" + "x" * 200),
    ]:
        assert requests.meant(resource, SHARED) is None
    assert requests.meant("aliyun.com/gpu", WHOLE) == names.GPU
    assert requests.meant("amd.com/gpu", WHOLE) is None
