"""What the controller holds until containers have ended, through changes of leader, and pods that bypassed it."""

import contextlib
import re
import threading
import time
from datetime import datetime, timedelta
from typing import Final

import pytest

from gpushare import names
from gpushare.kube import api as kube
from localcluster import installation
from tests.e2e import checks, disturb
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import PROMPT_S, Json, System, allocated, is_ready, make_pod, replica_set, shown_by_inspect

SEEDS: Final = installation.ROOT / "tests" / "seeds"
SHORT_LIVED: Final = 40
NO_LEADER_S: Final = 60
"""Twice the time for which a lease lasts and a machine with much to do is late."""
UNITS: Final = 15
"""More than half a GPU, so that four pods fill a node."""


def used(system: System) -> int:
    """Units of all GPUs, by the controller."""
    return sum(checks.ledger_of_the_controller(system).values())


def test_memory_is_given_back_when_containers_have_ended_not_when_deletion_is_asked(
    system: System, namespace: str
) -> None:
    slow = make_pod(
        "slow", GPU_GIB, command="trap '' TERM; while :; do sleep 1; done", terminationGracePeriodSeconds=600
    )
    system.run(namespace, slow)
    system.delete(namespace, "slow")
    system.eventually("deletion asked", lambda: system.pod(namespace, "slow")["metadata"].get("deletionTimestamp"))
    held = [name for name, ledger in system.ledgers().items() if ledger.used_mib]
    assert (len(held), used(system)) == (1, GPU_GIB)
    disturb.kill_containers(system.pod(namespace, "slow"))
    system.eventually("gone", lambda: not system.pods(namespace))
    system.eventually("memory given back", lambda: not used(system))


def test_a_finished_pod_gives_its_memory_back(system: System, namespace: str) -> None:
    """Jobs: the object stays, its memory does not."""
    count = GPUS_PER_NODE * len(system.cluster.nodes) + 1
    job = "/print-devices; env | sort; sleep 3"
    system.create(namespace, *[make_pod(f"job-{i}", GPU_GIB, command=job, restartPolicy="Never") for i in range(count)])

    def finished() -> bool:
        return [pod["status"]["phase"] for pod in system.pods(namespace)] == ["Succeeded"] * count

    system.eventually("all jobs done, one after another's end", finished)
    assert all(names.ANNOTATION_ALLOCATION in pod["metadata"]["annotations"] for pod in system.pods(namespace))


def test_a_quota_of_one_pod_never_fills_a_node_with_pods_that_are_gone(system: System, namespace: str) -> None:
    """One pod at a time, deleted when it is bound. The watch may not have shown the end of the last one yet."""
    hard = {f"requests.{names.GPU_MEM}": UNITS}
    system.create(
        namespace, {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": hard}}
    )
    quota = f"/api/v1/namespaces/{namespace}/resourcequotas/one"
    system.eventually("the quota is counted", lambda: system.api.get(quota)["status"].get("used"))
    counted = [counted_with(system, namespace, f"short-{number}") for number in range(SHORT_LIVED)]
    assert max(counted) <= 2, f"{counted} pods at a time"


def counted_with(system: System, namespace: str, name: str) -> int:
    """Pods that the controller counts on the node when this one is bound there, which is deleted then."""
    pod = make_pod(name, UNITS, node="node-1")

    def is_created() -> bool:
        with contextlib.suppress(kube.ForbiddenError):  # the quota still counts the last one
            return bool(system.api.create(f"/api/v1/namespaces/{namespace}/pods", pod))
        return False

    system.eventually("the quota has room", is_created)
    system.eventually("it is bound", lambda: system.pod(namespace, name)["spec"].get("nodeName"))
    [node] = [node for node in system.inspect()["nodes"] if node["name"] == "node-1"]
    system.delete(namespace, name, force=True)
    return len({held["name"] for device in node["devs"] for held in device["pods"] if held["namespace"] == namespace})


def test_the_other_replica_serves_once_the_lease_of_a_dead_leader_has_ended(system: System, namespace: str) -> None:
    system.run(namespace, *[make_pod(f"p{i}") for i in range(8)])
    system.eventually("two controllers", lambda: len(disturb.component_pods(system, "controller")) == 2)
    before = system.api.get(disturb.LEASE)["spec"]
    disturb.kill_leader(system)
    system.eventually("another leader", lambda: disturb.leader(system) not in {"", before["holderIdentity"]})
    after = system.api.get(disturb.LEASE)["spec"]
    waited = datetime.fromisoformat(after["acquireTime"]) - datetime.fromisoformat(before["renewTime"])
    assert waited >= timedelta(seconds=before["leaseDurationSeconds"])
    assert after["leaseTransitions"] > before["leaseTransitions"]
    checks.the_controllers_ledger_equals_the_pods(system)
    checks.run_and_see_their_gpus(system, namespace, make_pod("after"))


def test_a_roll_out_of_the_controllers_ends_and_pods_are_bound_meanwhile(system: System, namespace: str) -> None:
    """Both are ready, and the Service leads to one: no tool waits forever, and no drain is refused forever."""
    rollout, deployment = ("-n", names.NAMESPACE, "rollout"), f"deployment/{names.CONTROLLER}"
    before = {pod["metadata"]["name"] for pod in disturb.component_pods(system, "controller")}
    gaps = [0.0]

    def look(done: threading.Event) -> None:
        served = time.monotonic()
        while not done.wait(0.2):
            if disturb.served_by(system):
                gaps.append(time.monotonic() - served)
                served = time.monotonic()
        gaps.append(time.monotonic() - served)

    with disturb.Background(look):
        system.cluster.kubectl(*rollout, "restart", deployment)
        system.create(namespace, *[make_pod(f"p{i}") for i in range(8)])
        system.cluster.kubectl(*rollout, "status", deployment, "--timeout=120s", timeout_s=150)
        ready = {pod["metadata"]["name"] for pod in disturb.component_pods(system, "controller") if is_ready(pod)}
        assert (len(ready), ready & before) == (2, set())
        system.eventually("one is served", lambda: len(ready & {*disturb.served_by(system)}) == 1)
    assert max(gaps) < NO_LEADER_S, "the Service led nowhere"
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.all_running(namespace, 8))
    assert len(disturb.served_by(system)) == 1


@pytest.mark.parametrize("seed", ["gpu-pod-vectoradd", "gpu-pod-whole"])
def test_a_whole_gpu_beside_a_shared_one(system: System, namespace: str, seed: str) -> None:
    """As the guides ask NVIDIA's plugin: a GPU that no one else is on."""
    for name in ("gpu-share-pod1", seed):
        system.cluster.kubectl("apply", "-n", namespace, "-f", str(SEEDS / f"{name}.yaml"))
    pods = system.running(namespace, "gpu-share-pod1", "gpu-pod")
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    [[shared], [whole]] = (gpus for pod in pods for gpus in allocated(pod).values())
    assert shared != whole
    assert sum(shown_by_inspect(system, namespace)["gpu-pod"].values()) == GPU_GIB * 1024
    checks.the_ledger_is_right(system)


def test_a_pod_with_a_preset_node_gets_its_gpu_before_it_starts(system: System, namespace: str) -> None:
    [pod] = checks.run_and_see_their_gpus(system, namespace, make_pod("preset", 3, nodeName="node-1"))
    assert pod["metadata"]["annotations"][names.ANNOTATION_LATE] == "true"
    checks.the_controllers_ledger_equals_the_pods(system)


def bind(system: System, pod: Json, node: str) -> None:
    """As a scheduler that knows nothing of GPUs: a plain Binding."""
    reference = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": reference, "target": target}
    system.api.create(kube.pod_path(reference["namespace"], reference["name"], "binding"), binding, timeout_s=30)


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
