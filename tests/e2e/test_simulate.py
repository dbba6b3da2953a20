"""`gpushare simulate` against a real kube-scheduler: 300 pods over 8 nodes end where it says."""

import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import names
from gpushare.identity import GpuUuid, NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import Gpu, HandOver, NodeInventory
from gpushare.units import GIB
from gpushare.wire import inventory as inventory_wire
from gpushare.wire import pods as pods_wire
from tests.e2e.system import PATIENCE_S, Json, System
from tests.e2e.test_commands import gpushare

pytestmark = pytest.mark.e2e
NODES = 8
GPUS = 24
GPU_GIB = 16
HOST = {"cpu": "330", "memory": "1900Gi", "pods": "200"}
LABEL = "e2e-simulated"
KINDS = (
    # Pods, GPUs or GiB of one, CPU, memory: the shares of requests in a production trace, and 130 % of these GPUs.
    (20, "", 0, "4", "8Gi"),
    (12, "", 0, "8", "16Gi"),
    (8, "", 0, "32", "64Gi"),
    (39, names.GPU_MEM, 13, "6", "12Gi"),
    (38, names.GPU_MEM, 7, "6", "12Gi"),
    (33, names.GPU_MEM, 4, "3", "8Gi"),
    (95, names.GPU, 1, "12", "24Gi"),
    (44, names.GPU, 1, "16", "64Gi"),
    (4, names.GPU, 2, "24", "96Gi"),
    (3, names.GPU, 4, "48", "192Gi"),
    (4, names.GPU, 8, "88", "320Gi"),
)
SEEDS = "1-12"


@pytest.fixture
def big_nodes(system: System) -> Iterator[list[str]]:
    """Nodes without a kubelet: pods are bound to them, and never started."""
    made = [f"simulated-{number}" for number in range(1, NODES + 1)]
    for name in made:
        create_node(system, name)
    system.eventually("the controller knows the nodes", lambda: known(system).issuperset(made))
    yield made
    for name in made:
        system.api.delete(kube.node_path(name))
    system.eventually("the controller forgets the nodes", lambda: known(system).isdisjoint(made))


def create_node(system: System, name: str) -> None:
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"GPU-{name}-{index}"), index=index, model="Simulated", memory_mib=GPU_GIB * 1024)
        for index in range(GPUS)
    )
    inventory = NodeInventory(node=NodeName(name), gpus=gpus, unit=GIB, hand_over=HandOver.CDI)
    resources = {**HOST, names.GPU_MEM: str(inventory.total_units), names.GPU_COUNT: str(GPUS), names.GPU: str(GPUS)}
    metadata = {
        "name": name,
        "labels": {LABEL: "true", "kubernetes.io/hostname": name},
        "annotations": {names.ANNOTATION_INVENTORY: inventory_wire.encode(inventory)},
    }
    system.api.create("/api/v1/nodes", {"metadata": metadata})
    system.api.patch(kube.node_path(name, "status"), {"status": {"capacity": resources, "allocatable": resources}})


def known(system: System) -> set[str]:
    return {node["name"] for node in system.inspect()["nodes"]}


def pods(policy: str) -> list[Json]:
    """300 of them, always in the same random order, for one scheduler, which so has one queue."""
    found = []
    for kind, (count, resource, amount, cpu, memory) in enumerate(KINDS):
        limits = {resource: str(amount)} if resource else {}
        container: Json = {
            "name": "main",
            "image": "none",
            "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": limits},
        }
        spec: Json = {
            "schedulerName": names.SCHEDULER,
            "nodeSelector": {LABEL: "true"},
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        }
        annotations = {names.ANNOTATION_POLICY: policy} if resource else {}
        found += [({"name": f"p{kind}-{i}", "annotations": annotations}, spec) for i in range(count)]
    random.Random(7).shuffle(found)
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec} for metadata, spec in found]


@pytest.mark.parametrize("policy", ["binpack"])
def test_300_pods_end_where_simulate_says(
    system: System, namespace: str, big_nodes: list[str], tmp_path: Path, policy: str
) -> None:
    wanted = pods(policy)
    assert len(wanted) == 300
    said = simulated(system, namespace, wanted, policy, tmp_path)

    for pod in wanted:
        system.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, timeout_s=30)
        decided(system, namespace, pod["metadata"]["name"])
    there = [pod for pod in system.pods(namespace) if pods_wire.node_of(pod) in big_nodes]
    allocated = 100 * sum(sum(ledger.used_mib.values()) for ledger in system.ledgers().values()) / total_mib(system)
    remove(system, namespace)

    print(f"{policy}: {len(there)} placed and {allocated:.2f} % allocated; simulate: {said}")
    assert_within(len(there), [run["placed"] for run in said], least=3)
    assert_within(allocated, [run["allocatedPercent"] for run in said], least=0.5)


def assert_within(value: float, told: list[float], least: float) -> None:
    """Three standard deviations around the mean, which chance leaves once in 300 times."""
    mean = statistics.mean(told)
    assert abs(value - mean) <= max(3 * statistics.stdev(told), least), f"{value}; simulate says {told}"


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
