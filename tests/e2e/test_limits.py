"""Variables and mounts by CDI in real containers, and processes found by their cgroups; see also `test_driver.py`."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from deviceplugin import cgroups
from deviceplugin.causes import Code
from deviceplugin.cgroups import CgroupOwner
from deviceplugin.mps import MpsControl, Supervisor
from gpushare import names
from gpushare.identity import PodUid
from gpushare.model.gpu import Limit
from gpushare.runtime.clock import SystemClock
from testing.nvml import mps_programs
from tests.e2e import disturb
from tests.e2e.conftest import CDI_NODES, GPU_GIB
from tests.e2e.system import Json, System, control_groups, gpushare, gpushare_json, is_ready, make_pod

NO_DAEMON: Final = "the supervisor of the MPS daemon does not answer"
JAX: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def on(node: int, name: str, **more: Any) -> Json:
    return make_pod(name, 3, node=f"node-{node}", **more)


def test_frameworks_are_told_their_share_by_cdi_and_processes_are_found_by_their_cgroups(
    system: System, namespace: str
) -> None:
    for node, pod in enumerate(system.run(namespace, on(1, "one"), on(2, "two")), 1):
        assert system.limits(f"node-{node}") == {Limit.ADVISORY}
        [printed] = system.environments(namespace, pod["metadata"]["name"]).values()
        expected = f"{int(3 / GPU_GIB * 10_000) / 10_000:.4f}" if node in CDI_NODES else None
        assert printed.get(JAX) == expected

        uid = PodUid(pod["metadata"]["uid"])
        container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2]
        groups = control_groups()
        owners = {cgroups.owner(groups[pid]) for pid in disturb.container_processes(pod) if pid in groups}
        assert owners == {CgroupOwner(uid, container)}
        bases = [base for hierarchy in cgroups.hierarchies() for base in cgroups.kubepods(hierarchy)]
        directory = cgroups.pod_directory(tuple(bases), uid)
        assert directory is not None
        found = cgroups.container_directories(directory)
        assert len(found) == 2, "the container and the sandbox of its pod"
        assert (found[container] / "cgroup.procs").read_text(encoding="ascii") != ""


@contextmanager
def mps(system: System, directory: Path) -> Iterator[Callable[[], None]]:
    """Node 1 has an MPS daemon, of which the plugin knows; what ends it."""
    mps_directory, shared_memory = directory / "mps", directory / "shm"
    supervisor = Supervisor(control=MpsControl(mps_directory, shared_memory), clock=SystemClock())
    running = disturb.Background(supervisor.run, supervisor.serve)

    def end() -> None:
        running.stop.set()
        running.join()

    settings = {"GPUSHARE_MPS_DIR": str(mps_directory), "GPUSHARE_MPS_SHARED_MEMORY": str(shared_memory)}
    mount = {"name": "mps", "mountPath": str(mps_directory), "readOnly": True}
    volume = {"name": "mps", "hostPath": {"path": str(mps_directory)}}
    container = {"name": "device-plugin", "volumeMounts": [mount]}
    mounted = {"spec": {"template": {"spec": {"containers": [container], "volumes": [volume]}}}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(mps_programs.install(directory)), prepend=os.pathsep)
        system.label("node-1", names.LABEL_LIMITS, "mps")
        with running, disturb.patched_plugins(system, settings, mounted):
            try:
                system.eventually("the node has MPS", lambda: system.limits("node-1") == {Limit.MPS})
                yield end
            finally:
                system.label("node-1", names.LABEL_LIMITS, None)


@pytest.mark.skipif(1 not in CDI_NODES, reason="MPS needs a node that hands GPUs over by CDI")
def test_a_container_is_pointed_at_mps_and_does_not_start_without_it(system: System, namespace: str) -> None:
    with tempfile.TemporaryDirectory() as made, mps(system, Path(made)) as end:  # a socket's path must be short
        directory = Path(made)
        show = f"grep -e /dev/shm -e {directory} /proc/mounts; env; echo shown; sleep 10000"
        [pod] = system.run(namespace, on(1, "limited", command=show))
        gpu = pod["metadata"]["annotations"]["devices.gpushare.dev/c0"]
        lines = system.log(namespace, "limited", until="shown")
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={gpu}=3072M" in lines
        assert f"CUDA_MPS_PIPE_DIRECTORY={directory}/mps/pipe" in lines
        mounted = [line.split()[1] for line in lines if line.count(" ") == 5]
        assert sorted(mounted) == ["/dev/shm", f"{directory}/mps/pipe"]
        assert "set_default_device_pinned_mem_limit 0 3072M" in (directory / "log").read_text(encoding="ascii")

        assert gpushare_json(system, 0, "explain", f"{namespace}/limited")["limitHeldBy"] == (
            "MPS, each process by itself, which programs can bypass; no stronger limit holds: cgroup: the order of"
            " limits of this node leaves it out or puts it later"
        )
        system.create(namespace, on(1, "demanding", annotations={names.ANNOTATION_LIMIT: names.ENFORCED}))
        system.wait_told(namespace, "demanding", "0: limit mps")
        system.delete(namespace, "demanding")

        end()
        system.create(namespace, on(1, "late"))
        # Whether the plugin refuses it, or its GPUs are unhealthy already when it is placed.
        words = re.compile(f"{NO_DAEMON}|unhealthy")
        system.eventually("it is told why", lambda: words.search("".join(system.events(namespace, "late"))))
        system.eventually("the node says so", lambda: all(NO_DAEMON in why for why in reasons(system)))
        assert not is_ready(system.pod(namespace, "late"))
        assert is_ready(system.pod(namespace, "limited"))

        system.label("node-1", names.LABEL_LIMITS, "mps.advisory")
        system.eventually("the next in the order holds limits", lambda: system.limits("node-1") == {Limit.ADVISORY})
        assert all(NO_DAEMON in why for why in reasons(system))
        system.running(namespace, "late")
        assert NO_DAEMON in gpushare_json(system, 0, "explain", f"{namespace}/late")["limitHeldBy"]
        _, _, noted = gpushare(system, "inspect", "--limits")
        assert "are advisory; no stronger limit holds: cgroup: " in noted
        assert NO_DAEMON in noted
        metrics = disturb.plugin_metrics(system, "node-1").splitlines()
        [shown] = [line for line in metrics if f'UUID="{gpu}",enforced="false"' in line]
        assert f'limit="advisory",node="node-1",reason="{Code.MPS_SILENT}"' in shown
        system.delete_all(namespace)


def reasons(system: System) -> list[str]:
    """Of node 1: why GPUs take nothing, or why nothing stronger holds their limits."""
    return [gpu.reason or gpu.limit_reason for gpu in system.inventories()["node-1"].gpus]
