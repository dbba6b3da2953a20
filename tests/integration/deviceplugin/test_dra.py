"""The driver of ResourceClaims over its real sockets, as a kubelet calls it, with its checkpoint and its CDI specs."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from deviceplugin.api import dra_pb2 as api, drahealth_pb2 as health_api, registration_pb2 as registration_api
from deviceplugin.cdi import ContainerEdits
from deviceplugin.dra.driver import ClaimDriver, ClaimRef, held_by_claims
from deviceplugin.dra.server import DraServer
from deviceplugin.dra.store import ClaimError, ClaimStore
from deviceplugin.inventory import InventoryFeed
from deviceplugin.limits.node import LimitedStart, LimitError
from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import GpuHealth, HandOver, NodeInventory
from gpushare.runtime.clock import SystemClock
from gpushare.wire.claims import Claim, Share, device_name
from testing.asking import eventually
from testing.builders import Json, make_gpu, make_inventory, make_pod
from testing.deviceplugin.build import handing_over
from testing.deviceplugin.running import in_threads
from testing.fakes.kube import FakeKube

NODE: Final = NodeName("node-a")
INVENTORY: Final[NodeInventory] = replace(
    make_inventory(), dra=(make_gpu(0, 16), make_gpu(1, 16)), hand_over=HandOver.CDI
)
DEVICES: Final = [device_name(gpu.uuid) for gpu in INVENTORY.dra]
CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/t/resourceclaims"


def claim(name: str, *shares: tuple[str, int, str], gib: int = 3) -> Json:
    """Shares: request, number of the GPU, and the share's ID."""
    results = [
        {
            "driver": names.DRA_DRIVER,
            "pool": NODE,
            "device": DEVICES[gpu],
            "request": request,
            "shareID": share,
            "consumedCapacity": {"memory": f"{gib}Gi", "compute": "25"},
        }
        for request, gpu, share in shares
    ]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": f"{name}-pod"}],
    }
    return {"metadata": {"namespace": "t", "name": name, "uid": f"{name}-uid"}, "status": status}


@dataclass
class World:
    directory: Path
    kube: FakeKube = field(default_factory=FakeKube)
    feed: InventoryFeed = field(default_factory=InventoryFeed)
    limited: list[LimitedStart] = field(default_factory=list)
    pods: dict[str, Json | None] = field(default_factory=dict)
    fails: str = ""
    meanwhile: Callable[[], object] = lambda: None
    registered: int = 0

    def __post_init__(self) -> None:
        self.specs.mkdir()
        self.feed.post(INVENTORY)
        self.start()

    @property
    def specs(self) -> Path:
        return self.directory / "cdi"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "plugins" / names.DRA_DRIVER / "checkpoint.json"

    def start(self) -> None:
        """A new process of the plugin."""
        self.driver = ClaimDriver(
            node=NODE,
            api=self.kube,
            clock=SystemClock(),
            feed=self.feed,
            hand_over=handing_over(HandOver.CDI, self.specs),
            limit=self._limit,
            store=ClaimStore(node=NODE, api=self.kube, checkpoint=self.checkpoint),
            find_pod=lambda uid: self.pods.get(uid, {}),
        )
        self.driver.restore()

    def known(self) -> dict[str, Claim]:
        return dict(self.driver.store.prepared or {})

    def _limit(self, start: LimitedStart) -> ContainerEdits:
        if self.fails:
            raise LimitError(self.fails)
        self.limited.append(start)
        self.meanwhile()
        return ContainerEdits(env=(("LIMIT", str(start.grant.memory_mib)),))

    @contextmanager
    def running(self) -> Iterator[DraServer]:
        server = DraServer(kubelet=self.directory, node=NODE, driver=self.driver, feed=self.feed, clock=SystemClock())
        server.on_registered = self._registered
        with in_threads(server.run, wake=self.feed.wake):
            eventually("sockets", lambda: server.socket.exists() and server.registration.exists(), 60)
            yield server

    def _registered(self) -> None:
        self.registered += 1

    def seed(self, *found: Json) -> None:
        for each in found:
            self.kube.seed(f"{CLAIMS}/{each['metadata']['name']}", each)

    def prepared(self, server: DraServer, *asked: str) -> dict[str, Any]:
        """Devices of each claim, or the error."""
        request = api.NodePrepareResourcesRequest(claims=[_asked(name) for name in asked])
        answer = call(server.socket, "NodePrepareResources", request, api.NodePrepareResourcesResponse)
        return {uid.removesuffix("-uid"): found.error or list(found.devices) for uid, found in answer.claims.items()}

    def unprepared(self, server: DraServer, name: str) -> str:
        request = api.NodeUnprepareResourcesRequest(claims=[_asked(name)])
        answer = call(server.socket, "NodeUnprepareResources", request, api.NodeUnprepareResourcesResponse)
        return str(answer.claims[f"{name}-uid"].error)

    def edits(self, cdi_device: str) -> Json:
        """Of a CDI device, which exactly one file makes."""
        kind, _, name = cdi_device.partition("=")
        documents = [json.loads(path.read_text()) for path in self.specs.iterdir()]
        [found] = [each for each in documents if each["kind"] == kind and each["devices"][0]["name"] == name]
        return dict(found["devices"][0]["containerEdits"])


def _asked(name: str) -> Any:
    return api.Claim(namespace="t", name=name, uid=f"{name}-uid")


def call(socket: Path, method: str, request: Any, answer: Any) -> Any:
    service = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    if "Node" not in method:
        service = "pluginregistration.Registration"
    with grpc.insecure_channel(f"unix:{socket}", options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        ask = channel.unary_unary(f"/{service}/{method}", type(request).SerializeToString, answer.FromString)
        return ask(request, timeout=30)


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="dra-") as directory:  # the path of a socket has at most 107 characters
        yield World(Path(directory))


def test_a_kubelet_finds_the_driver_and_every_request_of_a_claim_is_a_cdi_device(world: World) -> None:
    world.seed(claim("c", ("a", 0, "s0"), ("a", 1, "s1"), ("b", 0, "s2")))
    with world.running() as server:
        info = call(server.registration, "GetInfo", registration_api.InfoRequest(), registration_api.PluginInfo)
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", names.DRA_DRIVER, str(server.socket))
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        for status in (
            registration_api.RegistrationStatus(plugin_registered=True),
            registration_api.RegistrationStatus(),
        ):
            call(server.registration, "NotifyRegistrationStatus", status, registration_api.RegistrationStatusResponse)
        assert world.registered == 1
        found = world.prepared(server, "c")["c"]
        told = [(list(each.request_names), each.pool_name, each.device_name, each.share_id) for each in found]
        assert told == [
            (["a"], NODE, DEVICES[0], "s0"),
            (["a"], NODE, DEVICES[1], "s1"),
            (["b"], NODE, DEVICES[0], "s2"),
        ]
        (of_a,), none, (of_b,) = (list(each.cdi_device_ids) for each in found)
        assert none == []
        env = [variable.partition("=")[::2] for variable in world.edits(of_a)["env"]]
        assert dict(env) == {
            "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
            "GPUSHARE_VISIBLE_DEVICES": "GPU-0,GPU-1",
            "GPUSHARE_MEMORY_MIB": "3072",
            "LIMIT": "3072",
        }
        assert [node["path"] for node in world.edits(of_b)["deviceNodes"]] == ["/dev/nvidia0"]
        start = world.limited[0]
        assert (str(start.pod), start.pod.uid, start.grant.compute_percent) == ("t/c", "c-pod", 25)
        assert {gpu.uuid for gpu in start.gpus} == {"GPU-0", "GPU-1"}
        assert world.prepared(server, "c") == {"c": found}  # the same again
        assert world.unprepared(server, "c") == world.unprepared(server, "c") == ""
    assert list(world.specs.iterdir()) == []
    assert world.known() == {}


def test_a_claim_that_does_not_fit_is_refused_until_the_other_has_ended(world: World) -> None:
    world.seed(claim("a", ("r", 0, "1"), gib=10), claim("b", ("r", 0, "2"), gib=10))
    with world.running() as server:
        found = world.prepared(server, "a", "b")
        assert len(found["a"]) == 1
        assert found["b"].startswith(
            "GPU 0 (Tesla T4, 16 GiB) has 6 GiB left, and 10 GiB are claimed; it is held by t/a"
        )
        world.kube.vanish(f"{CLAIMS}/a")  # by force: its containers may run on
        assert "held by t/a" in world.prepared(server, "b")["b"]
        world.unprepared(server, "a")
        assert len(world.prepared(server, "b")["b"]) == 1


def test_a_new_process_knows_what_is_prepared_and_writes_the_specs_again(world: World) -> None:
    world.seed(claim("a", ("r", 0, "1"), gib=10), claim("b", ("r", 1, "2")))
    with world.running() as server:
        [device] = [each.cdi_device_ids[0] for each in world.prepared(server, "a")["a"]]
    before = world.edits(device)
    for path in world.specs.iterdir():
        path.unlink()
    world.start()
    assert world.edits(device) == before
    assert {*world.known()} == {"a-uid"}
    assert set(world.driver.holders(INVENTORY) or ()) == {"GPU-0", "GPU-1"}
    assert set(world.driver.gpus(INVENTORY)) == {"GPU-0"}


@pytest.mark.parametrize("lost", ["{", None])
def test_a_lost_checkpoint_is_made_again_of_what_is_allocated_until_that_is_not(world: World, lost: str | None) -> None:
    world.seed(claim("a", ("r", 0, "1"), gib=10), claim("ghost", ("r", 0, "2")), claim("empty"))
    with world.running() as server:
        world.prepared(server, "a")
    world.checkpoint.unlink()
    if lost:
        world.checkpoint.write_text(lost)
    world.start()
    assert {uid: each.assumed for uid, each in world.known().items()} == {"a-uid": True, "ghost-uid": True}
    world.seed(claim("b", ("r", 0, "3"), gib=4))
    with world.running() as server:
        assert "t/a (10 GiB), t/ghost (3 GiB)" in world.prepared(server, "b")["b"]
        world.prepared(server, "a")
        world.kube.vanish(f"{CLAIMS}/a")  # by force: it may run on
        world.kube.vanish(f"{CLAIMS}/ghost")
        world.driver.restore()
        assert {uid: each.assumed for uid, each in world.known().items()} == {"a-uid": False}
        assert len(world.prepared(server, "b")["b"]) == 1
    world.start()
    assert {*world.known()} == {"a-uid", "b-uid"}


def test_specs_follow_the_gpus_and_name_none_that_is_gone(world: World) -> None:
    world.seed(claim("c", ("a", 0, "s0"), ("a", 1, "s1")))
    with world.running() as server:
        [device] = [each for share in world.prepared(server, "c")["c"] for each in share.cdi_device_ids]
    before = world.edits(device)
    world.feed.post(replace(INVENTORY, dra=INVENTORY.dra[:1]))
    world.driver.restore()
    assert world.edits(device) == before
    for path in world.specs.iterdir():
        path.write_text("{}")
    world.feed.post(INVENTORY)  # perhaps with other numbers
    world.driver.restore()
    assert world.edits(device) == before


def test_a_claim_that_came_to_another_gpu_waits_for_what_it_had(world: World) -> None:
    world.seed(claim("c", ("r", 0, "1")))
    with world.running() as server:
        world.prepared(server, "c")
        world.kube.edit(f"{CLAIMS}/c", lambda found: found["status"].update(claim("c", ("r", 1, "2"))["status"]))
        assert "what it was allocated before is in use here" in world.prepared(server, "c")["c"]
        world.unprepared(server, "c")
        assert [each.device_name for each in world.prepared(server, "c")["c"]] == [DEVICES[1]]


def test_a_kubelet_that_no_longer_waits_gets_nothing(world: World) -> None:
    """It has told that nothing runs before this was done, and will not tell it again."""
    world.seed(claim("c", ("r", 0, "1")))
    ref = ClaimRef("t", "c", "c-uid")
    with pytest.raises(ClaimError, match="no longer waits"):
        world.driver.prepare(ref, lambda: False)
    world.meanwhile = lambda: world.driver.unprepare("c-uid")
    with pytest.raises(ClaimError, match="no longer waits"):
        world.driver.prepare(ref)
    assert (world.known(), [*world.specs.iterdir()]) == ({}, [])


def test_without_the_api_server_what_is_prepared_is_answered_and_nothing_else(world: World) -> None:
    world.seed(claim("a", ("r", 0, "1")), claim("b", ("r", 0, "2")))
    with world.running() as server:
        before = world.prepared(server, "a")
        world.kube.fail_next(lambda call: call.verb == "get", kube.UnreachableError("it is away"), times=2)
        assert world.prepared(server, "a") == before
        assert "cannot be read (it is away); the kubelet will try again" in world.prepared(server, "b")["b"]
        world.kube.fail_next(lambda call: call.verb == "list", kube.UnreachableError("it is away"))
        assert world.driver.holders(INVENTORY) is None
    world.checkpoint.write_text("{")
    world.kube.fail_next(lambda call: call.verb == "list", kube.UnreachableError("it is away"), times=2)
    world.start()
    assert world.driver.store.prepared is None
    with world.running() as server:
        assert "checkpoint.json cannot be read" in world.prepared(server, "b")["b"]
        assert len(world.prepared(server, "b")["b"]) == 1


def test_a_full_disk_prepares_nothing_and_lets_pods_end(world: World) -> None:
    world.seed(claim("a", ("r", 0, "1")), claim("b", ("r", 0, "1")))
    temporary = world.checkpoint.with_suffix(".tmp")
    with world.running() as server:
        world.prepared(server, "a")
        temporary.mkdir()
        assert "checkpoint.json cannot be written" in world.prepared(server, "b")["b"]
        assert (world.unprepared(server, "a"), world.known(), [*world.specs.iterdir()]) == ("", {}, [])
        assert "a-uid" in world.checkpoint.read_text()
        temporary.rmdir()
        world.driver.restore()
        assert "a-uid" not in world.checkpoint.read_text()


def test_mps_is_told_of_what_claims_have_too() -> None:
    held = Claim(uid="u", namespace="t", name="c", shares=(Share(request="r", device=DEVICES[0], memory=10 << 30),))
    gone = replace(held, uid="v", shares=(Share(request="r", device="gpu-gone", memory=1 << 30),))
    for inventory in (INVENTORY, replace(INVENTORY, gpus=INVENTORY.dra, dra=())):
        [pod] = held_by_claims({"u": held, "v": gone}, inventory)
        [grant] = pod.allocation.grants
        assert (grant.gpus, grant.memory_mib) == (("GPU-0",), 10240)


def test_a_claim_that_was_replaced_or_is_not_allocated_is_refused(world: World) -> None:
    world.seed(claim("old", ("r", 0, "1")), claim("empty"))
    world.kube.edit(f"{CLAIMS}/old", lambda found: found["metadata"].update(uid="another"))
    with world.running() as server:
        assert "was replaced" in world.prepared(server, "old")["old"]
        assert "claim t/empty: it is not allocated" in world.prepared(server, "empty")["empty"]
        world.driver.is_known = lambda: False
        world.seed(claim("c", ("r", 0, "1")))
        assert "are not known yet" in world.prepared(server, "c")["c"]


def test_what_cannot_be_limited_is_not_prepared_and_leaves_nothing(world: World) -> None:
    world.seed(claim("a", ("r", 0, "1"), gib=16), claim("b", ("r", 0, "1"), gib=16))
    world.fails = "the daemon is away"
    with world.running() as server:
        assert world.prepared(server, "a") == {"a": "the daemon is away"}
        assert ([*world.specs.iterdir()], world.known()) == ([], {})
        world.fails = ""
        assert len(world.prepared(server, "b")["b"]) == 1


def test_a_pod_can_demand_an_enforced_limit_and_is_waited_for_to_know(world: World) -> None:
    world.seed(claim("a", ("r", 0, "1")), claim("b", ("r", 0, "1")))
    world.pods["a-pod"] = None
    with world.running() as server:
        assert world.prepared(server, "a")["a"] == "pod t/a is not known yet; the kubelet will try again"
        world.pods["a-pod"] = make_pod(annotations={names.ANNOTATION_LIMIT: "enforced", names.WATCHDOG: "kill"})
        assert len(world.prepared(server, "a", "b")["b"]) == 1
        assert [start.annotations for start in world.limited] == [{names.ANNOTATION_LIMIT: "enforced"}, {}]
        world.pods["a-pod"] = None
        assert len(world.prepared(server, "a")["a"]) == 1, "what is prepared is answered"
        world.unprepared(server, "a")
        world.pods["a-pod"] = make_pod(annotations={names.ANNOTATION_LIMIT: "enforced"})
        world.fails = "limits are advisory only"
        assert world.prepared(server, "a")["a"].endswith(
            "only; kube-scheduler does not see the annotation: select GPUs by their attribute limit"
        )


def test_a_demand_also_counts_where_a_claim_is_only_assumed_to_be_prepared(world: World) -> None:
    world.seed(claim("a", ("r", 0, "1")))
    world.checkpoint.unlink()
    world.start()
    with world.running() as server:
        world.pods["a-pod"] = None
        assert "is not known yet" in world.prepared(server, "a")["a"]
        world.pods["a-pod"] = make_pod(annotations={names.ANNOTATION_LIMIT: "enforced"})
        for _ in range(2):  # the plugin may have ended before the limit was in place
            world.limited.clear()
            assert len(world.prepared(server, "a")["a"]) == 1
            assert [start.annotations for start in world.limited] == [{names.ANNOTATION_LIMIT: "enforced"}]


def test_sockets_that_others_remove_are_made_again(world: World) -> None:
    with world.running() as server:
        server.registration.unlink()
        eventually("another socket", server.registration.exists, 60)
        call(server.registration, "GetInfo", registration_api.InfoRequest(), registration_api.PluginInfo)
    assert not server.registration.exists()


def test_the_kubelet_is_told_the_health_of_every_gpu(world: World) -> None:
    with world.running() as server, grpc.insecure_channel(f"unix:{server.socket}") as channel:
        watch = channel.unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            health_api.NodeWatchResourcesRequest.SerializeToString,
            health_api.NodeWatchResourcesResponse.FromString,
        )(health_api.NodeWatchResourcesRequest(), timeout=60)
        first = next(watch)
        assert [(each.device.device_name, each.health, each.message) for each in first.devices] == [
            (device, health_api.HEALTHY, "") for device in DEVICES
        ]
        faulty = replace(INVENTORY.dra[0], health=GpuHealth.UNHEALTHY, reason="Xid 79")
        world.feed.post(replace(INVENTORY, dra=(faulty, INVENTORY.dra[1])))
        assert [(each.health, each.message) for each in next(watch).devices] == [
            (health_api.UNHEALTHY, "Xid 79"),
            (health_api.HEALTHY, ""),
        ]
        watch.cancel()


def test_several_claims_of_one_pod_are_limited_together(world: World) -> None:
    pod = claim("first")["status"]["reservedFor"]
    for name, gib in (("first", 3), ("second", 2)):
        made = claim(name, ("gpu", 0, name), gib=gib)
        made["status"]["reservedFor"] = pod
        world.kube.seed(CLAIMS, made)
        world.driver.prepare(ClaimRef("t", name, f"{name}-uid"))
    world.kube.seed(CLAIMS, claim("other", ("gpu", 0, "x")))
    world.driver.prepare(ClaimRef("t", "other", "other-uid"))
    assert [[grant.memory_mib for grant in start.of_pod] for start in world.limited] == [[3072], [2048, 3072], [3072]]


def test_a_claim_is_prepared_also_where_the_gpu_of_its_pods_other_claim_is_gone(world: World) -> None:
    pod = claim("first")["status"]["reservedFor"]
    for name, gpu in (("first", 0), ("second", 1)):
        made = claim(name, ("gpu", gpu, name))
        made["status"]["reservedFor"] = pod
        world.kube.seed(CLAIMS, made)
    world.driver.prepare(ClaimRef("t", "first", "first-uid"))
    world.feed.post(replace(INVENTORY, dra=INVENTORY.dra[1:]))
    world.driver.prepare(ClaimRef("t", "second", "second-uid"))
    assert [grant.memory_mib for grant in world.limited[-1].of_pod] == [3072]
