"""All parts together in one process, as `main` wires them: pods start, and limits follow what the driver can."""

import io
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import main as program
from deviceplugin import ports
from deviceplugin.mps.daemon import MpsControl, Supervisor
from gpushare.kube import client
from gpushare.kube.api import ServerFaultError
from gpushare.model.gpu import GpuHealth, Limit, NodeInventory
from gpushare.runtime.clock import SystemClock
from gpushare.wire import inventory as wire
from gpushare_cli.console import Streams
from gpushare_cli.explain import command as explain
from gpushare_cli.reading import Target
from testing.builders import make_grant, make_node
from testing.deviceplugin.build import bound_pod
from testing.deviceplugin.running import in_threads
from testing.fakes.http_server import free_port
from testing.fakes.kube import FakeKube
from testing.fakes.kubelet import FakeKubelet, FakePodResources, Plugin, wait_until
from testing.nvml import mps_programs, stub
from testing.nvml.memory import Memory
from testing.nvml.stub import MIB, Stub
from tests.integration.deviceplugin.test_process import page_of

PROFILES = Path(__file__).parents[3] / "testing" / "profiles"


def run_main(
    api: FakeKube, kubelet: FakeKubelet, resources: FakePodResources, act: Callable[[], None], *flags: str
) -> None:
    """Do something while `main` holds the main thread, then end it with SIGTERM."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - reported by the test
            problems.append(error)
        api.close()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=run).start()
    sockets = (f"--device-plugins-dir={kubelet.directory}", f"--pod-resources-socket={resources.socket}")
    assert (program.main(["--node-name=node-a", *sockets, *flags]), problems) == (0, [])


def test_a_pod_starts_on_a_node_that_has_just_come_up(
    kubelet: FakeKubelet,
    pod_resources: FakePodResources,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api, port = FakeKube(), free_port()
    api.seed("/api/v1/nodes/node-a", make_node(name="node-a"))
    api.fail_next(lambda call: call.verb == "patch", ServerFaultError("slow"))  # the kubelet waits for the inventory
    monkeypatch.setattr(program, "_PUBLISH_FIRST_S", 250.0)
    monkeypatch.setattr(client, "connect", lambda _kubeconfig: api)

    def act() -> None:
        plugin = kubelet.wait_for_devices()
        inventory = wire.of_node(api.read("/api/v1/nodes/node-a"))
        assert inventory is not None
        assert [gpu.memory_mib for gpu in inventory.gpus] == [15360] * 4
        pod = bound_pod(make_grant(inventory.gpus[2].uuid), name="a")
        api.seed("/api/v1/namespaces/default/pods/a", pod)
        ids = tuple(plugin.lists[0])[:3]
        pod_resources.hold("a", *ids)
        assert plugin.start(*ids) == ""
        assert plugin.start(*ids[:2]).startswith("FAILED_PRECONDITION: neither PodResources")
        wait_until(lambda: ports.problem(port) == "")

    profile = f"--gpu-source=simulated:{PROFILES / 't4x4.yaml'}"
    run_main(api, kubelet, pod_resources, act, profile, f"--probe-port={port}")
    assert "Connection refused" in ports.problem(port)
    assert "Traceback" not in capsys.readouterr().err


def test_a_watch_that_waits_for_the_network_holds_no_one_up_and_one_that_ends_by_itself_ends_the_process() -> None:
    with pytest.raises(RuntimeError, match=r"^the watch of pods ended by itself$"):
        program.abandoned(lambda _stop: None)(threading.Event())
    stop, release, ended = threading.Event(), threading.Event(), threading.Event()

    def watch(_stop: threading.Event) -> None:
        release.wait(10.0)
        ended.set()

    part = program.abandoned(watch)
    stop.set()
    part(stop)
    assert not ended.is_set()
    release.set()
    assert ended.wait(60.0)


NODE = "/api/v1/nodes/node-a"
ID = "ab" * 32
ALONE = "so that without MPS it serves one program at a time or none; nvidia-smi -i 0 -c DEFAULT lets others in"
OLD = "cgroup: the driver says Function Not Found: the driver is older than r615"


@dataclass
class Cluster:
    """An API server, a kubelet, a driver and the node's cgroups."""

    api: FakeKube
    kubelet: FakeKubelet
    resources: FakePodResources
    driver: Stub
    memory: Memory
    cgroups: Path
    monkeypatch: pytest.MonkeyPatch

    def run(self, act: Callable[[], None], *flags: str) -> None:
        self.monkeypatch.setattr(client, "connect", lambda _kubeconfig: self.api)
        settings = ("--metrics-port=0", "--poll-interval=0.1", f"--cgroup-mount={self.cgroups}")
        run_main(self.api, self.kubelet, self.resources, act, f"--probe-port={free_port()}", *settings, *flags)

    def inventory(self) -> NodeInventory:
        found = wire.of_node(self.api.read(NODE))
        assert found is not None
        return found

    def limits(self) -> list[Limit]:
        return [gpu.limit for gpu in self.inventory().gpus]

    def pod(self, name: str, plugin: Plugin, first: int) -> tuple[str, ...]:
        """Bind a pod with 3 GiB of the first GPU, and have the kubelet make its cgroup; its device IDs."""
        pod = bound_pod(make_grant(self.inventory().gpus[0].uuid), name=name)
        self.api.seed(f"/api/v1/namespaces/default/pods/{name}", pod)
        ids = tuple(sorted(plugin.lists[0]))[first : first + 3]
        self.resources.hold(name, *ids)
        (self.cgroups / f"kubepods/poduid-{name}").mkdir()
        return ids

    def limit(self, cgroup: str) -> int:
        return self.memory.limits(0).get(self.cgroups / "kubepods" / cgroup, 0) // MIB


@pytest.fixture
def cluster(
    kubelet: FakeKubelet,
    pod_resources: FakePodResources,
    nvml_binding: Any,
    nvml_stub: Stub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Cluster:
    assert nvml_binding.nvmlLib
    for _ in range(2):
        nvml_stub.add_gpu(15360, reserved_mib=0)
    mount = tmp_path / "cgroup"
    (mount / "kubepods").mkdir(parents=True)
    (mount / "cgroup.controllers").touch()
    (mount / "dmem.capacity").write_text("nvidia/<00000000:01:00.0>/vidmem 1\n", encoding="ascii")
    api = FakeKube()
    api.seed(NODE, make_node(name="node-a"))
    memory = Memory(nvml_stub, "dmem")
    return Cluster(api, kubelet, pod_resources, nvml_stub, memory, mount, monkeypatch)


def test_a_container_is_limited_before_it_exists_and_again_when_it_runs(cluster: Cluster) -> None:
    def act() -> None:
        plugin = cluster.kubelet.wait_for_devices()
        wait_until(lambda: cluster.limits() == [Limit.CGROUP, Limit.CGROUP])
        assert plugin.start(*cluster.pod("a", plugin, 0)) == ""
        assert cluster.limit("poduid-a") == 3072
        (cluster.cgroups / f"kubepods/poduid-a/{ID}").mkdir()
        path = "/api/v1/namespaces/default/pods/a"
        status = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": f"containerd://{ID}"}]}
        cluster.api.edit(path, lambda pod: pod.update(status=status))
        wait_until(lambda: cluster.limit(f"poduid-a/{ID}") == 3072)

    cluster.run(act)


@pytest.mark.parametrize("order", ["auto", "cgroup"])
def test_a_driver_that_is_downgraded_shows_on_the_node_and_decides_about_new_starts(
    cluster: Cluster, order: str
) -> None:
    port = free_port()

    def act() -> None:
        plugin = cluster.kubelet.wait_for_devices()
        wait_until(lambda: cluster.limits() == [Limit.CGROUP, Limit.CGROUP])
        assert plugin.start(*cluster.pod("a", plugin, 0)) == ""
        cluster.driver.set({"fail.nvmlDeviceSetMemoryLimits_v1": stub.FUNCTION_NOT_FOUND})
        ids = cluster.pod("b", plugin, 3)
        assert "the driver is older than r615" in plugin.start(*ids)
        wait_until(lambda: cluster.limits() == [Limit.ADVISORY, Limit.ADVISORY])
        gpu = cluster.inventory().gpus[0]
        if order == "auto":
            assert plugin.start(*ids) == ""
            assert gpu.health is GpuHealth.HEALTHY
            assert gpu.limit_reason.startswith(OLD), "the node says so"
            place = f'UUID="{gpu.uuid}",enforced="false",gpu="{gpu.label}"'
            labels = f'{place},limit="advisory",node="node-a",reason="{OLD}; mps: '
            wait_until(lambda: labels in page_of(port))
            out = io.StringIO()
            options = explain.Options(pod=Target(namespace="default", name="b"))
            assert explain.run(cluster.api, Streams(out=out, err=io.StringIO()), options, lambda: "") == 0
            assert f"no stronger limit holds: {OLD}; mps: " in out.getvalue()
        else:
            assert gpu.health is GpuHealth.UNHEALTHY
            assert "cgroup: " in gpu.reason
            assert plugin.start(*ids) != ""
        assert cluster.limit("poduid-a") == 3072

    cluster.run(act, f"--limits={order}", f"--metrics-port={port}")


@pytest.mark.parametrize("order", ["mps,advisory", "mps"])
def test_an_mps_daemon_that_is_killed_shows_on_the_node_and_decides_about_new_starts(
    cluster: Cluster, tmp_path: Path, order: str
) -> None:
    mps = tmp_path / "mps"
    cluster.monkeypatch.setenv("PATH", str(mps_programs.install(tmp_path)), prepend=os.pathsep)
    supervisor = Supervisor(control=MpsControl(mps, tmp_path / "shm"), clock=SystemClock())

    def act() -> None:
        plugin = cluster.kubelet.wait_for_devices()
        wait_until(lambda: cluster.limits() == [Limit.MPS, Limit.MPS])
        (tmp_path / "broken").touch()  # it does not come again
        daemon = int((mps / "pipe/control.pid").read_text(encoding="ascii"))
        os.kill(daemon, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{daemon}").exists())
        told = plugin.start(*cluster.pod("a", plugin, 0))
        assert "the memory limit (mps) cannot be set: GPU " in told
        assert "the MPS daemon does not work: nvidia-cuda-mps-control" in told
        wait_until(lambda: cluster.limits() == [Limit.ADVISORY, Limit.ADVISORY])
        gpu = cluster.inventory().gpus[0]
        is_condition = order == "mps"
        assert (gpu.health is GpuHealth.UNHEALTHY) == is_condition
        assert "mps: the MPS daemon does not work: " in (gpu.reason if is_condition else gpu.limit_reason)
        cluster.driver.set({"0.mode": 3, "1.mode": 3})  # as gpushare-mps leaves it
        wait_until(lambda: {gpu.health for gpu in cluster.inventory().gpus} == {GpuHealth.UNHEALTHY})
        if not is_condition:
            assert f"; advisory: its compute mode is EXCLUSIVE_PROCESS, {ALONE}" in cluster.inventory().gpus[0].reason
        (tmp_path / "broken").unlink()
        wait_until(lambda: cluster.limits() == [Limit.MPS, Limit.MPS])
        assert cluster.inventory().gpus[0].health is GpuHealth.HEALTHY

    with in_threads(supervisor.run, supervisor.serve):
        cluster.run(act, f"--limits={order}", f"--mps-dir={mps}", "--hand-over=cdi", f"--cdi-dir={tmp_path}")
