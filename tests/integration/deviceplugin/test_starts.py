"""A kubelet starts containers: all parts but the process itself, over real sockets."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from deviceplugin import pods
from deviceplugin.identify import ListerError
from deviceplugin.podresources import PodResources
from deviceplugin.pods import PodCache
from deviceplugin.prestart import Gate
from deviceplugin.refusals import Refusals
from gpushare.kube import api as kube
from gpushare.kube.watch import Reflector
from gpushare.model.request import ContainerKind
from gpushare.runtime.clock import SystemClock
from tests.builders import Json, make_grant, make_inventory
from tests.fakes.kube import FakeKube
from tests.integration.deviceplugin.fake_kubelet import FakeKubelet, FakePodResources, Plugin, wait_until
from tests.integration.deviceplugin.running import board_with, running
from tests.unit.deviceplugin.build import NODE, bound_pod

THREE = ("g000", "g001", "g002")


@dataclass(kw_only=True)
class Node:
    """A node on which pods can be started."""

    plugin: Plugin
    api: FakeKube
    cache: PodCache
    resources: FakePodResources
    checkpoint: Path

    def bind(self, pod: Json) -> None:
        self.api.seed(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", pod)
        wait_until(lambda: self.cache.by_uid(pod["metadata"]["uid"]))

    def record(self, *entries: tuple[str, str, tuple[str, ...]]) -> None:
        """Write the kubelet's checkpoint. Args: UID, container, device IDs."""
        devices = [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": "aliyun.com/gpu-mem",
                "DeviceIDs": {"-1": ids},
                "AllocResp": "",
            }
            for uid, container, ids in entries
        ]
        document = {"Data": {"PodDeviceEntries": devices, "RegisteredDevices": {}}, "Checksum": 1}
        self.checkpoint.write_bytes(orjson.dumps(document))

    @property
    def events(self) -> list[Json]:
        return self.api.objects("/api/v1/namespaces/default/events")


@contextmanager
def watching(api: FakeKube, cache: PodCache) -> Iterator[None]:
    reflector = Reflector(
        api=api, path=pods.PATH, sink=cache, clock=SystemClock(), params=pods.selector(NODE), keep=pods.reduce
    )
    stop = threading.Event()
    thread = threading.Thread(target=reflector.run, args=(stop,))
    thread.start()
    yield
    stop.set()
    api.close()
    thread.join(10.0)


@pytest.fixture
def node(kubelet: FakeKubelet, pod_resources: FakePodResources, directory: Path) -> Iterator[Node]:
    api, cache, clock = FakeKube(), PodCache(), SystemClock()
    board = board_with(make_inventory(15, 15))
    checkpoint = directory / "kubelet_internal_checkpoint"
    gate = Gate(
        node=NODE,
        board=board,
        cache=cache,
        api=api,
        lister=PodResources(socket=pod_resources.socket, clock=clock),
        checkpoint=checkpoint,
        refusals=Refusals(api=api, clock=clock),
    )
    with watching(api, cache), running(directory=directory, board=board, gate=gate):
        plugin = kubelet.wait_for_devices()
        made = Node(plugin=plugin, api=api, cache=cache, resources=pod_resources, checkpoint=checkpoint)
        made.record()
        yield made


def test_a_container_of_a_bound_pod_starts_without_a_request_to_the_api_server(node: Node) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.resources.hold("a", *THREE)
    node.record(("uid-a", "main", THREE))
    before = len(node.api.calls)
    assert node.plugin.start(*THREE) == ""
    assert len(node.api.calls) == before
    assert node.events == []


def test_of_equal_pods_each_is_found_by_its_own_devices(node: Node) -> None:
    node.bind(bound_pod(make_grant(0), name="good"))
    node.bind(bound_pod(make_grant(0), name="forged", annotations={"devices.gpushare.dev/main": "GPU-1"}))
    others = ("g003", "g004", "g005")
    node.resources.hold("forged", *THREE)
    node.resources.hold("good", *others)
    node.record(("uid-forged", "main", THREE), ("uid-good", "main", others))
    assert node.plugin.start(*others) == ""
    assert "devices.gpushare.dev/main says 'GPU-1'" in node.plugin.start(*THREE)


def test_a_refusal_reaches_the_kubelet_and_once_the_author(node: Node) -> None:
    node.bind(bound_pod(make_grant(0), name="a", annotations={"gpushare.dev/allocation": None}))
    node.resources.hold("a", *THREE)
    node.record(("uid-a", "main", THREE))
    answers = {node.plugin.start(*THREE) for _ in range(5)}
    message = (
        "pod default/a was never given a GPU by gpushare-controller: it was scheduled by gpushare-scheduler; delete the"
        " pod and create it again without spec.nodeName and with the scheduler gpushare-scheduler (gpushare-webhook"
        " sets it when it is running)"
    )
    assert answers == {f"FAILED_PRECONDITION: {message}"}
    (event,) = node.events
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "GpuRefused", message)
    assert event["involvedObject"]["uid"] == "uid-a"


def test_an_event_that_cannot_be_posted_changes_nothing(node: Node) -> None:
    node.bind(bound_pod(make_grant("GPU-9"), name="a"))
    node.resources.hold("a", *THREE)
    node.api.fail_next(lambda call: call.verb == "create", kube.ForbiddenError("no events for you"))
    assert "GPU GPU-9 is gone from node node-a" in node.plugin.start(*THREE)
    assert node.events == []
    assert "GPU GPU-9 is gone from node node-a" in node.plugin.start(*THREE)
    assert len(node.events) == 1


def test_a_pod_that_the_watch_has_not_told_yet_is_read_once(
    kubelet: FakeKubelet, pod_resources: FakePodResources, directory: Path
) -> None:
    api, clock, board = FakeKube(), SystemClock(), board_with(make_inventory(15))
    api.seed("/api/v1/namespaces/default/pods/a", bound_pod(make_grant(0), name="a"))
    gate = Gate(
        node=NODE,
        board=board,
        cache=PodCache(),
        api=api,
        lister=PodResources(socket=pod_resources.socket, clock=clock),
        checkpoint=directory / "kubelet_internal_checkpoint",
        refusals=Refusals(api=api, clock=clock),
    )
    pod_resources.hold("a", *THREE)
    with running(directory=directory, board=board, gate=gate):
        assert kubelet.wait_for_devices().start(*THREE) == ""
    assert [call.verb for call in api.calls] == ["get"]


def test_an_init_container_is_found_though_only_its_successor_is_listed(node: Node) -> None:
    init = make_grant(0, gib=3, container="prepare", kind=ContainerKind.INIT)
    app = make_grant(0, gib=4, container="main")
    node.bind(bound_pod(init, app, name="a"))
    four = (*THREE, "g003")
    node.resources.hold("a", *four)
    node.record(("uid-a", "prepare", THREE), ("uid-a", "main", four))
    assert node.plugin.start(*THREE) == ""
    assert node.plugin.start(*four) == ""


def test_unknown_devices_start_nothing(node: Node) -> None:
    node.resources.hold("a", *THREE)
    assert node.plugin.start("g000", "nonsense") == (
        "FAILED_PRECONDITION: neither PodResources nor kubelet_internal_checkpoint knows a container with exactly the"
        " devices g000, nonsense; the kubelet will try again"
    )
    assert node.plugin.start() == "FAILED_PRECONDITION: the kubelet named no device IDs; the kubelet will try again"


def test_without_pod_resources_nothing_starts_and_the_kubelet_is_told_to_try_again(node: Node) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.record(("uid-a", "main", THREE))
    node.resources.stop()
    assert node.plugin.start(*THREE).startswith(
        f"UNAVAILABLE: the kubelet's PodResources API at {node.resources.socket} does not answer (UNAVAILABLE: "
    )


def test_a_burst_of_starts_shares_few_lists_and_survives_the_kubelets_rate_limit(node: Node) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.resources.hold("a", *THREE)
    node.record(("uid-a", "main", THREE))
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


def test_a_kubelet_that_is_slow_to_answer_holds_nobody_longer_than_he_wants(pod_resources: FakePodResources) -> None:
    pod_resources.delay_s = 0.5
    pod_resources.hold("a", *THREE)
    lister = PodResources(socket=pod_resources.socket, clock=SystemClock())
    found: list[int] = []
    patient = threading.Thread(target=lambda: found.append(len(lister.list(10.0))))
    patient.start()
    wait_until(lambda: pod_resources.calls)
    with pytest.raises(ListerError) as caught:
        lister.list(0.05)
    assert str(caught.value) == (
        f"the kubelet's PodResources API at {pod_resources.socket} does not answer (earlier calls still wait for an"
        " answer); the kubelet will try again"
    )
    patient.join(10.0)
    assert found == [1]
    with pytest.raises(ListerError, match="DEADLINE_EXCEEDED"):
        lister.list(0.05)
