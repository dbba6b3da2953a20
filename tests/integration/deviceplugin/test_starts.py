"""A kubelet starts containers: all parts but the process itself, over real sockets."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin import resources
from deviceplugin.identify import ListerError
from deviceplugin.podresources import PodResources
from deviceplugin.pods import PodCache
from gpushare.kube import api as kube
from gpushare.model.request import ContainerKind
from gpushare.runtime.clock import SystemClock
from testing.builders import make_container, make_grant, make_inventory
from testing.deviceplugin.build import bound_pod
from testing.deviceplugin.running import running
from testing.fakes.kube import FakeKube
from testing.fakes.kubelet import FakeKubelet, FakePodResources, wait_until
from tests.integration.deviceplugin.node import Node, serving, start_check_of

THREE = ("g000", "g001", "g002")


@pytest.fixture
def node(kubelet: FakeKubelet, pod_resources: FakePodResources) -> Iterator[Node]:
    with serving(kubelet, pod_resources, resources.MEMORY) as made:
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
    plain = [make_container("main", 3)]
    node.bind(bound_pod(make_grant(0), name="a", annotations={"gpushare.dev/allocation": None}, containers=plain))
    node.resources.hold("a", *THREE)
    node.record(("uid-a", "main", THREE))
    answers = {node.plugin.start(*THREE) for _ in range(5)}
    message = (
        "pod default/a was never given a GPU by gpushare-controller: it was scheduled by gpushare-scheduler, and"
        " gpushare-webhook did not change it; delete the pod and create it again without spec.nodeName while"
        " gpushare-webhook is running, which gives it the scheduler gpushare-scheduler"
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
    api, clock = FakeKube(), SystemClock()
    api.seed("/api/v1/namespaces/default/pods/a", bound_pod(make_grant(0), name="a"))
    start_check = start_check_of(api, PodCache(clock), pod_resources.socket, directory, clock, make_inventory(15))
    pod_resources.hold("a", *THREE)
    with running(directory=directory, feed=start_check.feed, start_check=start_check.check):
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


def test_a_kubelet_that_is_slow_to_answer_holds_no_one_longer_than_he_wants(pod_resources: FakePodResources) -> None:
    pod_resources.answers.clear()
    pod_resources.hold("a", *THREE)
    lister = PodResources(socket=pod_resources.socket, clock=SystemClock())
    found: list[int] = []
    patient = threading.Thread(target=lambda: found.append(len(lister.list(resources.MEMORY, 300.0))))
    patient.start()
    wait_until(lambda: pod_resources.calls)
    with pytest.raises(ListerError) as caught:
        lister.list(resources.MEMORY, 0.05)
    assert str(caught.value) == (
        f"the kubelet's PodResources API at {pod_resources.socket} does not answer (earlier calls still wait for an"
        " answer); the kubelet will try again"
    )
    pod_resources.answers.set()
    patient.join()
    assert found == [1]
    pod_resources.answers.clear()
    with pytest.raises(ListerError, match="DEADLINE_EXCEEDED"):
        lister.list(resources.MEMORY, 0.05)
    pod_resources.answers.set()
