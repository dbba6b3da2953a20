"""P1 and P2: many pods at once, in every disturbance that a cluster knows.

80 pods keep a node's kubelet and the controller as busy as 200 do, and in the middle of 40 there is time for every
disturbance; the numbers that no one needs twice are `make soak`.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from gpushare import names
from localcluster.node import Node
from tests.e2e import checks, disturb
from tests.e2e.system import Json, System, make_pod, replica_set

LARGE = pytest.param(200, marks=pytest.mark.soak)
CONTROLLER: Final = f"system:serviceaccount:{names.NAMESPACE}:{names.SERVICE_ACCOUNT_CONTROLLER}"
RESTARTS: Final[Mapping[str, Callable[[System, Node], None]]] = {
    "kubelet": lambda _system, node: disturb.only_restart_kubelet(node),
    "plugin": lambda system, node: disturb.kill_plugin(system, node.name),
}


def run_disturbed(
    system: System,
    namespace: str,
    documents: list[Json],
    disturbance: Callable[[threading.Event], None],
    count: int | None = None,
) -> list[Json]:
    """Create all pods at once, disturb until all run, then look at every container; statuses of pods that failed."""
    system.create_complete(namespace, *documents)
    with disturb.Background(disturbance) as disturbing:
        disturbing.join(600)
        pods = system.all_running(namespace, count or len(documents))
    rejected = [pod for pod in system.pods(namespace) if pod["status"].get("phase") == "Failed"]
    system.forget(rejected)  # they may have no logs
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    checks.the_ledger_is_right(system)
    return [pod["status"] for pod in rejected]


def calls(system: System, namespace: str) -> Counter[str]:
    """Requests of the controller about a namespace's pods, by verb and resource, from the API server's audit log."""
    found: Counter[str] = Counter()
    written, _, _ = system.cluster.audit_log.read_text().rpartition("\n")  # the API server writes meanwhile
    for line in written.splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef") or {}
        # A request that was not authenticated, with the token of a pod that is gone, names no user.
        if entry["user"].get("username") != CONTROLLER or reference.get("namespace") != namespace:
            continue
        if entry["stage"] == "ResponseComplete":
            found["/".join(filter(None, [entry["verb"], reference["resource"], reference.get("subresource")]))] += 1
    return found


@pytest.mark.parametrize("count", [80, LARGE])
def test_equal_pods_at_once_get_exactly_their_gpus(system: System, namespace: str, count: int) -> None:
    """The controller sends one request for each of them, and reads those few that a busy machine's watch shows late."""
    run_disturbed(system, namespace, [make_pod(f"p{i:03}") for i in range(count)], lambda _done: None)
    sent = calls(system, namespace)
    assert sent.pop("get/pods", 0) <= count // 10
    assert sent == {"create/pods/binding": count}


@pytest.mark.parametrize("each", [20, pytest.param(40, marks=pytest.mark.soak)])
def test_pods_of_two_and_three_gpu_containers_get_exactly_their_gpus(system: System, namespace: str, each: int) -> None:
    pods = [make_pod(f"two-{i:02}", 1, 1) for i in range(each)]
    pods += [make_pod(f"three-{i:02}", 1, 1, 1, None) for i in range(each)]
    run_disturbed(system, namespace, pods, lambda _done: None)


@pytest.mark.parametrize(("kills", "count"), [(3, 40), pytest.param(20, 200, marks=pytest.mark.soak)])
def test_leaders_killed_and_frozen_in_the_middle_change_nothing(
    system: System, namespace: str, kills: int, count: int
) -> None:
    """The state machine of `tests/unit/controller` has every interleaving; here are real processes and connections."""

    def disturbance(done: threading.Event) -> None:
        for number in range(kills):
            disturb.wait_for_bound(system, namespace, number * count // kills)
            if number % 2:
                with disturb.frozen_leader(system) as pod:
                    disturb.wait_for_new_leader(system, done, pod["metadata"]["name"])
            else:
                disturb.wait_for_new_leader(system, done, disturb.kill_leader(system))

    run_disturbed(system, namespace, [make_pod(f"p{i:03}") for i in range(count)], disturbance)


@pytest.mark.parametrize("count", [40, LARGE])
@pytest.mark.parametrize("restarted", RESTARTS)
def test_a_restart_in_the_middle_changes_nothing(system: System, namespace: str, restarted: str, count: int) -> None:
    """On one node after another. Until the plugin's first list has come, a kubelet fails the pods that it admits; their
    ReplicaSet makes new ones."""
    ran: set[str] = set()

    def disturbance(_done: threading.Event) -> None:
        for number, node in enumerate(system.cluster.nodes, 1):
            disturb.wait_for_bound(system, namespace, number * count // 4)
            ran.update(system.eventually("some run", lambda: ready(system, namespace)))
            RESTARTS[restarted](system, node)

    rejected = run_disturbed(system, namespace, [replica_set(make_pod("p"), count)], disturbance, count)
    # Not by the plugin's start check: a container that the kubelet was creating when it ended may have a status.
    assert {status["reason"] for status in rejected} <= {"UnexpectedAdmissionError"}, rejected
    assert ran <= ready(system, namespace), "what had started before goes on"


def ready(system: System, namespace: str) -> set[str]:
    """UIDs of the pods whose containers run."""
    return {pod["metadata"]["uid"] for pod in system.ready_pods(namespace)}
