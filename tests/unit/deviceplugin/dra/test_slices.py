"""The slices that kube-scheduler sees, and when they are written."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from deviceplugin.causes import Cause, Code
from deviceplugin.dra import slices
from deviceplugin.dra.slices import SlicePublisher
from deviceplugin.inventory import PostedInventory
from deviceplugin.node import NodeFacts
from deviceplugin.source import RawGpu
from gpushare import names
from gpushare.identity import GpuUuid, NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.wire.claims import Claim, Share, device_name
from testing.builders import Json, make_gpu, make_inventory, make_mig
from testing.clock import ManualClock
from testing.deviceplugin.build import raw_gpu
from testing.deviceplugin.running import feed_with
from testing.fakes.kube import FakeKube

NODE: Final = NodeName("node-a")
PATH: Final = "/apis/resource.k8s.io/v1/resourceslices"


def with_claims(*gpus: Gpu) -> NodeInventory:
    return replace(make_inventory(), dra=gpus)


def devices(inventory: NodeInventory, prepared: Sequence[Claim], cordon: str, *raw: RawGpu) -> Sequence[Json]:
    posted = PostedInventory(version=1, inventory=inventory, raw={GpuUuid(each.uuid): each for each in raw})
    return slices.devices(posted, prepared, cordon)


def test_a_gpu_has_what_people_select_by_and_its_amounts() -> None:
    (found,) = devices(with_claims(replace(make_gpu(2, 80), numa=1)), (), "")
    policy = {"default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi"}}
    assert found == {
        "name": device_name(make_gpu(2).uuid),
        "allowMultipleAllocations": True,
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": make_gpu(2).uuid},
            "index": {"int": 2},
            "productName": {"string": "Tesla T4"},
            "limit": {"string": "advisory"},
            "numaNode": {"int": 1},
        },
        "capacity": {
            "memory": {"value": "80Gi", "requestPolicy": policy},
            "compute": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100"}}},
        },
    }
    told = (
        ("architecture", "Ampere"),
        ("driverVersion", "570.86.0"),
        ("resource.kubernetes.io/pcieRoot", "pci0000:00"),
    )
    (driver,) = devices(with_claims(make_gpu(2)), (), "", replace(raw_gpu(2), attributes=told))
    assert {key: driver["attributes"][key] for key, _ in told} == {
        "architecture": {"string": "Ampere"},
        "driverVersion": {"version": "570.86.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    }
    (instance,) = devices(with_claims(replace(make_mig(0, 1), memory_mib=4865)), (), "")
    assert (instance["attributes"]["type"], instance["attributes"]["profile"]) == (
        {"string": "mig"},
        {"string": "1g.5gb"},
    )
    assert instance["capacity"]["memory"]["value"] == "4865Mi"


def test_the_gpu_with_least_left_comes_first_and_one_that_changes_is_left_out() -> None:
    gpus = [make_gpu(i, 16) for i in range(4)]
    gpus[3] = replace(gpus[3], health=GpuHealth.UNHEALTHY, reason=Cause(Code.MODE, "it changes"))
    share = Share(request="gpu", device=device_name(gpus[1].uuid), memory=2**30)
    found = devices(with_claims(*gpus), [Claim(uid="u", namespace="t", name="c", shares=(share,))], "")
    assert [each["attributes"]["index"]["int"] for each in found] == [1, 0, 2]


@pytest.mark.parametrize(
    ("health", "cordon", "keys"),
    [
        (GpuHealth.HEALTHY, "", []),
        (GpuHealth.UNHEALTHY, "", ["unhealthy"]),
        (GpuHealth.UNHEALTHY, "0, 3", ["unhealthy", "cordoned"]),
        (GpuHealth.HEALTHY, make_gpu(0).uuid, ["cordoned"]),
        (GpuHealth.HEALTHY, "1", []),
    ],
)
def test_health_and_cordon_are_taints(health: GpuHealth, cordon: str, keys: list[str]) -> None:
    (found,) = devices(with_claims(make_gpu(0, health=health)), (), cordon)
    taints = [{"key": f"gpu.gpushare.dev/{key}", "effect": "NoSchedule"} for key in keys]
    assert found.get("taints", []) == taints


def test_more_devices_than_one_slice_holds_are_a_pool_of_several() -> None:
    found = slices.specs(NODE, [{"name": f"gpu-{i}"} for i in range(70)], 3)
    assert [len(spec["devices"]) for spec in found] == [64, 6]
    assert {(spec["pool"]["generation"], spec["pool"]["resourceSliceCount"]) for spec in found} == {(3, 2)}
    assert len(slices.slice_name(NodeName("n" * 253), 0)) < 253
    assert slices.slice_name(NodeName("n" * 253), 0) != slices.slice_name(NodeName("m" * 253), 0)


@dataclass
class World:
    kube: FakeKube = field(default_factory=FakeKube)
    gpus: list[Gpu] = field(default_factory=lambda: [make_gpu(0), make_gpu(1)])
    publisher: SlicePublisher = field(init=False)

    def __post_init__(self) -> None:
        self.feed = feed_with(with_claims(*self.gpus))
        self.publisher = SlicePublisher(
            api=self.kube,
            clock=ManualClock(),
            node=NODE,
            feed=self.feed,
            facts=lambda: NodeFacts(uid="node-uid"),
            prepared=dict,
        )

    def publish(self, *gpus: Gpu) -> list[Json]:
        """One round of the loop with these GPUs; the slices after it."""
        stop = threading.Event()
        self.feed.post(with_claims(*gpus))
        self.publisher.clock = ManualClock(on_wait=lambda _at: stop.set())
        self.publisher.run(stop)
        return self.kube.objects(PATH)

    def writes(self) -> int:
        return sum(self.kube.count(verb, "resourceslices") for verb in ("create", "update", "delete")) - 1  # the probe


def test_slices_are_written_when_something_changes_and_not_else() -> None:
    world = World()
    (first,) = world.publish(make_gpu(0), make_gpu(1))
    assert first["metadata"]["ownerReferences"][0] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node-a",
        "uid": "node-uid",
        "controller": True,
    }
    assert (first["spec"]["driver"], first["spec"]["nodeName"]) == (names.DRA_DRIVER, "node-a")
    world.publish(make_gpu(0), make_gpu(1))
    assert world.writes() == 1
    (second,) = world.publish(make_gpu(0))
    assert (world.writes(), second["spec"]["pool"], len(second["spec"]["devices"])) == (2, first["spec"]["pool"], 1)
    world.kube.vanish(f"{PATH}/{second['metadata']['name']}")  # a kubelet that starts removes all
    assert world.publish(make_gpu(0))
    assert world.publish() == []


def test_another_number_of_slices_is_another_generation() -> None:
    world = World()
    assert [each["spec"]["pool"]["generation"] for each in world.publish(*(make_gpu(i) for i in range(70)))] == [1, 1]
    swapped = [make_gpu(69 - i, 16 + i) for i in range(70)]  # others in each slice
    assert [each["spec"]["pool"]["generation"] for each in world.publish(*swapped)] == [2, 2]
    (left,) = world.publish(make_gpu(0))
    assert (left["spec"]["pool"]["generation"], left["spec"]["pool"]["resourceSliceCount"]) == (3, 1)


def test_when_a_taint_came_is_the_servers_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    faulty = make_gpu(0, health=GpuHealth.UNHEALTHY)
    (written,) = world.publish(faulty)
    (device,) = written["spec"]["devices"]
    path = f"{PATH}/{written['metadata']['name']}"
    world.kube.edit(
        path, lambda found: found["spec"]["devices"][0]["taints"][0].update(timeAdded="2026-01-01T00:00:00Z")
    )
    before = world.writes()
    world.publish(faulty)
    assert (world.writes(), device["taints"][0]["effect"]) == (before, "NoSchedule")
    world.publish(make_gpu(0))
    assert world.writes() == before + 1


def test_a_server_without_shares_is_told_of_no_gpu_until_it_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops the field, and would give each GPU to the first claim."""
    world = World()
    create = world.kube.create

    def without(path: str, body: Json, **options: Any) -> Json:
        written = create(path, body, **options)
        for device in written["spec"]["devices"]:
            del device["allowMultipleAllocations"]
        return written

    with monkeypatch.context() as patched:
        patched.setattr(world.kube, "create", without)
        assert world.publish(make_gpu(0)) == []
        assert "DRAConsumableCapacity" in world.publisher.problem
    assert (len(world.publish(make_gpu(0))), world.publisher.problem) == (1, "")


def test_a_server_without_the_api_is_said_to_lack_it_until_it_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    def missing(*_: Any, **__: Any) -> Any:
        raise kube.NotFoundError("the server could not find the requested resource")

    with monkeypatch.context() as patched:
        patched.setattr(world.kube, "list_page", missing)
        world.publish(make_gpu(0))
        assert "it needs Kubernetes 1.36" in world.publisher.problem
    assert (len(world.publish(make_gpu(0))), world.publisher.problem) == (1, "")


def test_nothing_is_written_while_it_is_not_known_what_is_prepared() -> None:
    world = World()
    world.publisher.prepared = lambda: None
    assert (world.publish(make_gpu(0)), world.publisher.done) == ([], 0)
    world.publisher.prepared = dict
    assert len(world.publish(make_gpu(0))) == 1
    assert world.feed.latest
    assert world.publisher.done == world.feed.latest.version


def test_a_server_that_refuses_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.kube.fail_next(lambda call: call.verb == "create", kube.ForbiddenError("no"))
    assert world.publish(make_gpu(0)) == []
    assert "slices not published" in caplog.messages
    assert len(world.publish(make_gpu(0))) == 1
