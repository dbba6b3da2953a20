"""A kubelet admits pods and starts their containers; what a container runtime would then inject."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import resources
from gpushare.kube.api import PatchKind
from gpushare.model.gpu import HandOver
from gpushare.model.request import ContainerKind
from testing.builders import make_grant
from testing.fakes.kubelet import FakeKubelet, FakePodResources, wait_until
from tests.integration.deviceplugin.node import Node, serving
from tests.unit.deviceplugin.build import bound_pod, handing_over

THREE, OTHERS = ("g000", "g001", "g002"), ("g003", "g004", "g005")


@pytest.fixture
def node(kubelet: FakeKubelet, pod_resources: FakePodResources, tmp_path: Path) -> Iterator[Node]:
    hand_over = handing_over(HandOver.CDI, tmp_path)
    with serving(kubelet, pod_resources, resources.MEMORY, hand_over=hand_over) as made:
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


def test_a_start_that_is_refused_leaves_no_device(node: Node, tmp_path: Path) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.admit("a", ("main", THREE))
    assert node.plugin.start(*THREE) == ""
    changed = {"metadata": {"annotations": {"devices.gpushare.dev/main": "GPU-1"}}}
    node.api.patch("/api/v1/namespaces/default/pods/a", changed, kind=PatchKind.MERGE, timeout_s=1.0)
    wait_until(lambda: "devices.gpushare.dev/main says 'GPU-1'" in node.plugin.start(*THREE))
    assert list(tmp_path.iterdir()) == []


def test_devices_of_a_pod_that_is_not_known_are_unmade(node: Node, tmp_path: Path) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.admit("a", ("main", THREE))
    assert node.plugin.start(*THREE) == ""
    node.resources.held.clear()
    node.entries.clear()
    node.record()
    assert node.plugin.start(*THREE).startswith("FAILED_PRECONDITION: neither PodResources nor")
    assert list(tmp_path.iterdir()) == []


def test_a_container_whose_devices_cannot_be_written_does_not_start(node: Node, tmp_path: Path) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.admit("a", ("main", THREE))
    tmp_path.rmdir()
    refusal = (
        f"pod default/a: a CDI spec cannot be written to {tmp_path} (No such file or directory); the kubelet will try"
        " again"
    )
    assert node.plugin.start(*THREE) == f"FAILED_PRECONDITION: {refusal}"
    assert [event["message"] for event in node.events] == [refusal]


def test_without_the_kubelets_checkpoint_no_container_starts(node: Node, tmp_path: Path) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.resources.hold("a", *THREE)
    assert "the kubelet's checkpoint does not know its devices" in node.plugin.start(*THREE)
    assert list(tmp_path.iterdir()) == []


def test_a_container_that_was_admitted_before_the_node_handed_over_by_cdi_goes_on(node: Node, tmp_path: Path) -> None:
    node.bind(bound_pod(make_grant(0), name="a"))
    node.hold("a", THREE)
    assert node.plugin.start(*THREE) == ""
    assert list(tmp_path.iterdir()) == []
