"""What the leading controller sends and holds: one request for each pod, and memory until containers have ended."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import pytest

from controller.reconcile import placeholders
from gpushare import names
from gpushare.kube import api as kube
from localcluster import installation
from tests.e2e import checks, disturb
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import PROMPT_S, Json, System, make_pod, restarts

CONTROLLER: Final = f"system:serviceaccount:{names.NAMESPACE}:{names.SERVICE_ACCOUNT_CONTROLLER}"
PLACEHOLDERS: Final = installation.ROOT / "manifests" / "placeholders" / "objects.yaml"
SHORT_LIVED: Final = 40
UNITS: Final = 15
"""More than half a GPU, so that four pods fill a node."""


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


def test_the_controller_sends_one_request_for_each_pod(system: System, namespace: str) -> None:
    system.run(namespace, *[make_pod(f"p{i:02}") for i in range(20)])
    assert calls(system, namespace) == {"create/pods/binding": 20}


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


@pytest.fixture
def component(system: System) -> Iterator[None]:
    """What the component `placeholders` adds; its setting is in the installation's."""
    system.cluster.kubectl("apply", "-f", str(PLACEHOLDERS))
    yield
    system.cluster.kubectl("delete", "--wait=false", "-f", str(PLACEHOLDERS))


def unscheduled(pod: Json) -> bool:
    """Whether kube-scheduler has given up on it, which is what an autoscaler looks for."""
    found = {each["type"]: each for each in pod["status"].get("conditions", ())}
    return bool(found.get("PodScheduled", {}).get("reason") == "Unschedulable")


@pytest.mark.usefixtures("component")
def test_a_node_is_asked_for_until_there_is_room(system: System, namespace: str) -> None:
    """A pod fits the sums of nodes and no GPU: 5 GiB stay free on every one."""
    count = GPUS_PER_NODE * len(system.cluster.nodes)
    system.run(namespace, *[make_pod(f"big-{i}", GPU_GIB - 5) for i in range(count)])
    system.create(namespace, make_pod("waits", 10))

    def asked() -> list[Json]:
        return [pod for pod in system.pods(names.PLACEHOLDERS) if unscheduled(pod)]

    [there] = system.eventually("a placeholder that kube-scheduler cannot place", asked)
    name = there["metadata"]["name"]
    assert name == f"for-{system.pod(namespace, 'waits')['metadata']['uid']}"
    assert there["spec"]["priority"] == -1
    read = placeholders.read(there)
    assert read is not None
    assert read.nodes == {node.name for node in system.cluster.nodes}
    system.wait_told(namespace, "waits", "is enough in total", f"asked for by the pod {names.PLACEHOLDERS}/{name}")

    system.delete(namespace, "big-0")
    system.running(namespace, "waits", timeout_s=PROMPT_S)
    system.eventually("the placeholder is gone", lambda: not system.pods(names.PLACEHOLDERS))


def serves(system: System) -> bool:
    try:
        answer = system.inspect()
        return bool(answer["nodes"]) and "error" not in answer
    except OSError:
        return False


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
    system.eventually("the new leader serves", lambda: serves(system))
    checks.the_controllers_ledger_equals_the_pods(system)
    checks.run_and_see_their_gpus(system, namespace, make_pod("after"))


def test_a_leader_that_lost_its_lease_follows_again_without_a_restart(system: System, namespace: str) -> None:
    """The kubelet delays restarts by up to five minutes, and under overload all replicas lose the lead."""

    def restarted() -> int:
        return sum(sum(restarts(pod).values()) for pod in disturb.component_pods(system, "controller"))

    system.eventually("a controller serves", lambda: serves(system))
    before, held = restarted(), disturb.leader(system)
    for number in range(3):
        system.api.patch(disturb.LEASE, {"spec": {"holderIdentity": f"thief-{number}", "renewTime": None}})
        system.eventually("another term", lambda: disturb.leader(system).startswith("gpushare-controller"))
        assert disturb.leader(system) != held
        held = disturb.leader(system)
        system.eventually("it serves", lambda: serves(system))
    assert restarted() == before
    checks.run_and_see_their_gpus(system, namespace, make_pod("after"))
