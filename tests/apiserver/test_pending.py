"""A GPU pod's way from its author to a node, by the real kube-scheduler and the controller.

P6: a pod that fits nowhere is told why, with numbers, and is bound as soon as there is room.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

import pytest

from gpushare import names
from localcluster.provision import Version
from testing import skips
from tests.apiserver.server import Server, gpu_of, pod

GATES_SINCE: Final = Version(1, 27)


@pytest.fixture(autouse=True)
def nodes(server: Server) -> Iterator[None]:
    with server.node("full-1", (16, 16)), server.node("full-2", (16, 16)):
        yield


def test_a_pod_is_completed_scheduled_and_bound_with_its_gpus(server: Server, namespace: str) -> None:
    with server.node("node-1", (4, 16)):
        made = server.create_pod(namespace, pod("mine", 8, node="node-1"), server.tenant(namespace))
        assert made["metadata"]["labels"][names.LABEL_MANAGED] == "true"
        assert made["spec"]["schedulerName"] == names.SCHEDULER
        [bound] = server.bound(namespace, "mine")
        notes = bound["metadata"]["annotations"]
        [container] = json.loads(notes[names.ANNOTATION_ALLOCATION])["containers"]
        assert (container["name"], container["gpus"]) == ("c0", ["GPU-node-1-1"])
        assert gpu_of(bound) == "GPU-node-1-1"
        assert server.counted(namespace) == ["mine"]
        server.delete_pods(namespace)


def test_a_pod_that_fits_no_gpu_is_told_the_numbers_and_is_bound_when_another_is_gone(
    server: Server, namespace: str
) -> None:
    big = [f"big-{i}" for i in range(4)]
    for name in big:
        server.create_pod(namespace, pod(name, 11))
    server.bound(namespace, *big)
    server.create_pod(namespace, pod("waits", 10))
    expected = "needs 10 GiB on one GPU; free per GPU on full-1: 5, 5 GiB"
    server.eventually("an event with the numbers", lambda: expected in "".join(server.events(namespace, "waits")))
    assert not server.pod(namespace, "waits")["spec"].get("nodeName")

    [first] = server.bound(namespace, "big-0")
    server.delete_pod(namespace, "big-0")
    [bound] = server.bound(namespace, "waits")
    assert gpu_of(bound) == gpu_of(first)


def test_a_pod_too_big_for_every_node_is_told_the_numbers_too(server: Server, namespace: str) -> None:
    """kube-scheduler's own resource check refuses it before it asks the extender."""
    server.create_pod(namespace, pod("huge", 33))
    pattern = re.compile(r"needs 33 GiB on one GPU; free per GPU on full-1: .* GiB in all\)")
    server.eventually("an event with the numbers", lambda: pattern.search("".join(server.events(namespace, "huge"))))


GATED: Final = pod("gated", 3, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])


def test_a_gated_pod_holds_nothing_until_its_gate_is_removed(server: Server, namespace: str) -> None:
    """As Kueue keeps a plain pod, and lets it go to the nodes of a flavor."""
    skips.older(server.version, GATES_SINCE, "it drops the gates of a pod")
    made = server.create_pod(namespace, GATED)
    assert made["spec"]["schedulerName"] == names.SCHEDULER
    [condition] = server.pod(namespace, "gated")["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("PodScheduled", "SchedulingGated")
    assert server.counted(namespace) == []
    change = {"schedulingGates": [], "nodeSelector": {"kubernetes.io/hostname": "full-2"}}
    admitted = {"metadata": {"labels": {"kueue.x-k8s.io/podset": "main"}}, "spec": change}
    server.api.patch(f"/api/v1/namespaces/{namespace}/pods/gated", admitted)
    [bound] = server.bound(namespace, "gated")
    assert bound["spec"]["nodeName"] == "full-2"
    assert server.counted(namespace) == ["gated"]


def test_a_gated_pod_is_bound_at_once_by_a_server_that_drops_the_gates(server: Server, namespace: str) -> None:
    if server.version >= GATES_SINCE:
        skips.expected("this version keeps the gates of a pod")
    server.create_pod(namespace, GATED)
    server.bound(namespace, "gated")
    assert server.counted(namespace) == ["gated"]
