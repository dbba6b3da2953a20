"""P3 and P6: a pod that fits nowhere is told why, with numbers, and runs as soon as there is room."""

import re

import pytest

from gpushare import names
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import PROMPT_S, Share, System, is_ready

pytestmark = pytest.mark.e2e


def fill(system: System, namespace: str) -> int:
    """One pod on every GPU that leaves 5 GiB free; how many."""
    count = GPUS_PER_NODE * len(system.cluster.nodes)
    system.create(namespace, *[Share(name=f"big-{i}", gib=(GPU_GIB - 5,)).document() for i in range(count)])
    system.all_running(namespace, count)
    return count


def numbers(node: str, free: int) -> str:
    each = ", ".join([str(free)] * GPUS_PER_NODE)
    return f"needs 10 GiB on one GPU; free per GPU on {node}: {each} GiB"


def test_a_pod_that_fits_no_gpu_is_told_the_numbers_and_runs_when_another_finishes(
    system: System, namespace: str
) -> None:
    count = fill(system, namespace)
    system.create(namespace, Share(name="waits", gib=(10,)).document())
    expected = numbers(system.cluster.nodes[0].name, 5)
    system.eventually("an event with the numbers", lambda: expected in "".join(system.events(namespace, "waits")))
    assert system.pod(namespace, "waits")["status"]["phase"] == "Pending"

    system.cluster.kubectl("delete", "pod", "-n", namespace, "big-0", "--wait=false")
    system.eventually("the pod that waited runs", lambda: is_ready(system.pod(namespace, "waits")), timeout_s=PROMPT_S)
    # The memory is free when the containers have ended, which the kubelet tells before it removes the pod.
    system.eventually("only the others are left", lambda: len(system.pods(namespace)) == count)


def test_a_pod_too_big_for_every_node_is_told_the_numbers_too(system: System, namespace: str) -> None:
    """kube-scheduler's own resource check refuses it before it asks the extender."""
    huge = GPU_GIB * GPUS_PER_NODE + 1
    system.create(namespace, Share(name="huge", gib=(huge,)).document())
    pattern = re.compile(rf"needs {huge} GiB on one GPU; free per GPU on node-1: .* GiB in all\)")
    system.eventually("an event with the numbers", lambda: pattern.search("".join(system.events(namespace, "huge"))))


def test_memory_is_given_back_when_containers_have_ended_not_when_deletion_is_asked(
    system: System, namespace: str
) -> None:
    slow = Share(name="slow", gib=(GPU_GIB,)).document()
    slow["spec"]["terminationGracePeriodSeconds"] = 8
    slow["spec"]["containers"][0]["command"] = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    system.create(namespace, slow)
    system.all_running(namespace, 1)
    system.cluster.kubectl("delete", "pod", "-n", namespace, "slow", "--wait=false")
    system.eventually("deletion asked", lambda: system.pod(namespace, "slow")["metadata"].get("deletionTimestamp"))
    held = [name for name, ledger in system.ledgers().items() if ledger.used_mib]
    used = sum(dev["usedGPU"] for node in system.inspect()["nodes"] for dev in node["devs"])
    assert (len(held), used) == (1, GPU_GIB)
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
