"""P1 and P2: 200 pods at once, in every disturbance that a cluster knows."""

import threading
from collections.abc import Callable

import pytest

from tests.e2e import checks, disturb
from tests.e2e.system import Json, Share, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
COUNT = 200


def run_disturbed(
    system: System,
    namespace: str,
    documents: list[Json],
    disturbance: Callable[[threading.Event], None],
    count: int | None = None,
) -> list[Json]:
    """Create all pods at once, disturb until all run, then look at every container; statuses of pods that failed."""
    failed: list[BaseException] = []
    done = threading.Event()

    def disturbing() -> None:
        try:
            disturbance(done)
        except BaseException as error:  # noqa: BLE001 - reported by the test's thread
            failed.append(error)

    thread = threading.Thread(target=disturbing)
    system.create(namespace, *documents)
    thread.start()
    try:
        thread.join(600)
        pods = system.all_running(namespace, count or len(documents), timeout_s=420)
    finally:
        done.set()
        thread.join()
    assert not failed, failed
    rejected = system.delete_failed(namespace)
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_books_equal_the_pods(system)
    return rejected


def equal_pods(count: int = COUNT) -> list[Json]:
    return [Share(name=f"p{i:03}").document() for i in range(count)]


def replica_set(share: Share, replicas: int) -> Json:
    labels = {"app": share.name}
    template = {"metadata": {"labels": labels}, "spec": share.document()["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": share.name}, "spec": spec}


def test_200_equal_pods_at_once_get_exactly_their_gpus(system: System, namespace: str) -> None:
    run_disturbed(system, namespace, equal_pods(), lambda _done: None)


def test_pods_of_two_and_three_gpu_containers_get_exactly_their_gpus(system: System, namespace: str) -> None:
    shares = [Share(name=f"two-{i:02}", gib=(1, 1)) for i in range(40)]
    shares += [Share(name=f"three-{i:02}", gib=(1, 1, 1, None)) for i in range(40)]
    run_disturbed(system, namespace, [share.document() for share in shares], lambda _done: None)


def test_a_kubelet_restart_in_the_middle_changes_nothing(system: System, namespace: str) -> None:
    def restart(_done: threading.Event) -> None:
        for node in system.cluster.nodes:
            disturb.wait_for_bound(system, namespace, 40)
            disturb.restart_kubelet(node)

    run_disturbed(system, namespace, equal_pods(), restart)


def test_twenty_controllers_killed_in_the_middle_change_nothing(system: System, namespace: str) -> None:
    def kill(done: threading.Event) -> None:
        for _ in range(20):
            disturb.kill_leader(system)
            disturb.wait_for_new_leader(system, done)

    run_disturbed(system, namespace, equal_pods(), kill)


def test_a_plugin_restart_in_the_middle_changes_nothing(system: System, namespace: str) -> None:
    """The kubelet itself fails pods that it admits while no plugin is registered; their ReplicaSet makes new ones."""

    def restart(_done: threading.Event) -> None:
        for node in system.cluster.nodes:
            disturb.wait_for_bound(system, namespace, 40)
            disturb.kill_plugin(system, node.name)

    rejected = run_disturbed(system, namespace, [replica_set(Share(name="p"), COUNT)], restart, count=COUNT)
    assert {status["reason"] for status in rejected} <= {"UnexpectedAdmissionError"}
    assert not any(status.get("containerStatuses") for status in rejected), "none of them ever started"
