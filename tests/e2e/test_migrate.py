"""`docs/migrate.md`, followed literally: every command of its `sh` blocks, in the page's order, on the real cluster.

The cluster is made one of the former system first, with `tests.e2e.former`.
"""

from pathlib import Path

import pytest

from gpushare import names
from tests.e2e import checks, disturb, former
from tests.e2e.administrator import Administrator
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.former import GPU, Former
from tests.e2e.system import Json, System, is_ready, make_pod, replica_set, restarts

FIRST, SECOND = "node-1", "node-2"


def look(system: System, namespace: str, of: Former, administrator: Administrator) -> str:
    """`stays` on the first node and a pod of `moves` on the second, as the former system runs them; what one sees."""
    system.create(namespace, of.pod("stays", FIRST), replica_set(of.pod("moves", SECOND)))
    system.all_running(namespace, 2)
    seen = {env[names.ENV_VISIBLE_DEVICES] for env in system.environments(namespace).values()}
    assert seen == {str(GPU)}, "the former plugin gave them their GPU"
    return administrator.follows("look")


def install(system: System, administrator: Administrator) -> None:
    administrator.follows("install")
    former.webhooks_work(system)


def mib_on(system: System, node: str) -> dict[int, int]:
    """MiB held on each GPU of a node, by its number, computed from what the API server says."""
    [ledger] = [ledger for name, ledger in system.ledgers().items() if name == node]
    return {gpu.index: ledger.used_mib.get(gpu.uuid, 0) for gpu in ledger.inventory.gpus}


def it_never_stopped_and_is_counted(system: System, namespace: str, mib: int) -> None:
    """`stays`, whose GPU has that much less: pods that need nearly a whole GPU fit on all of the others, no more."""
    found = system.pod(namespace, "stays")
    assert is_ready(found)
    assert restarts(found) == {"c0": 0}
    assert names.LABEL_MANAGED not in found["metadata"].get("labels", {})
    assert mib_on(system, FIRST) == {i: mib if i == GPU else 0 for i in range(GPUS_PER_NODE)}
    checks.the_controllers_ledger_equals_the_pods(system)

    big = [f"big-{i}" for i in range(GPUS_PER_NODE)]
    system.create(namespace, *(make_pod(name, GPU_GIB - 2, node=FIRST) for name in big))

    def ready() -> list[Json]:
        return [pod for pod in system.ready_pods(namespace) if pod["metadata"]["name"] in big]

    system.eventually("all that fit run", lambda: len(ready()) == GPUS_PER_NODE - 1)
    checks.every_container_sees_exactly_its_gpus(system, namespace, ready())
    waiting = f"needs {GPU_GIB - 2} GiB on one GPU; free per GPU on {FIRST}: "
    system.eventually("the other is told why", lambda: waiting in "".join(system.events(namespace)))
    assert len(ready()) == GPUS_PER_NODE - 1
    system.cluster.kubectl("delete", "pods", "-n", namespace, *big, "--wait")


def the_moved_pod_is_of_this_system(system: System, namespace: str) -> Json:
    """Recreated by its owner, completed by the webhook, placed by the controller; nothing of the old pod is left."""
    found = system.eventually(
        "recreated",
        lambda: [pod for pod in system.pods(namespace, f"app=moves,{names.LABEL_MANAGED}=true") if is_ready(pod)],
    )
    checks.every_container_sees_exactly_its_gpus(system, namespace, found)
    checks.the_controllers_ledger_equals_the_pods(system)
    return found[0]


def the_pod_survives_the_way_back(system: System, namespace: str, pod: Json) -> None:
    now = system.pod(namespace, pod["metadata"]["name"])
    assert now["metadata"]["uid"] == pod["metadata"]["uid"]
    assert is_ready(now)
    checks.every_container_sees_exactly_its_gpus(system, namespace, [now])


def test_from_aliyun_gpushare_and_back(system: System, namespace: str, tmp_path: Path) -> None:
    administrator = Administrator(system.cluster, "migrate.md", "Aliyun", tmp_path)
    with former.rules(system, former.ALIYUN, tmp_path):
        looked = look(system, namespace, former.ALIYUN, administrator)
        assert "--memory-unit=GiB" in looked
        assert all(f"{GPU}" in line for line in looked.splitlines() if namespace in line)
        assert "stays" in looked

        administrator.follows("make room for both plugins")
        listed = (tmp_path / "gpushare-nodes.txt").read_text().split()
        assert listed == [f"node/{FIRST}", f"node/{SECOND}"]
        install(system, administrator)

        shown = administrator.follows("switch a node with its pods running", FIRST)
        assert "stays" in shown
        it_never_stopped_and_is_counted(system, namespace, 3 * 1024)
        disturb.start_again(system, namespace, "stays")
        assert system.environments(namespace)["stays", "c0"][names.ENV_VISIBLE_DEVICES] == str(GPU)

        administrator.follows("switch a node and drain it", SECOND)
        moved = the_moved_pod_is_of_this_system(system, namespace)
        left = administrator.follows("recreate the old pods")
        assert [line.split()[1:] for line in left.splitlines() if " stays " in line] == [
            ["stays", FIRST, str(GPU), "<none>"]
        ]
        administrator.follows("remove the old system")
        gone = system.cluster.kubectl("get", "deployment,daemonset", "-n", former.NAMESPACE, "-o", "name").stdout
        assert "gpushare" not in gone

        administrator.follows("go back")
        the_pod_survives_the_way_back(system, namespace, moved)
        annotations = moved["metadata"]["annotations"]
        [(index, mib)] = [(str(i), mib) for i, mib in mib_on(system, SECOND).items() if mib]
        assert (annotations[names.ALIYUN_IDX], annotations[names.ALIYUN_POD]) == (index, str(mib // 1024))
    assert administrator.followed_everything()


@pytest.mark.release
def test_from_ack_and_back(system: System, namespace: str, tmp_path: Path) -> None:
    administrator = Administrator(system.cluster, "migrate.md", "ACK", tmp_path)
    with former.rules(system, former.ACK, tmp_path):
        assert f'{{"0": {{"{GPU}": 3}}}}' in look(system, namespace, former.ACK, administrator)
        install(system, administrator)

        assert "stays" in administrator.follows("switch a node with its pods running", FIRST)
        it_never_stopped_and_is_counted(system, namespace, 3 * 1024)

        administrator.follows("switch a node and drain it", SECOND)
        moved = the_moved_pod_is_of_this_system(system, namespace)
        for node in (FIRST, SECOND):
            administrator.follows("go back", node)
        the_pod_survives_the_way_back(system, namespace, moved)

        def nodes() -> set[str]:
            plugins = system.pods(former.NAMESPACE, former.ACK.selector)
            return {pod["spec"].get("nodeName", "") for pod in plugins}

        system.eventually("ACK's plugin is back", lambda: nodes() == {FIRST, SECOND})
    assert administrator.followed_everything()


@pytest.mark.release
def test_from_nano_gpu_and_back(system: System, namespace: str, tmp_path: Path) -> None:
    """The first node keeps its old pod, as the page allows: it leaves out one command, the draining."""
    administrator = Administrator(system.cluster, "migrate.md", "nano-gpu", tmp_path)
    with former.rules(system, former.NANO, tmp_path):
        looked = look(system, namespace, former.NANO, administrator)
        assert "nano-gpu-agent" in looked
        assert "stays" in looked
        administrator.follows("make room for both plugins")
        install(system, administrator)

        administrator.follows("switch a node and drain it", FIRST, leaving_out="kubectl drain ")
        it_never_stopped_and_is_counted(system, namespace, GPU_GIB * 1024 // 2)

        administrator.follows("switch a node and drain it", SECOND)
        moved = the_moved_pod_is_of_this_system(system, namespace)
        index = next(i for i, mib in mib_on(system, SECOND).items() if mib)
        administrator.follows("remove the old system")
        assert moved["metadata"]["name"] in administrator.follows("go back")
        the_pod_survives_the_way_back(system, namespace, moved)
        assert moved["metadata"]["labels"][names.NANO_ASSUME] == "true"
        assert moved["metadata"]["annotations"][names.PREFIX_NANO_CONTAINER + "c0"] == str(index)
    assert administrator.followed_everything()
