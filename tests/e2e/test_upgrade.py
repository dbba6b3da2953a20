"""An upgrade from the version before, and back, with pods that run all the time (docs/operate.md#upgrades)."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from gpushare import names
from gpushare.wire import hand_over
from localcluster.installation import LOCAL, Tree
from tests.e2e import checks, former, former_version, seen
from tests.e2e.administrator import Administrator
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.seen import Grants, Seen
from tests.e2e.system import Json, Share, System

pytestmark = pytest.mark.e2e
NODES = ("node-1", "node-2")
WITH_RESERVED = f"gpus: [{{model: Simulated, memoryMiB: {GPU_GIB * 1024}, count: {GPUS_PER_NODE}, reservedMiB: 600}}]"
GATE = "gpushare.test/gate"
"""A label of nodes for which a pod waits."""


@pytest.fixture
def old(system: System, tmp_path: Path) -> Iterator[Tree]:
    """The former version, running; this one afterwards."""
    tree = former_version.tree(tmp_path)
    former_version.give_image(system, tree)
    try:
        former_version.remove(system)
        former_version.apply(system, tree)
        former_version.wait_rolled(system, tree)
        yield tree
    finally:
        system.cluster.kubectl("label", "nodes", *NODES, f"{GATE}-")
        former.install_again(system)
        former_version.wait_rolled(system, LOCAL)


def start(system: System, namespace: str, age: str) -> None:
    """On each node a pod with a container that has a share and one that has none."""
    pods = [Share(name=f"{age}-{node}", gib=(2, None)).document() for node in NODES]
    for pod, node in zip(pods, NODES, strict=True):
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    system.create(namespace, *pods)
    system.running(namespace, *[pod["metadata"]["name"] for pod in pods])


def start_waiting(system: System, namespace: str, age: str) -> None:
    """A pod that is created by one version and placed by the other."""
    pod = Share(name=f"{age}-waits", gib=(2,)).document()
    pod["spec"]["nodeSelector"] = {GATE: age}
    system.create(namespace, pod)


def restart_containers(system: System, namespace: str, pods: Sequence[str]) -> None:
    """End each container's first process, and wait for the next one."""

    def counts() -> dict[tuple[str, str], int]:
        return {
            (name, status["name"]): status["restartCount"] if status["ready"] else -1
            for name in pods
            for status in system.pod(namespace, name)["status"]["containerStatuses"]
        }

    before = counts()
    for pod in pods:
        # A kubelet that has just started knows no pod before it has listed them.
        system.eventually(f"commands run in {pod}", partial(_runs, system, namespace, pod, "true"))
    for pod, container in before:
        # The container may take the command along before that has reported its end.
        _runs(system, namespace, pod, "kill", "1", container=container)
    system.eventually("all containers run again", lambda: all(now > before[key] for key, now in counts().items()))


def _runs(system: System, namespace: str, pod: str, *command: str, container: str = "c0") -> bool:
    argv = ["exec", "-n", namespace, pod, "-c", container, "--", *command]
    return system.cluster.kubectl(*argv, check=False).returncode == 0


def sees_its_gpus(system: System, namespace: str, pods: Sequence[str], grants: Grants | None = None) -> None:
    """By the variable alone if the former version has answered the kubelet, else as their node does."""
    known = grants or Grants.of(system)

    def printed(pod: Json, container: str) -> Seen | None:
        variables = system.environment(pod, container)
        return None if variables is None else seen.by(variables)

    for name in pods:
        pod = system.pod(namespace, name)
        for container in (each["name"] for each in pod["spec"]["containers"]):
            wanted = known.to(pod, container)
            found = system.eventually(f"{name} has printed", partial(printed, pod, container))
            assert found == (wanted if grants else Seen(told=wanted.told)), f"{name}/{container}"


def never_stopped(system: System, namespace: str, pods: Sequence[str]) -> None:
    for name in pods:
        statuses = system.pod(namespace, name)["status"]["containerStatuses"]
        assert [status["restartCount"] for status in statuses] == [0] * len(statuses), name


def named(age: str) -> list[str]:
    return [f"{age}-{node}" for node in NODES]


def ledger_is_right(system: System) -> None:
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)


def test_pods_go_on_through_an_upgrade_and_back(system: System, namespace: str, old: Tree, tmp_path: Path) -> None:
    start(system, namespace, "old")
    start_waiting(system, namespace, "old")
    system.create(namespace, Share(name="full", gib=(GPU_GIB,)).document())
    system.running(namespace, "full")
    sees_its_gpus(system, namespace, [*named("old"), "full"])

    upgrade(system, namespace)
    what_was_started_before_starts_again(system, namespace)
    start(system, namespace, "new")
    start(system, namespace, "kept")
    grants = Grants.of(system)
    sees_its_gpus(system, namespace, [*named("new"), *named("kept")], grants)

    go_back(system, namespace, old, tmp_path)
    never_stopped(system, namespace, [*named("new"), *named("kept")])
    restart_containers(system, namespace, named("new"))
    sees_its_gpus(system, namespace, named("new"), grants)
    start(system, namespace, "old")
    sees_its_gpus(system, namespace, named("old"))
    ledger_is_right(system)

    former_version.apply(system, LOCAL)
    former_version.wait_rolled(system, LOCAL)
    restart_containers(system, namespace, [*named("kept"), *named("old")])
    sees_its_gpus(system, namespace, named("kept"), grants)
    sees_its_gpus(system, namespace, named("old"))
    ledger_is_right(system)


def upgrade(system: System, namespace: str) -> None:
    """With pods that run, one on all of a GPU of which the driver keeps a part, and pods that are created meanwhile."""
    former_version.apply(system, LOCAL, {"GPUSHARE_GPU_MEMORY": "total"}, WITH_RESERVED)
    during = [Share(name=f"during-{i}", gib=(1,)).document() for i in range(4)]
    system.create(namespace, *during)
    former_version.wait_rolled(system, LOCAL)
    never_stopped(system, namespace, [*named("old"), "full"])
    system.running(namespace, *[pod["metadata"]["name"] for pod in during])
    ledger_is_right(system)


def what_was_started_before_starts_again(system: System, namespace: str) -> None:
    """Containers of running pods, also after their kubelet; and a pod that had no node yet gets one."""
    restart_containers(system, namespace, [*named("old"), "full"])
    sees_its_gpus(system, namespace, [*named("old"), "full"])
    for node in system.cluster.nodes:
        node.restart_kubelet()
        node.wait_kubelet()
    restart_containers(system, namespace, named("old"))
    sees_its_gpus(system, namespace, named("old"))

    system.cluster.kubectl("label", "node", NODES[0], f"{GATE}=old")
    system.running(namespace, "old-waits")
    sees_its_gpus(system, namespace, ["old-waits"], Grants.of(system))
    system.cluster.kubectl("label", "node", NODES[0], f"{GATE}-")
    system.cluster.kubectl("delete", "pods", "-n", namespace, *named("old"), "full", "--wait")
    ledger_is_right(system)


def go_back(system: System, namespace: str, old: Tree, files: Path) -> None:
    """As the page says it, with a pod that has no node yet."""
    start_waiting(system, namespace, "new")
    only_cdi = names.ANNOTATION_HAND_OVER in system.pod(namespace, "new-waits")["metadata"].get("annotations", {})
    administrator = Administrator(system, "operate.md", "Go back", files)
    administrator.follows("what the former version does not know")
    former_version.overlay(system, old)
    administrator.follows("apply the former overlay")
    former_version.wait_rolled(system, old)
    administrator.follows("create pods that wait again")
    assert administrator.followed_everything()
    assert not system.exists(hand_over.path(names.NAMESPACE))
    assert system.exists(f"/api/v1/namespaces/{namespace}/pods/new-waits") == (not only_cdi)
    ledger_is_right(system)
