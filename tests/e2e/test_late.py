"""Pods that came to their node past the extender: bound late where they fit, or told why not; no one starts unbound."""

import re

from gpushare import names
from tests.e2e import checks
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import PROMPT_S, Json, System, is_ready, make_pod, replica_set


def test_a_pod_with_a_preset_node_gets_its_gpu_before_it_starts(system: System, namespace: str) -> None:
    [pod] = checks.run_and_see_their_gpus(system, namespace, make_pod("preset", 3, nodeName="node-1"))
    assert pod["metadata"]["annotations"][names.ANNOTATION_LATE] == "true"
    checks.the_controllers_ledger_equals_the_pods(system)


def bind(system: System, pod: Json, node: str) -> None:
    """As a scheduler that knows nothing of GPUs: a plain Binding."""
    reference = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": reference, "target": target}
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{reference['name']}/binding"
    system.api.create(path, binding, timeout_s=30)


def test_a_gang_of_another_scheduler_gets_the_gpus_that_there_are(system: System, namespace: str) -> None:
    """Volcano and KAI count the sum of a node: five pods of 14 GiB fit there, and four of them on a GPU each."""
    group, half = {"scheduling.k8s.io/group-name": "gang"}, GPU_GIB // 2 + 1
    gang = [make_pod(f"gang-{i}", half, annotations=group, schedulerName="volcano") for i in range(GPUS_PER_NODE + 1)]
    system.create_complete(namespace, *gang)
    for each in system.pods(namespace):
        bind(system, each, "node-2")

    system.eventually("four run", lambda: len(system.ready_pods(namespace)) == GPUS_PER_NODE)
    [rest] = [each for each in system.pods(namespace) if not is_ready(each)]
    words = re.compile(rf"GpuShareWaiting: it came to node-2 without GPUs .* needs {half} GiB on one GPU")
    name = rest["metadata"]["name"]
    system.eventually("told why", lambda: words.search("\n".join(system.events(namespace, name))))
    checks.no_gpu_is_over_its_memory(system)
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.ready_pods(namespace))


def test_a_bypassed_pod_without_room_waits_with_the_numbers_and_never_over_commits(
    system: System, namespace: str
) -> None:
    """Every GPU has 6 GiB left: the node's sum is enough for 10, no GPU is."""
    system.run(namespace, *[make_pod(f"full-{i}", GPU_GIB - 6, node="node-1") for i in range(GPUS_PER_NODE)])
    system.create(namespace, make_pod("late", 10, nodeName="node-1"))
    system.wait_told(namespace, "late", "needs 10 GiB on one GPU; free per GPU on node-1: 6, 6, 6, 6 GiB")
    assert not is_ready(system.pod(namespace, "late"))
    checks.no_gpu_is_over_its_memory(system)

    system.delete(namespace, "full-0")
    pods = system.running(namespace, "late", timeout_s=PROMPT_S)
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    checks.no_gpu_is_over_its_memory(system)


def test_a_workload_whose_template_has_another_systems_annotations_is_recreated(system: System) -> None:
    """Copied from a pod that ran there, or forged, and created where the webhook is not asked, as here."""
    where, app = "kube-system", "app=copied"
    forged = {names.ALIYUN_IDX: "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    system.create(where, replica_set(make_pod("copied", annotations=forged)))
    try:
        [first] = system.eventually("a pod", lambda: system.pods(where, app))
        name = first["metadata"]["name"]
        refused = "was given its GPUs by another system, but its devices by this plugin"
        system.wait_told(where, name, refused, "it is deleted now, so that its controller recreates it")

        def another() -> bool:
            return any(pod["metadata"]["name"] != name for pod in system.pods(where, app))

        system.eventually("recreated", another)
    finally:
        system.cluster.kubectl("delete", "replicaset", "-n", where, "copied", "--wait=false")
        system.eventually("gone", lambda: not system.pods(where, app))
    checks.the_controllers_ledger_equals_the_pods(system)
