"""GPUs that a DRA driver offers on a node that shares, and DeviceClasses that take requests for shares."""

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare_cli.doctor import checks
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import DoctorKube

NVIDIA = "gpu.nvidia.com"
V1, V1BETA1 = "/apis/resource.k8s.io/v1", "/apis/resource.k8s.io/v1beta1"
AWAY = (
    "keep the driver's kubelet plugin off nodes with the label gpushare, as in"
    " docs/gpu-operator.md#beside-nvidias-dra-driver; before that, drain the node"
)


def device(name: str, uuid: str = "", *, key: str = "uuid") -> JsonObject:
    return {"name": name, "attributes": {"type": {"string": "gpu"}, **({key: {"string": uuid}} if uuid else {})}}


def offer(api: DoctorKube, *devices: JsonObject, node: str = "node-a", driver: str = NVIDIA, group: str = V1) -> None:
    spec = {"driver": driver, "nodeName": node, "pool": {"name": node}, "devices": list(devices)}
    name = f"{node}-{driver}-{len(api.objects(f'{group}/resourceslices'))}"
    api.seed(f"{group}/resourceslices", {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})


def told(driver: str, count: int, devices: str) -> str:
    return (
        f"error dra-devices node/node-a | the DRA driver {driver} offers {count} devices there that are shared"
        f" ({devices}); nothing in Kubernetes keeps a ResourceClaim off a GPU on which pods hold shares | {AWAY}"
    )


def test_gpus_that_nvidias_dra_driver_offers_on_a_node_that_shares_are_named() -> None:
    api = world.healthy()
    offer(api, device("gpu-0", "GPU-0"), device("gpu-1", "GPU-1"))
    offer(api, device("gpu-1-mig-1g5gb-19-0"))  # its UUID is known when it is made
    assert world.lines(api) == [told(NVIDIA, 3, "gpu-0, gpu-1, gpu-1-mig-1g5gb-19-0")]


def test_any_drivers_devices_are_told_by_their_uuids() -> None:
    api = world.healthy()
    offer(api, device("a", "GPU-2", key="gpu.example.com/uuid"), device("b"), driver="gpu.example.com")
    assert world.lines(api) == [told("gpu.example.com", 1, "a")]


def test_before_the_inventory_is_there_every_gpu_of_nvidias_counts() -> None:
    api = world.healthy()
    world.edit(api, "Node", "node-a", lambda node: node["metadata"]["annotations"].clear())
    offer(api, device("gpu-0", "GPU-77"))
    assert told(NVIDIA, 1, "gpu-0") in world.lines(api)


@pytest.mark.parametrize(
    ("node", "driver", "found"),
    [
        ("node-z", NVIDIA, device("gpu-0", "GPU-0")),  # shares nothing
        ("node-a", NVIDIA, device("gpu-7", "GPU-77")),  # a GPU that is not shared
        ("node-a", "compute-domain.nvidia.com", device("channel-0")),
        ("", NVIDIA, device("gpu-0", "GPU-0")),  # of a network, not of a node
    ],
)
def test_other_devices_are_in_no_ones_way(node: str, driver: str, found: JsonObject) -> None:
    api = world.healthy()
    offer(api, found, node=node, driver=driver)
    assert world.lines(api) == []


def named(api: DoctorKube, resource: str) -> None:
    spec = {"extendedResourceName": resource} if resource else {}
    api.seed(f"{V1}/deviceclasses", {"kind": "DeviceClass", "metadata": {"name": NVIDIA}, "spec": spec})


@pytest.mark.parametrize("resource", [names.GPU_MEM, names.GPU_PERCENT, names.GPU_CORE])
def test_a_device_class_that_takes_requests_for_shares_is_an_error(resource: str) -> None:
    api = world.healthy()
    named(api, resource)
    assert world.lines(api) == [
        f"error device-classes deviceclass/{NVIDIA} | its extendedResourceName is {resource}: where a node offers none"
        " of it, kube-scheduler serves a request for 3 of it with 3 whole devices of this class (by default from 1.36"
        f" on) | kubectl patch deviceclass {NVIDIA} --type=json"
        """ -p='[{"op": "remove", "path": "/spec/extendedResourceName"}]'"""
    ]


@pytest.mark.parametrize("resource", ["", names.GPU, "nvidia.com/mig-1g.10gb"])
def test_one_for_other_resources_is_none(resource: str) -> None:
    """NVIDIA's driver has one for nvidia.com/gpu as its chart installs it."""
    api = world.healthy()
    named(api, resource)
    assert world.lines(api) == []


def test_one_for_whole_gpus_is_an_error_where_they_are_this_projects() -> None:
    api = world.with_whole_gpus("production", "v1.34.0", "1.30")
    named(api, names.GPU)
    assert [line.partition(" | ")[0] for line in world.lines(api)] == [f"error device-classes deviceclass/{NVIDIA}"]


def test_servers_that_serve_only_an_older_version_are_read_too() -> None:
    api = world.healthy()
    lacking = kube.NotFoundError("the server could not find the requested resource")
    api.fail_next(lambda call: call.path.startswith((f"{V1}/", "/apis/resource.k8s.io/v1beta2/")), lacking, times=9)
    offer(api, {"name": "gpu-0", "basic": device("", "GPU-0")}, group=V1BETA1)
    assert world.lines(api) == [told(NVIDIA, 1, "gpu-0")]


def test_servers_without_dynamic_resource_allocation_pass() -> None:
    api = world.healthy()
    lacking = kube.NotFoundError("the server could not find the requested resource")
    api.fail_next(lambda call: call.path.startswith("/apis/resource.k8s.io/"), lacking, times=9)
    found = world.diagnosis(api)
    assert list(world.formatted(found)) == []
    passed = {result.check.id for result in found.results if result.passed}
    assert {"dra-devices", "device-classes"} <= passed


def test_a_reader_without_the_right_is_told_which_checks_are_missing() -> None:
    api = world.healthy()
    api.fail_next(lambda call: call.path.startswith(V1), kube.ForbiddenError("no"), times=9)
    lines = world.lines(api)
    assert [line.partition(" | ")[0] for line in lines] == [
        f"error {checks.READ} resourceslices",
        f"error {checks.READ} deviceclasses",
    ]
