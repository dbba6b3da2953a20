"""A kubelet starts containers that hold percent, whole GPUs, or what another system gave them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from deviceplugin import late
from deviceplugin.resources import MEMORY, PERCENT, WHOLE, Resource
from testing.builders import Json, make_container, make_grant, make_pod
from testing.deviceplugin.build import NODE, bound_pod, ids_of, percent_container
from testing.fakes.kubelet import FakeKubelet, FakePodResources, wait_until
from tests.integration.deviceplugin.node import Node, serving

PART = replace(make_grant(0), compute_percent=20)
WHOLE_GPU = replace(make_grant(1, gib=15), compute_percent=100, whole=True)


@pytest.fixture
def node(kubelet: FakeKubelet, pod_resources: FakePodResources) -> Iterator[Node]:
    with serving(kubelet, pod_resources, MEMORY, PERCENT, WHOLE) as made:
        yield made


def some(count: int, resource: Resource = MEMORY) -> tuple[str, ...]:
    return tuple(sorted(ids_of(count, resource)))


def percent_pod(name: str) -> Json:
    return bound_pod(PART, name=name, containers=[percent_container(20)])


def test_a_share_of_every_kind_starts_beside_the_others(node: Node) -> None:
    node.bind(bound_pod(make_grant(0), name="memory"))
    node.bind(percent_pod("percent"))
    node.bind(bound_pod(WHOLE_GPU, name="whole"))
    for name, count, resource in (("memory", 3, MEMORY), ("percent", 20, PERCENT), ("whole", 1, WHOLE)):
        node.hold(name, some(count, resource), resource)
    before = len(node.api.calls)
    assert [node.start(some(count, one), one) for count, one in ((3, MEMORY), (20, PERCENT), (1, WHOLE))] == [""] * 3
    assert len(node.api.calls) == before


def test_of_a_container_that_holds_two_resources_one_is_refused(node: Node) -> None:
    node.bind(bound_pod(make_grant(0), name="both"))
    node.hold("both", some(3))
    node.hold("both", some(20, PERCENT), PERCENT)
    assert node.start(some(3)) == ""
    assert node.start(some(20, PERCENT), PERCENT) == (
        "FAILED_PRECONDITION: container main of pod default/both holds nano-gpu/gpu-percent: 20, but was granted 3072"
        " MiB on each of GPU-0, which is a share of another kind; delete the pod and create it again"
    )
    (event,) = node.events
    assert event["reason"] == "GpuRefused"


def test_devices_of_one_resource_lead_nowhere_through_another(node: Node) -> None:
    node.bind(percent_pod("percent"))
    node.hold("percent", some(20, PERCENT), PERCENT)
    node.resources.hold("other", *some(20, PERCENT), resource="example.com/fpga")
    assert node.start(some(20, PERCENT), PERCENT) == ""
    assert node.start(some(20, PERCENT), MEMORY) == (
        "FAILED_PRECONDITION: neither PodResources nor kubelet_internal_checkpoint knows a container with exactly the"
        " devices p000, p001, p002 and 17 more; the kubelet will try again"
    )


def test_a_pod_that_is_bound_late_starts_at_the_kubelets_next_try(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "LAG_S", 0.3)
    node.hold("a", some(3))
    waiting = bound_pod(name="a", annotations={"gpushare.dev/allocation": None, "devices.gpushare.dev/main": None})
    node.bind(waiting)
    assert node.start(some(3)) == (
        "FAILED_PRECONDITION: pod default/a was never given a GPU by gpushare-controller: it was scheduled by"
        " gpushare-scheduler; gpushare-controller gives it GPUs of node node-a if they have room for it, and it starts"
        " then; if they have not, an Event on the pod says why"
    )
    bound = bound_pod(name="a", annotations={"gpushare.dev/bound-late": "true"})
    node.api.edit(
        "/api/v1/namespaces/default/pods/a",
        lambda pod: pod["metadata"].update(annotations=bound["metadata"]["annotations"]),
    )
    wait_until(lambda: node.cache.shown_since(bound["metadata"]["uid"]))
    assert node.start(some(3)) == (
        "UNAVAILABLE: pod default/a was given its GPUs after it had come to the node, and the kubelet may still have a"
        " copy that does not name them; it starts at the kubelet's next try, in some seconds"
    )
    assert node.start(some(3)) == ""
    assert [event["message"].split(":")[0] for event in node.events] == [
        "pod default/a was never given a GPU by gpushare-controller"
    ]


def test_a_container_that_aliyuns_plugin_served_is_started_again(node: Node) -> None:
    ids = tuple(f"GPU-3b1f7a9e-3c1f-4c1d-8f57-0d8f4f0e1a2b-_-{number}" for number in range(3))
    annotations = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1"}
    node.bind(make_pod(make_container("main", 3), name="old", node=NODE, annotations=annotations, phase="Running"))
    node.hold("old", ids)
    assert node.start(ids) == ""


def test_a_container_that_nano_gpus_plugin_served_is_started_again(node: Node) -> None:
    ids = tuple(f"nano-0-{number:02}" for number in range(20))
    container = make_container(resources={"limits": {"nano-gpu/gpu-percent": "20"}})
    annotations = {"nano-gpu/assume": "true", "nano-gpu/container-main": "0"}
    node.bind(make_pod(container, name="old", node=NODE, annotations=annotations, phase="Running"))
    node.hold("old", ids, PERCENT)
    assert node.start(ids, PERCENT) == ""
