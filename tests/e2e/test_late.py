"""Pods that came to their node past the extender: bound late where they fit, or told why not; no one starts unbound."""

import pytest

from gpushare import names
from tests.e2e import checks
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import PROMPT_S, Json, Share, System, is_ready, replica_set

pytestmark = pytest.mark.e2e


def preset(name: str, gib: int, node: str = "node-1") -> Json:
    """As controllers do that choose the node themselves."""
    document = Share(name=name, gib=(gib,)).document()
    document["spec"]["nodeName"] = node
    return document


def test_a_pod_with_a_preset_node_gets_its_gpu_before_it_starts(system: System, namespace: str) -> None:
    system.create(namespace, preset("preset", 3))
    (pod,) = system.all_running(namespace, 1)
    assert pod["metadata"]["annotations"][names.ANNOTATION_LATE] == "true"
    checks.every_container_sees_exactly_its_gpus(system, namespace, [pod])
    checks.the_controllers_ledger_equals_the_pods(system)


def test_a_pod_of_another_scheduler_gets_its_gpu_too(system: System, namespace: str) -> None:
    """A scheduler that knows nothing of GPUs sends a plain Binding."""
    document = Share(name="foreign", gib=(3,)).document()
    document["spec"]["schedulerName"] = "somebody-else"
    system.create(namespace, document)
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-2"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "foreign"}, "target": target}
    system.api.create(f"/api/v1/namespaces/{namespace}/pods/foreign/binding", binding)
    (pod,) = system.all_running(namespace, 1)
    assert pod["spec"]["nodeName"] == "node-2"
    checks.every_container_sees_exactly_its_gpus(system, namespace, [pod])


def test_a_bypassed_pod_without_room_waits_with_the_numbers_and_never_over_commits(
    system: System, namespace: str
) -> None:
    """Every GPU has 6 GiB left: the node's sum is enough for 10, no GPU is."""
    fillers = [Share(name=f"full-{i}", gib=(GPU_GIB - 6,)).document() for i in range(GPUS_PER_NODE)]
    for filler in fillers:
        filler["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    system.create(namespace, *fillers)
    system.all_running(namespace, GPUS_PER_NODE)
    system.create(namespace, preset("late", 10))
    expected = "needs 10 GiB on one GPU; free per GPU on node-1: 6, 6, 6, 6 GiB"
    system.eventually("an event with the numbers", lambda: expected in "".join(system.events(namespace, "late")))
    assert not is_ready(system.pod(namespace, "late"))
    checks.no_gpu_is_over_its_memory(system)

    system.cluster.kubectl("delete", "pod", "-n", namespace, "full-0", "--wait=false")
    system.eventually("it runs", lambda: is_ready(system.pod(namespace, "late")), timeout_s=PROMPT_S)
    checks.every_container_sees_exactly_its_gpus(system, namespace, [system.pod(namespace, "late")])
    checks.no_gpu_is_over_its_memory(system)


def test_a_workload_whose_template_has_another_systems_annotations_is_recreated(system: System) -> None:
    """Copied from a pod that ran there, or forged, and created where the webhook is not asked, as here."""
    pod = Share(name="copied", annotations={names.ALIYUN_IDX: "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}).document()
    system.create("kube-system", replica_set(pod))
    try:
        [first] = system.eventually("a pod", lambda: system.pods("kube-system", "app=copied"))
        name = first["metadata"]["name"]
        refused = "was given its GPUs by another system, but its devices by this plugin"
        system.eventually("refused", lambda: refused in "".join(system.events("kube-system", name)))
        recreated = "it is deleted now, so that its controller recreates it"
        system.eventually("told", lambda: recreated in "".join(system.events("kube-system", name)))

        def another() -> bool:
            return any(pod["metadata"]["name"] != name for pod in system.pods("kube-system", "app=copied"))

        system.eventually("recreated", another)
    finally:
        system.cluster.kubectl("delete", "replicaset", "-n", "kube-system", "copied", "--wait=false")
        system.eventually("gone", lambda: not system.pods("kube-system", "app=copied"))
    checks.the_controllers_ledger_equals_the_pods(system)
