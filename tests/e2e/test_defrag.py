"""`gpushare defrag` on the real cluster: what the dry run names is what is evicted, and the pod then runs."""

import json

import pytest

from gpushare import names
from tests.e2e import checks
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import (
    Json,
    Share,
    System,
    allocated,
    disruption_budget,
    gpushare,
    gpushare_json,
    replica_set,
)

pytestmark = pytest.mark.e2e
NODES = ("node-1", "node-2")


def test_one_small_pod_moves_and_the_large_one_runs(system: System, namespace: str) -> None:
    """Each GPU but one has a bare pod that leaves 6 GiB; that one has 4 GiB of a workload, with a budget."""
    system.create(namespace, workload("small", 4, "node-1"), disruption_budget(system, "small", 0))
    (small,) = system.all_running(namespace, 1)
    fill(system, namespace, but=allocated(small)["c0"][0])
    large = pod("large", GPU_GIB)
    system.create(namespace, large)
    system.eventually("it waits", lambda: told(system, namespace, "large"))

    promised = gpushare_json(system, 0, "defrag", f"{namespace}/large", "--dry-run")
    (eviction,) = promised["plan"]["evictions"]
    assert eviction["name"] == small["metadata"]["name"]
    assert promised["plan"]["gpus"] == list(allocated(small)["c0"])
    assert system.pod(namespace, eviction["name"])["metadata"]["uid"] == small["metadata"]["uid"]

    done = gpushare_json(system, 0, "defrag", f"{namespace}/large", "--yes")
    assert done["plan"] == promised["plan"]
    assert done["node"] == "node-1"
    (running,) = system.running(namespace, "large")
    assert list(allocated(running)["c0"]) == promised["plan"]["gpus"]
    now = system.all_running(namespace, 2 * GPUS_PER_NODE + 1)
    assert small["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in now}, "it has moved"
    for node in NODES:
        assert names.ANNOTATION_CORDON not in system.api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"]
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)


def test_what_a_budget_protects_stays_and_the_answer_says_so(system: System, namespace: str) -> None:
    system.create(namespace, workload("small", 4, "node-1"), disruption_budget(system, "small", 1))
    (small,) = system.all_running(namespace, 1)
    fill(system, namespace, but=allocated(small)["c0"][0])
    code, out, err = gpushare(system, "defrag", "-f", "-", "--yes", given=json.dumps(pod("large", GPU_GIB)))
    assert code == 3, out + err
    assert "no set of evictions makes room" in out
    assert system.pod(namespace, small["metadata"]["name"])["metadata"]["uid"] == small["metadata"]["uid"]


def fill(system: System, namespace: str, *, but: str) -> None:
    """A pod that nothing recreates on every GPU but one."""
    for node, ledger in system.ledgers().items():
        for gpu in ledger.inventory.gpus:
            if gpu.uuid == but:
                continue
            annotations = {names.ANNOTATION_UUID: gpu.uuid}
            filler = Share(name=f"on-{node}-{gpu.index}", gib=(GPU_GIB - 6,), annotations=annotations).document()
            system.create(namespace, filler)
    system.all_running(namespace, 2 * GPUS_PER_NODE)


def pod(name: str, gib: int) -> Json:
    """One container."""
    return Share(name=name, gib=(gib,)).document()


def workload(name: str, gib: int, first: str) -> Json:
    """A ReplicaSet of one pod that likes a node and may go anywhere."""
    document = pod(name, gib)
    matches = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [first]}]
    preferred = [{"weight": 100, "preference": {"matchExpressions": matches}}]
    document["spec"]["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return replica_set(document)


def told(system: System, namespace: str, name: str) -> str:
    """Events on a pod."""
    return "".join(system.events(namespace, name))
