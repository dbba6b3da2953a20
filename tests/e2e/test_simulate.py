"""`gpushare simulate` against a real kube-scheduler: 300 pods over 8 nodes end where it says."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube import api as kube
from gpushare.wire import pods as pods_wire
from testing import mix
from tests.e2e.system import PATIENCE_S, Json, System, is_incomplete
from tests.e2e.test_commands import gpushare

pytestmark = pytest.mark.e2e
SEEDS = "1-12"


@pytest.fixture
def big_nodes(system: System) -> Iterator[tuple[str, ...]]:
    """Nodes without a kubelet: pods are bound to them, and never started."""
    for name in mix.NODES:
        node = mix.node(name)
        system.api.create("/api/v1/nodes", {"metadata": node["metadata"]})
        system.api.patch(kube.node_path(name, "status"), {"status": node["status"]})
    system.eventually("the controller knows the nodes", lambda: known(system).issuperset(mix.NODES))
    yield mix.NODES
    for name in mix.NODES:
        system.api.delete(kube.node_path(name))
    system.eventually("the controller forgets the nodes", lambda: known(system).isdisjoint(mix.NODES))


def known(system: System) -> set[str]:
    return {node["name"] for node in system.inspect()["nodes"]}


@pytest.mark.parametrize("policy", ["binpack", "dense"])
def test_300_pods_end_where_simulate_says(
    system: System, namespace: str, big_nodes: tuple[str, ...], tmp_path: Path, policy: str
) -> None:
    wanted = mix.pods(policy)
    assert len(wanted) == 300
    said = simulated(system, namespace, wanted, policy, tmp_path)

    for pod in wanted:
        create(system, namespace, pod)
        decided(system, namespace, pod["metadata"]["name"])
    there = [pod for pod in system.pods(namespace) if pods_wire.node_of(pod) in big_nodes]
    allocated = 100 * sum(sum(ledger.used_mib.values()) for ledger in system.ledgers().values()) / total_mib(system)
    remove(system, namespace)

    print(f"{policy}: {len(there)} placed and {allocated:.2f} % allocated; simulate: {said}")
    mix.assert_agrees(len(there), allocated, said)


def simulated(system: System, namespace: str, wanted: list[Json], policy: str, folder: Path) -> list[Any]:
    """What simulate says of the cluster as it is, for several seeds."""
    items = [
        {**item, "kind": kind}
        for kind in ("Node", "Pod")
        for item in system.api.get(f"/api/v1/{kind.lower()}s", timeout_s=30)["items"]
    ]
    (folder / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}), encoding="utf-8")
    named = [{**pod, "metadata": {**pod["metadata"], "namespace": namespace}} for pod in wanted]
    (folder / "pods.json").write_text(json.dumps({"kind": "List", "items": named}), encoding="utf-8")
    files = ["-f", str(folder / "cluster.json"), "-f", str(folder / "pods.json")]
    server = f"{system.cluster.version.major}.{system.cluster.version.minor}"
    how = ["--policy", policy, "--seeds", SEEDS, "--server-version", server, "--whole-gpus", "-o", "json"]
    code, out, err = gpushare(system, "simulate", *files, *how)
    assert code in {0, 3}, err
    runs: list[Any] = json.loads(out)["runs"]
    return runs


def create(system: System, namespace: str, pod: Json) -> None:
    """Again where an old API server under load has not asked the webhook: such a pod gets no GPU."""
    for _ in range(10):
        made = system.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, timeout_s=30)
        if not pod["metadata"]["annotations"] or not is_incomplete(made):
            return
        system.api.delete(kube.pod_path(namespace, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})


def decided(system: System, namespace: str, name: str) -> None:
    """Wait until a pod is bound or unschedulable, so that the next one comes to what it has left."""
    end = time.monotonic() + PATIENCE_S
    while not is_decided(system.pod(namespace, name)):
        assert time.monotonic() < end, f"{name} is neither bound nor unschedulable"
        time.sleep(0.05)


def is_decided(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    refused = any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)
    return refused or pods_wire.node_of(pod) is not None


def total_mib(system: System) -> int:
    return sum(gpu.memory_mib for ledger in system.ledgers().values() for gpu in ledger.inventory.gpus)


def remove(system: System, namespace: str) -> None:
    """Without a kubelet pods are gone only if that is forced."""
    for pod in system.pods(namespace):
        system.api.delete(kube.pod_path(namespace, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
