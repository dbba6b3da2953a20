"""A node that loses the API server, as nodes at the edge do."""

from pathlib import Path

import pytest

from gpushare import names
from gpushare.identity import GpuUuid
from tests.e2e import checks, disturb
from tests.e2e.cut_off import cut_off, reachable_by_service
from tests.e2e.system import Json, Share, System, allocated

pytestmark = pytest.mark.e2e
NODE = "node-1"


def pinned(name: str, gib: int) -> Json:
    document = Share(name=name, gib=(gib,)).document()
    document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODE}
    return document


def is_ready(system: System) -> bool:
    conditions = system.api.get(f"/api/v1/nodes/{NODE}")["status"]["conditions"]
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def told(pod: Json) -> set[tuple[int, str]]:
    """Each process of a pod that knows its GPUs, by the process itself: no API server is asked."""
    found = set()
    for pid in disturb.processes_of(pod):
        try:
            listed = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        variables = dict(entry.partition("=")[::2] for entry in listed)
        gpus = variables.get(names.ENV_GRANTED_DEVICES) or variables.get(names.ENV_VISIBLE_DEVICES)
        if gpus:
            found.add((pid, gpus))
    return found


def test_a_node_without_the_api_server_keeps_and_restarts_its_containers_and_comes_back(
    system: System, namespace: str
) -> None:
    with reachable_by_service(system, system.cluster.node(NODE)):
        system.create_complete(namespace, pinned("stays", 2), pinned("dies", 3), pinned("leaves", 4))
        before = {pod["metadata"]["name"]: pod for pod in system.all_running(namespace, 3)}
        [granted] = allocated(before["dies"])["c0"]
        killed = {pid for pid, _ in told(before["dies"])}
        assert killed
        with cut_off(system, system.cluster.node(NODE)):
            disturb.kill_containers(before["dies"])
            again = system.eventually(
                "the container runs again",
                lambda: {(pid, gpus) for pid, gpus in told(before["dies"]) if pid not in killed},
            )
            assert {gpus for _, gpus in again} == {granted}
            system.eventually("the node counts as lost", lambda: not is_ready(system))
            system.cluster.kubectl("delete", "pod", "-n", namespace, "leaves", "--wait=false")
            assert told(before["leaves"]), "no one has told the node"
            held = system.ledgers()[before["leaves"]["spec"]["nodeName"]].used_mib
            assert held[GpuUuid(allocated(before["leaves"])["c0"][0])] >= 4 * 1024, "its memory is not given away"
        system.eventually("the node is back", lambda: is_ready(system))
        system.eventually("what was deleted is gone", lambda: len(system.pods(namespace)) == 2)
        assert not told(before["leaves"])
        system.eventually("all plugins are ready", lambda: disturb.plugins_ready(system))
    pods = system.running(namespace, "stays", "dies")
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}
    assert restarts == {"stays": 0, "dies": 1}
    assert [pod["metadata"]["uid"] for pod in pods] == [before[name]["metadata"]["uid"] for name in ("stays", "dies")]
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    checks.the_controllers_ledger_equals_the_pods(system)
