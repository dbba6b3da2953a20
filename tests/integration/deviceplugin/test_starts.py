"""A kubelet admits pods and starts their containers, over real sockets; what a container runtime would then inject."""

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson
import pytest

from deviceplugin import pods
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.handover.devices import DeviceHandOver
from deviceplugin.identify import ListerError, PodResources
from deviceplugin.node import Refusals
from deviceplugin.pods import PodCache
from deviceplugin.prestart import LateStarts, StartCheck
from deviceplugin.resources import MEMORY, PERCENT, WHOLE, Resource
from gpushare.identity import PodUid
from gpushare.kube.api import PatchKind
from gpushare.kube.watch import Reflector
from gpushare.model.gpu import HandOver
from gpushare.model.request import ContainerKind
from gpushare.runtime.clock import SystemClock
from gpushare.units import ResourceConfig
from testing.builders import Json, make_container, make_grant, make_inventory
from testing.deviceplugin.build import NODE, bound_pod, handing_over, ids_of, percent_container
from testing.deviceplugin.running import EVERYTHING, feed_with, in_threads, running_all
from testing.fakes.kube import FakeKube
from testing.fakes.kubelet import FakeKubelet, FakePodResources, Plugin, wait_until


@dataclass(kw_only=True)
class Node:
    plugins: Mapping[str, Plugin]  # by resource
    api: FakeKube
    cache: PodCache
    resources: FakePodResources
    checkpoint: Path
    entries: list[Json] = field(default_factory=list)

    @property
    def plugin(self) -> Plugin:
        return self.plugins[MEMORY.name]

    def bind(self, pod: Json) -> None:
        self.api.seed(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", pod)
        wait_until(lambda: self.cache.by_uid(pod["metadata"]["uid"]))

    def admit(self, name: str, *containers: tuple[str, tuple[str, ...]], resource: Resource = MEMORY) -> None:
        """The kubelet admits a pod: it asks for each container, and notes the answers. Args: containers: device IDs."""
        for container, ids in containers:
            self.resources.hold(name, *ids, container=container, resource=resource.name)
            (answer,) = self.plugins[resource.name].answers(ids)
            self.record((f"uid-{name}", container, ids), resource=resource, response=answer.SerializeToString())

    def record(
        self, *entries: tuple[str, str, tuple[str, ...]], resource: Resource = MEMORY, response: bytes = b""
    ) -> None:
        """Add to the kubelet's checkpoint. Args: UID, container, device IDs."""
        self.entries += [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource.name,
                "DeviceIDs": {"-1": ids},
                "AllocResp": base64.b64encode(response).decode(),
            }
            for uid, container, ids in entries
        ]
        document = {"Data": {"PodDeviceEntries": self.entries, "RegisteredDevices": {}}, "Checksum": 1}
        self.checkpoint.write_bytes(orjson.dumps(document))

    def hold(self, name: str, ids: tuple[str, ...], resource: Resource = MEMORY) -> None:
        """The kubelet gave these devices to the container main of a pod."""
        self.resources.hold(name, *ids, resource=resource.name)
        self.record((f"uid-{name}", "main", ids), resource=resource)

    def start(self, ids: tuple[str, ...], resource: Resource = MEMORY) -> str:
        """PreStartContainer; the reason of a refusal, or nothing."""
        return self.plugins[resource.name].start(*ids)

    @property
    def events(self) -> list[Json]:
        return self.api.objects("/api/v1/namespaces/default/events")


@pytest.fixture
def hand_over(tmp_path: Path) -> DeviceHandOver:
    return handing_over(HandOver.CDI, tmp_path)


@pytest.fixture
def node(kubelet: FakeKubelet, pod_resources: FakePodResources, hand_over: DeviceHandOver) -> Iterator[Node]:
    """A node with two GPUs of 15 GiB and a plugin that has registered all resources: all parts but the process."""
    clock = SystemClock()
    api, cache = FakeKube(), PodCache(clock)
    start_check = StartCheck(
        node=NODE,
        resource_config=ResourceConfig(whole_gpus=True),
        feed=feed_with(make_inventory(15, 15)),
        cache=cache,
        api=api,
        lister=PodResources(socket=pod_resources.socket, clock=clock).list,
        checkpoint=kubelet.directory / "kubelet_internal_checkpoint",
        refusals=Refusals(api=api, clock=clock),
        late=LateStarts(cache=cache, clock=clock),
        hand_over=hand_over,
    )
    params = {"fieldSelector": f"spec.nodeName={NODE}"}
    reflector = Reflector(api=api, path=pods.PATH, sink=cache, clock=clock, params=params)
    parts = {"feed": start_check.feed, "start_check": start_check.check, "answer": hand_over.answer}
    with in_threads(reflector.run, wake=api.close), running_all(*EVERYTHING, directory=kubelet.directory, **parts):
        plugins = {resource.name: kubelet.wait_for_devices(1, resource.name) for resource in EVERYTHING}
        made = Node(plugins=plugins, api=api, cache=cache, resources=pod_resources, checkpoint=start_check.checkpoint)
        made.record()
        yield made


THREE, OTHERS = ("g000", "g001", "g002"), ("g003", "g004", "g005")


def test_a_container_of_a_bound_pod_starts_without_a_request_to_the_api_server(node: Node) -> None:
    part = replace(make_grant(0), compute_percent=20)
    node.bind(bound_pod(make_grant(0), name="memory"))
    node.bind(bound_pod(part, name="percent", containers=[percent_container(20)]))
    node.bind(bound_pod(replace(make_grant(1, gib=15), compute_percent=100, whole=True), name="whole"))
    held: dict[Resource, tuple[str, ...]] = {}
    for name, count, resource in (("memory", 3, MEMORY), ("percent", 20, PERCENT), ("whole", 1, WHOLE)):
        held[resource] = tuple(sorted(ids_of(count, resource)))
        node.hold(name, held[resource], resource)
    node.resources.hold("other", *held[PERCENT], resource="example.com/fpga")
    before = len(node.api.calls)
    assert [node.start(ids, resource) for resource, ids in held.items()] == [""] * 3
    assert len(node.api.calls) == before
    assert node.start(held[PERCENT], MEMORY) == (
        "FAILED_PRECONDITION: neither PodResources nor kubelet_internal_checkpoint knows a container with exactly the"
        " devices p000, p001, p002 and 17 more; the kubelet will try again"
    )
    assert node.events == []


def test_a_pod_that_ends_does_not_hide_its_successor_of_the_same_name(node: Node, hand_over: DeviceHandOver) -> None:
    """As of a StatefulSet, where the checkpoint cannot be read, so that only the list can tell them apart."""
    hand_over.choice = lambda: ENVVAR
    node.bind(bound_pod(make_grant(0), name="a-0"))
    node.resources.hold("a-0", *OTHERS)
    node.resources.ending = [("a-0", THREE)]
    assert node.plugin.start(*OTHERS) == ""


def test_a_refusal_reaches_the_kubelet_and_once_the_author(node: Node) -> None:
    plain = [make_container("main", 3)]
    node.bind(bound_pod(make_grant(0), name="a", annotations={"gpushare.dev/allocation": None}, containers=plain))
    node.hold("a", THREE)
    answers = {node.plugin.start(*THREE) for _ in range(5)}
    (event,) = node.events
    assert answers == {f"FAILED_PRECONDITION: {event['message']}"}
    assert "delete the pod and create it again without spec.nodeName" in event["message"]
    assert (event["type"], event["reason"], event["involvedObject"]["uid"]) == ("Warning", "GpuRefused", "uid-a")
    assert event["source"] == {"component": "gpushare-device-plugin"}


def test_without_pod_resources_nothing_starts_and_the_kubelet_is_told_to_try_again(node: Node) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.record(("uid-a", "main", THREE))
    node.resources.stop()
    assert node.plugin.start(*THREE).startswith(
        f"UNAVAILABLE: the kubelet's PodResources API at {node.resources.socket} does not answer (UNAVAILABLE: "
    )


def test_a_burst_of_starts_shares_few_lists_and_survives_the_kubelets_rate_limit(node: Node) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.hold("a", THREE)
    node.resources.delay_s, node.resources.crowded = 0.2, 2
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(node.plugin.start(*THREE))) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert node.plugin.allocate(["g009"]) == [{"NVIDIA_VISIBLE_DEVICES": "void"}]
    for thread in threads:
        thread.join()
    assert answers == [""] * 20
    assert node.resources.calls < 10


def test_a_kubelet_that_is_slow_to_answer_holds_no_one_longer_than_he_wants(pod_resources: FakePodResources) -> None:
    pod_resources.answers.clear()
    pod_resources.hold("a", *THREE)
    lister = PodResources(socket=pod_resources.socket, clock=SystemClock())
    found: list[int] = []
    patient = threading.Thread(target=lambda: found.append(len(lister.list(MEMORY, 300.0))))
    patient.start()
    wait_until(lambda: pod_resources.calls)
    with pytest.raises(ListerError) as caught:
        lister.list(MEMORY, 0.05)
    assert str(caught.value) == (
        f"the kubelet's PodResources API at {pod_resources.socket} does not answer (earlier calls still wait for an"
        " answer); the kubelet will try again"
    )
    pod_resources.answers.set()
    patient.join()
    assert found == [1]
    pod_resources.answers.clear()
    with pytest.raises(ListerError, match="DEADLINE_EXCEEDED"):
        lister.list(MEMORY, 0.05)
    pod_resources.answers.set()


ONE_PERCENT = ("p000",)


def minors(directory: Path) -> list[list[int]]:
    """The GPUs that each device has."""
    specs = [json.loads(file.read_text()) for file in sorted(directory.glob("*.json"))]
    devices = [device for spec in specs for device in spec["devices"]]
    return [[node["minor"] for node in device["containerEdits"]["deviceNodes"]] for device in devices]


def test_of_equal_pods_each_has_the_gpu_of_its_binding(node: Node, tmp_path: Path) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.bind(bound_pod(make_grant(1), name="b"))
    node.admit("b", ("main", THREE))
    node.admit("a", ("main", OTHERS))
    assert minors(tmp_path) == []
    assert node.plugin.start(*OTHERS) == ""
    assert minors(tmp_path) == [[0]]
    assert node.plugin.start(*THREE) == ""
    (a, b) = sorted(file.name for file in tmp_path.iterdir())
    assert (a.split("_")[1], b.split("_")[1]) == ("uid-a", "uid-b")
    assert minors(tmp_path) == [[0], [1]]


def test_an_init_container_and_the_container_that_takes_its_devices_over(node: Node, tmp_path: Path) -> None:
    init = make_grant(0, container="prepare", kind=ContainerKind.INIT)
    node.bind(bound_pod(init, make_grant(1), name="a"))
    node.admit("a", ("prepare", THREE), ("main", THREE))
    names = [node.entries[i]["AllocResp"] for i in (0, 1)]
    assert names[0] != names[1]
    assert node.plugin.start(*THREE) == ""
    assert sorted(minors(tmp_path)) == [[0], [1]]


def started(node: Node) -> None:
    """A pod that was bound, admitted and started with THREE."""
    node.bind(bound_pod(make_grant(0), name="a"))
    node.admit("a", ("main", THREE))
    assert node.plugin.start(*THREE) == ""


def test_a_start_that_is_refused_leaves_no_device(node: Node, tmp_path: Path) -> None:
    started(node)
    changed = {"metadata": {"annotations": {"devices.gpushare.dev/main": "GPU-1"}}}
    node.api.patch("/api/v1/namespaces/default/pods/a", changed, kind=PatchKind.MERGE, timeout_s=1.0)
    wait_until(lambda: "devices.gpushare.dev/main says 'GPU-1'" in node.plugin.start(*THREE))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("is_known", "why"), [(True, "which is a share of another kind"), (False, "the API server knows no pod default/a")]
)
def test_a_start_that_is_refused_for_one_resource_leaves_no_device_of_another(
    node: Node, tmp_path: Path, is_known: bool, why: str
) -> None:
    """The kubelet asks for each resource of a container by itself."""
    for name, ids in (("a", THREE), ("b", OTHERS)):
        node.bind(bound_pod(make_grant(0), name=name))
        node.admit(name, ("main", ids))
        assert node.plugin.start(*ids) == ""
    node.admit("a", ("main", ONE_PERCENT), resource=PERCENT)
    if not is_known:
        node.api.vanish("/api/v1/namespaces/default/pods/a")
        wait_until(lambda: node.cache.by_uid(PodUid("uid-a")) is None)
    assert why in node.start(ONE_PERCENT, PERCENT)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("gpushare.dev-share_uid-b_")


def test_devices_of_a_pod_that_is_not_known_are_unmade(node: Node, tmp_path: Path) -> None:
    started(node)
    node.resources.held.clear()
    node.entries.clear()
    node.record()
    assert node.plugin.start(*THREE).startswith("FAILED_PRECONDITION: neither PodResources nor")
    assert list(tmp_path.iterdir()) == []


def test_without_the_kubelets_checkpoint_nothing_starts_and_what_was_admitted_before_cdi_goes_on(
    node: Node, tmp_path: Path
) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.resources.hold("a", *THREE)
    assert "the kubelet's checkpoint does not know its devices" in node.plugin.start(*THREE)
    node.hold("a", THREE)
    assert node.plugin.start(*THREE) == ""
    assert list(tmp_path.iterdir()) == []


ENVVAR = HandOverChoice(way=HandOver.ENVVAR, reason="")
OLD = replace(ENVVAR, never_injects="containerd 1.6.20 does not inject CDI devices")


def test_a_runtime_that_injects_no_more_starts_no_container_that_was_told_of_a_device(
    node: Node, hand_over: DeviceHandOver, tmp_path: Path
) -> None:
    """It would start without a GPU: a node whose containerd was replaced by an older one."""
    started(node)
    hand_over.choice = lambda: OLD
    refusal = (
        "pod default/a: the pod came to the node when GPUs were handed over by CDI, and containerd 1.6.20 does not"
        " inject CDI devices; delete the pod and create it again"
    )
    assert node.plugin.start(*THREE).startswith(f"FAILED_PRECONDITION: {refusal}")
    assert [event["message"].startswith(refusal) for event in node.events] == [True]
    assert list(tmp_path.iterdir()) == []
