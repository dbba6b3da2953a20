"""P3: memory is given back when containers have ended."""

import pytest

from gpushare import names
from tests.e2e import disturb
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import Share, System

pytestmark = pytest.mark.e2e


def test_memory_is_given_back_when_containers_have_ended_not_when_deletion_is_asked(
    system: System, namespace: str
) -> None:
    slow = Share(name="slow", gib=(GPU_GIB,)).document()
    slow["spec"]["terminationGracePeriodSeconds"] = 600
    slow["spec"]["containers"][0]["command"] = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    system.create(namespace, slow)
    system.all_running(namespace, 1)
    system.cluster.kubectl("delete", "pod", "-n", namespace, "slow", "--wait=false")
    system.eventually("deletion asked", lambda: system.pod(namespace, "slow")["metadata"].get("deletionTimestamp"))
    held = [name for name, ledger in system.ledgers().items() if ledger.used_mib]
    used = sum(dev["usedGPU"] for node in system.inspect()["nodes"] for dev in node["devs"])
    assert (len(held), used) == (1, GPU_GIB)
    disturb.kill_containers(system.pod(namespace, "slow"))
    system.eventually("gone", lambda: not system.pods(namespace))
    system.eventually(
        "memory given back",
        lambda: not any(dev["usedGPU"] for node in system.inspect()["nodes"] for dev in node["devs"]),
    )


def test_a_finished_pod_gives_its_memory_back(system: System, namespace: str) -> None:
    """Jobs: the object stays, its memory does not."""
    count = GPUS_PER_NODE * len(system.cluster.nodes)
    done = []
    for i in range(count + 1):
        pod = Share(name=f"job-{i}", gib=(GPU_GIB,)).document()
        pod["spec"]["restartPolicy"] = "Never"
        pod["spec"]["containers"][0]["command"] = ["sh", "-c", "/print-devices; env | sort; sleep 3"]
        done.append(pod)
    system.create(namespace, *done)

    def finished() -> bool:
        return [pod["status"]["phase"] for pod in system.pods(namespace)] == ["Succeeded"] * (count + 1)

    system.eventually("all jobs done, one after another's end", finished)
    assert all(names.ANNOTATION_ALLOCATION in pod["metadata"]["annotations"] for pod in system.pods(namespace))
