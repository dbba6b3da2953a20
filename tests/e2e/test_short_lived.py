"""Pods that are gone as soon as they are bound leave nothing in the ledger."""

import contextlib

import pytest

from gpushare import names
from gpushare.kube import api as kube
from tests.e2e.system import Json, Share, System

pytestmark = pytest.mark.e2e
UNITS = 15
"""More than half a GPU, so that four pods fill a node."""
PODS = 40


def test_a_quota_of_one_pod_never_fills_a_node_with_pods_that_are_gone(system: System, namespace: str) -> None:
    """One pod at a time, deleted when it is bound. The watch may not have shown the end of the last one yet."""
    hard = {f"requests.{names.GPU_MEM}": UNITS}
    system.create(
        namespace, {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": hard}}
    )
    quota = f"/api/v1/namespaces/{namespace}/resourcequotas/one"
    system.eventually("the quota is counted", lambda: system.api.get(quota)["status"].get("used"))
    counted = [counted_with(system, namespace, f"short-{number}") for number in range(PODS)]
    assert max(counted) <= 2, f"{counted} pods at a time"


def counted_with(system: System, namespace: str, name: str) -> int:
    """Pods that the controller counts on the node when this one is bound there, which is deleted then."""
    path = kube.pod_path(namespace, name)
    pod = Share(name=name, gib=(UNITS,)).document()
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    system.eventually("the quota has room", lambda: is_created(system, namespace, pod))
    system.eventually("it is bound", lambda: system.api.get(path)["spec"].get("nodeName"))
    [node] = [node for node in system.inspect()["nodes"] if node["name"] == "node-1"]
    system.api.delete(path, {"gracePeriodSeconds": 0})
    return len({held["name"] for device in node["devs"] for held in device["pods"] if held["namespace"] == namespace})


def is_created(system: System, namespace: str, pod: Json) -> bool:
    with contextlib.suppress(kube.ForbiddenError):  # the quota still counts the last one
        return bool(system.api.create(f"/api/v1/namespaces/{namespace}/pods", pod))
    return False
