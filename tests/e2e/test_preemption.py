"""Pods of a higher priority push others out, but only those whose GPU they can then use."""

from collections.abc import Iterator

import pytest

from gpushare import names
from tests.e2e import checks
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.preempting import Scheduler
from tests.e2e.system import Json, Share, System, is_ready

pytestmark = pytest.mark.e2e
GROUP = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: e2e-%s}\nvalue: %d\n"
HALF = GPU_GIB // 2


@pytest.fixture
def classes(system: System) -> Iterator[None]:
    document = "---\n".join(GROUP % (name, value) for name, value in (("low", 10), ("middle", 100), ("high", 1000)))
    system.cluster.kubectl("apply", "-f", "-", input=document)
    yield
    system.cluster.kubectl("delete", "-f", "-", input=document)


def pod(name: str, gib: int, priority: str, node: str = "node-1", **labels: str) -> Json:
    document = Share(name=name, gib=(gib,), labels=labels).document()
    document["spec"]["priorityClassName"] = f"e2e-{priority}"
    document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return document


def staying(system: System, namespace: str) -> set[str]:
    """Names. A victim's memory is free when its containers have ended, a moment before the pod is gone."""
    return {one["metadata"]["name"] for one in system.pods(namespace) if "deletionTimestamp" not in one["metadata"]}


def test_only_pods_of_one_gpu_are_pushed_out_and_no_more_than_needed(
    system: System, namespace: str, classes: None
) -> None:
    """Every GPU of the node holds two halves: any two victims free the sum, only a pair on one GPU frees the GPU."""
    count = 2 * GPUS_PER_NODE
    system.create(namespace, *[pod(f"low-{i}", HALF, "low") for i in range(count)])
    before = {
        one["metadata"]["name"]: one["metadata"]["annotations"]["devices.gpushare.dev/c0"]
        for one in system.all_running(namespace, count)
    }
    scheduler = Scheduler(system)
    scheduler.create(namespace, pod("high", GPU_GIB, "high"))
    # Two whose GPUs differ: what kube-scheduler, which counts the node's sum, may well choose.
    apart = [next(name for name in before if before[name] == gpu) for gpu in sorted(set(before.values()))[:2]]
    scheduler.makes_room(namespace, "high", "node-1", apart)
    gone = before.keys() - staying(system, namespace)
    assert len(gone) == 2
    assert {before[name] for name in gone} == {
        system.pod(namespace, "high")["metadata"]["annotations"]["devices.gpushare.dev/c0"]
    }
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)


def test_a_node_where_no_gpu_can_be_freed_loses_no_one(system: System, namespace: str, classes: None) -> None:
    """Pods of the same priority hold one half of every GPU: pushing out all others would not make a whole one."""
    mates = [pod(f"mate-{i}", HALF, "high", team="mates") for i in range(GPUS_PER_NODE)]
    for mate in mates:  # the policy spread would share a GPU while the controller still counts an earlier test's pod
        mate["metadata"]["annotations"] = {names.ANNOTATION_OTHER_GPU: "team=mates"}
    system.create(namespace, *mates)
    system.all_running(namespace, GPUS_PER_NODE)
    system.create(namespace, *[pod(f"low-{i}", HALF, "low") for i in range(GPUS_PER_NODE)])
    system.all_running(namespace, 2 * GPUS_PER_NODE)
    scheduler = Scheduler(system)
    scheduler.create(namespace, pod("waits", GPU_GIB, "high"))
    if scheduler.asks:
        system.eventually("it was tried", lambda: "preemption: " in "".join(system.events(namespace, "waits")))
    assert scheduler.victims(namespace, "waits", "node-1", ["low-0", "low-1"]) == []
    assert sum(is_ready(one) for one in system.pods(namespace)) == 2 * GPUS_PER_NODE


def test_pods_that_a_disruption_budget_protects_go_last(system: System, namespace: str, classes: None) -> None:
    version = system.cluster.version
    group = "policy/v1" if (version.major, version.minor) >= (1, 21) else "policy/v1beta1"
    budget = {
        "apiVersion": group,
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "protected"},
        "spec": {"minAvailable": "100%", "selector": {"matchLabels": {"team": "protected"}}},
    }
    system.create(namespace, budget)
    fillers = [pod(f"full-{i}", GPU_GIB, "high") for i in range(GPUS_PER_NODE - 2)]
    system.create(namespace, *fillers)
    system.all_running(namespace, len(fillers))
    system.create(namespace, pod("guarded", GPU_GIB, "low", team="protected"))
    system.all_running(namespace, len(fillers) + 1)
    system.create(namespace, pod("open", GPU_GIB, "middle"))
    system.all_running(namespace, len(fillers) + 2)
    path = f"/apis/{group}/namespaces/{namespace}/poddisruptionbudgets/protected"
    system.eventually("the budget is counted", lambda: "disruptionsAllowed" in system.api.get(path).get("status", {}))
    scheduler = Scheduler(system)
    scheduler.create(namespace, pod("high", GPU_GIB, "high"))
    scheduler.makes_room(namespace, "high", "node-1", ["open"])
    assert staying(system, namespace) == {"high", "guarded", *(one["metadata"]["name"] for one in fillers)}
