"""A kubelet admits pods and starts their containers; what a container runtime would then inject."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import resources
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.handover.devices import DeviceHandOver
from gpushare.identity import PodUid
from gpushare.kube.api import PatchKind
from gpushare.model.gpu import HandOver
from gpushare.model.request import ContainerKind
from testing.builders import make_grant
from testing.deviceplugin.build import bound_pod, handing_over
from testing.fakes.kubelet import FakeKubelet, FakePodResources, wait_until
from tests.integration.deviceplugin.node import Node, serving

THREE, OTHERS = ("g000", "g001", "g002"), ("g003", "g004", "g005")
PERCENT = ("p000",)


@pytest.fixture
def hand_over(tmp_path: Path) -> DeviceHandOver:
    return handing_over(HandOver.CDI, tmp_path)


@pytest.fixture
def node(kubelet: FakeKubelet, pod_resources: FakePodResources, hand_over: DeviceHandOver) -> Iterator[Node]:
    with serving(kubelet, pod_resources, resources.MEMORY, resources.PERCENT, hand_over=hand_over) as made:
        yield made


def minors(directory: Path) -> list[list[int]]:
    """The GPUs that each device has."""
    specs = [json.loads(file.read_text()) for file in sorted(directory.glob("*.json"))]
    return [[node["minor"] for node in edits_of(spec)["deviceNodes"]] for spec in specs]


def edits_of(spec: Any) -> Any:
    (device,) = spec["devices"]
    return device["containerEdits"]


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
    node.admit("a", ("main", PERCENT), resource=resources.PERCENT)
    if not is_known:
        node.api.vanish("/api/v1/namespaces/default/pods/a")
        wait_until(lambda: node.cache.by_uid(PodUid("uid-a")) is None)
    assert why in node.start(PERCENT, resources.PERCENT)
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


CDI, ENVVAR = HandOverChoice(way=HandOver.CDI, reason=""), HandOverChoice(way=HandOver.ENVVAR, reason="")
OLD = replace(ENVVAR, never_injects="containerd 1.6.20 does not inject CDI devices")


def by(choice: HandOverChoice) -> Callable[[], HandOverChoice]:
    return lambda: choice


def test_running_pods_keep_their_way_while_the_node_goes_from_one_to_the_other_and_back(
    node: Node, hand_over: DeviceHandOver, tmp_path: Path
) -> None:
    """Every restart under every way: a CDI device for those that were told of one, a variable for the other."""
    held = {"a": THREE, "b": OTHERS}
    for number, (name, way) in enumerate({"a": CDI, "b": ENVVAR}.items()):
        hand_over.choice = by(way)
        node.bind(bound_pod(make_grant(number), name=name))
        node.admit(name, ("main", held[name]))
    for way in (CDI, ENVVAR, CDI, ENVVAR):
        hand_over.choice = by(way)
        for ids in held.values():
            assert node.plugin.start(*ids) == ""
        assert minors(tmp_path) == [[0]]


def test_a_runtime_that_injects_no_more_starts_no_container_that_was_told_of_a_device(
    node: Node, hand_over: DeviceHandOver, tmp_path: Path
) -> None:
    """It would start without a GPU: a node whose containerd was replaced by an older one."""
    started(node)
    hand_over.choice = by(OLD)
    refusal = (
        "pod default/a: the pod came to the node when GPUs were handed over by CDI, and containerd 1.6.20 does not"
        " inject CDI devices; delete the pod and create it again"
    )
    assert node.plugin.start(*THREE).startswith(f"FAILED_PRECONDITION: {refusal}")
    assert [event["message"].startswith(refusal) for event in node.events] == [True]
    assert list(tmp_path.iterdir()) == []
