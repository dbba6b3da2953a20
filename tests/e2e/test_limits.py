"""What holds limits, in real containers: variables and mounts by CDI, and cgroups as real kubelets make them."""

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from deviceplugin import cgroups
from deviceplugin.cgroups import CgroupOwner
from deviceplugin.mps.daemon import MpsControl, Supervisor
from gpushare import names
from gpushare.identity import PodUid
from gpushare.kube import api as kube
from gpushare.model.gpu import Limit
from gpushare.runtime.clock import SystemClock
from gpushare.wire import inventory as wire
from testing.nvml import mps_programs
from tests.e2e import plugins
from tests.e2e.conftest import CDI_NODES, GPU_GIB
from tests.e2e.system import Json, Share, System, gpushare, is_ready
from tests.e2e.test_commands import explained

pytestmark = pytest.mark.e2e
NO_DAEMON: Final = "the supervisor of the MPS daemon does not answer"
JAX: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
PLUGIN: Final = ("-n", names.NAMESPACE, "daemonset", names.PLUGIN)


def with_mps(directory: Path) -> Json:
    """What the plugin's containers need to find the daemon below a directory that all nodes see."""
    env = {"GPUSHARE_MPS_DIR": directory / "mps", "GPUSHARE_MPS_SHARED_MEMORY": directory / "shm"}
    container = {
        "name": "device-plugin",
        "env": [{"name": name, "value": str(value)} for name, value in env.items()],
        "volumeMounts": [{"name": "mps", "mountPath": str(directory / "mps"), "readOnly": True}],
    }
    volume = {"name": "mps", "hostPath": {"path": str(directory / "mps")}}
    return {"spec": {"template": {"spec": {"containers": [container], "volumes": [volume]}}}}


def on(node: int, name: str, gib: int = 3) -> Json:
    pod = Share(name=name, gib=(gib,)).document()
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": f"node-{node}"}
    return pod


def limits(system: System, node: int) -> set[Limit]:
    found = wire.of_node(system.api.get(f"/api/v1/nodes/node-{node}"))
    return {gpu.limit for gpu in found.gpus} if found else set()


def owners() -> set[CgroupOwner | None]:
    """Of all processes of this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            found.add(cgroups.owner(path.read_text(encoding="utf-8")))
    return found


def test_frameworks_are_told_their_share_where_containers_get_devices_by_cdi(system: System, namespace: str) -> None:
    system.create(namespace, on(1, "one"), on(2, "two"))
    system.all_running(namespace, 2)
    assert (limits(system, 1), limits(system, 2)) == ({Limit.ADVISORY}, {Limit.ADVISORY})
    printed = system.environments(namespace)
    for node, name in ((1, "one"), (2, "two")):
        expected = f"{int(3 / GPU_GIB * 10_000) / 10_000:.4f}" if node in CDI_NODES else None
        assert printed[name, "c0"].get(JAX) == expected, name


def test_processes_of_real_containers_are_found_by_their_cgroups_and_back(system: System, namespace: str) -> None:
    system.create(namespace, on(1, "one"), on(2, "two"))
    for pod in system.all_running(namespace, 2):
        uid = PodUid(pod["metadata"]["uid"])
        container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2]
        assert CgroupOwner(uid, container) in owners()
        bases = [base for hierarchy in cgroups.hierarchies() for base in cgroups.kubepods(hierarchy)]
        directory = cgroups.pod_directory(tuple(bases), uid)
        assert directory is not None
        found = cgroups.container_directories(directory)
        assert len(found) == 2, "the container and the sandbox of its pod"
        assert (found[container] / "cgroup.procs").read_text(encoding="ascii") != ""


@contextmanager
def mps(system: System, directory: Path) -> Iterator[Callable[[], None]]:
    """Node 1 has an MPS daemon, of which the plugin knows; what ends it."""
    programs = mps_programs.install(directory)
    stop = threading.Event()
    supervisor = Supervisor(control=MpsControl(directory / "mps", directory / "shm"), clock=SystemClock())
    threads = [threading.Thread(target=part, args=(stop,)) for part in (supervisor.run, supervisor.serve)]

    def end() -> None:
        stop.set()
        for thread in threads:
            thread.join()

    kubectl, patch = system.cluster.kubectl, pytest.MonkeyPatch()
    patch.setenv("PATH", str(programs), prepend=os.pathsep)
    for thread in threads:
        thread.start()
    try:
        kubectl("label", "node", "node-1", f"{names.LABEL_LIMITS}=mps")
        kubectl("patch", *PLUGIN, "-p", json.dumps(with_mps(directory)))
        plugins.rolled(system)
        system.eventually("the node has MPS", lambda: limits(system, 1) == {Limit.MPS})
        yield end
    finally:
        end()
        patch.undo()
        kubectl("label", "node", "node-1", f"{names.LABEL_LIMITS}-")
        kubectl("rollout", "undo", *PLUGIN[:2], f"daemonset/{names.PLUGIN}")
        plugins.rolled(system)


@pytest.mark.skipif(1 not in CDI_NODES, reason="MPS needs a node that hands GPUs over by CDI")
def test_a_container_is_pointed_at_mps_and_does_not_start_without_it(system: System, namespace: str) -> None:
    with tempfile.TemporaryDirectory() as made, mps(system, Path(made)) as end:  # a socket's path must be short
        directory = Path(made)
        pod = on(1, "limited")
        show = f"grep -e /dev/shm -e {directory} /proc/mounts; env; echo shown; sleep 10000"
        pod["spec"]["containers"][0]["command"] = ["sh", "-c", show]
        system.create(namespace, pod)
        system.all_running(namespace, 1)
        gpu = system.pod(namespace, "limited")["metadata"]["annotations"]["devices.gpushare.dev/c0"]
        lines = system.log(namespace, "limited", until="shown")
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={gpu}=3072M" in lines
        assert f"CUDA_MPS_PIPE_DIRECTORY={directory}/mps/pipe" in lines
        mounted = [line.split()[1] for line in lines if line.count(" ") == 5]
        assert sorted(mounted) == ["/dev/shm", f"{directory}/mps/pipe"]
        assert "set_default_device_pinned_mem_limit 0 3072M" in (directory / "log").read_text(encoding="ascii")

        assert explained(system, namespace, "limited")[1]["limitHeldBy"] == (
            "MPS, each process by itself, which programs can bypass; no stronger limit holds: cgroup: the order of"
            " limits of this node leaves it out or puts it later"
        )
        demanding = on(1, "demanding")
        demanding["metadata"].setdefault("annotations", {})[names.ANNOTATION_LIMIT] = names.ENFORCED
        system.create(namespace, demanding)
        system.eventually("MPS is no enforced limit", lambda: "0: limit mps" in _told(system, namespace, "demanding"))
        system.api.delete(kube.pod_path(namespace, "demanding"))

        end()
        system.create(namespace, on(1, "late"))
        # Whether the plugin refuses it, or its GPUs are unhealthy already when it is placed.
        why = (NO_DAEMON, "unhealthy")
        system.eventually("it is told why", lambda: any(text in _told(system, namespace, "late") for text in why))
        system.eventually("the node says so", lambda: all(NO_DAEMON in why for why in reasons(system)))
        assert not is_ready(system.pod(namespace, "late"))
        assert is_ready(system.pod(namespace, "limited"))

        system.cluster.kubectl("label", "node", "node-1", "--overwrite", f"{names.LABEL_LIMITS}=mps.advisory")
        system.eventually("the next in the order holds limits", lambda: limits(system, 1) == {Limit.ADVISORY})
        assert all(NO_DAEMON in why for why in reasons(system))
        system.eventually("it starts", lambda: is_ready(system.pod(namespace, "late")), timeout_s=420)
        assert NO_DAEMON in explained(system, namespace, "late")[1]["limitHeldBy"]
        _, _, noted = gpushare(system, "inspect", "--limits")
        assert "are advisory; no stronger limit holds: cgroup: " in noted
        assert NO_DAEMON in noted
        shown = [line for line in metrics(system, 1).splitlines() if f'UUID="{gpu}",enforced="false"' in line]
        assert 'limit="advisory",node="node-1",reason="cgroup: ' in "".join(shown)
        system.delete_all(namespace)


def _told(system: System, namespace: str, pod: str) -> str:
    return "".join(system.events(namespace, pod))


def reasons(system: System) -> list[str]:
    """Of node 1: why GPUs take nothing, or why nothing stronger holds their limits."""
    found = wire.of_node(system.api.get("/api/v1/nodes/node-1"))
    return [gpu.reason or gpu.limit_reason for gpu in found.gpus] if found else []


def metrics(system: System, node: int) -> str:
    """What Prometheus reads from the plugin of a node."""
    [plugin] = [
        pod["metadata"]["name"]
        for pod in system.pods(names.NAMESPACE, f"app.kubernetes.io/name={names.PLUGIN}")
        if pod["spec"].get("nodeName") == f"node-{node}"
    ]
    page = f"/api/v1/namespaces/{names.NAMESPACE}/pods/{plugin}:12347/proxy/metrics"
    return system.api.ask(page, timeout_s=30).text
