"""A kubelet starts containers: all parts but the process itself, over real sockets."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from deviceplugin.identify import ListerError, PodResources
from deviceplugin.resources import MEMORY, PERCENT, WHOLE, Resource
from gpushare.runtime.clock import SystemClock
from testing.builders import make_container, make_grant
from testing.deviceplugin.build import bound_pod, ids_of, percent_container
from testing.fakes.kubelet import FakeKubelet, FakePodResources, wait_until
from tests.integration.deviceplugin.node import Node, serving

THREE, OTHERS = ("g000", "g001", "g002"), ("g003", "g004", "g005")


@pytest.fixture
def node(kubelet: FakeKubelet, pod_resources: FakePodResources) -> Iterator[Node]:
    with serving(kubelet, pod_resources, MEMORY, PERCENT, WHOLE) as made:
        yield made


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


def test_a_pod_that_ends_does_not_hide_its_successor_of_the_same_name(node: Node) -> None:
    """As of a StatefulSet, where the checkpoint cannot be read, so that only the list can tell them apart."""
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
