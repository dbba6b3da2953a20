"""The plugin whole: as a process with flags and signals, and all its parts together in this one."""

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import main as program, ports
from deviceplugin.cgroups import CgroupOwner, Process, Procfs
from deviceplugin.dra import claims, driver as dra_driver
from deviceplugin.mps import MpsControl, Supervisor
from gpushare import names
from gpushare.identity import GpuUuid
from gpushare.kube import client
from gpushare.kube.api import ServerFaultError
from gpushare.model.gpu import GpuHealth, Limit, NodeInventory
from gpushare.runtime.clock import SystemClock
from gpushare.wire import inventory as wire, pods as wire_pods
from gpushare.wire.claims import Claim, Share, device_name
from gpushare_cli.console import Streams
from gpushare_cli.explain import command as explain
from gpushare_cli.reading import Target
from testing.builders import make_grant, make_node
from testing.deviceplugin.build import bound_pod
from testing.deviceplugin.running import in_threads
from testing.deviceplugin.usage import claiming, container_id, running_pod, uid
from testing.fakes import kube_http
from testing.fakes.http_server import free_port
from testing.fakes.kube import FakeKube
from testing.fakes.kubelet import FakeKubelet, FakePodResources, Plugin, wait_until
from testing.nvml import mps_programs, stub
from testing.nvml.memory import Memory
from testing.nvml.stub import MIB, Stub

ROOT = Path(__file__).parents[3]


@pytest.fixture
def flags(kubelet: FakeKubelet, tmp_path: Path) -> dict[str, str]:
    """Of a plugin whose API server does not answer."""
    (tmp_path / "profile.yaml").write_text("gpus:\n  - {model: Tesla T4, memoryMiB: 15109, count: 2}\n")
    (tmp_path / "config").write_text(kube_http.kubeconfig("http://127.0.0.1:1"))
    return {
        "--node-name": "node-a",
        "--kubeconfig": str(tmp_path / "config"),
        "--gpu-source": f"simulated:{tmp_path / 'profile.yaml'}",
        "--device-plugins-dir": str(kubelet.directory),
        "--pod-resources-socket": str(tmp_path / "none.sock"),
        "--probe-port": str(free_port()),
        "--poll-interval": "0.1",
    }


def command(flags: dict[str, str]) -> list[str]:
    return [sys.executable, "-m", "deviceplugin", *(part for flag in flags.items() for part in flag)]


@contextmanager
def process(flags: dict[str, str], env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Args: env: variables beside those of this process."""
    started = subprocess.Popen(
        command(flags), cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ | (env or {})
    )
    try:
        yield started
    finally:
        started.terminate()
        started.communicate()


def test_it_registers_without_an_api_server_and_ends_cleanly_on_sigterm(
    kubelet: FakeKubelet, flags: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in [key for key in os.environ if key.startswith(("GPUSHARE_", "KUBE"))]:
        monkeypatch.delenv(key)
    port = int(flags["--probe-port"])
    with process(flags) as plugin:
        assert len(kubelet.wait_for_devices().lists[0]) == 28
        wait_until(lambda: ports.problem(port) == "")
        assert program.main(["--check", "--probe-port", str(port)]) == 0
        plugin.send_signal(signal.SIGTERM)
        _, log = plugin.communicate(timeout=250)
    assert plugin.returncode == 0
    assert not (kubelet.directory / "gpushare.sock").exists()
    # Every line is ours: neither the gRPC library nor Python has anything to complain about.
    assert all(line.startswith('{"ts":') for line in log.splitlines()), log
    assert "part did not end" not in log
    assert program.main(["--check", "--probe-port", str(port)]) == 1
    assert capsys.readouterr().err == (
        f"the plugin is not registered with the kubelet (port {port}: Connection refused); its log says why\n"
    )


def test_a_driver_that_is_replaced_ends_the_process_so_that_a_new_one_reads_it(
    kubelet: FakeKubelet, flags: dict[str, str], nvml_stub: Stub
) -> None:
    nvml_stub.add_gpu(15360, reserved_mib=300)
    flags["--gpu-source"] = "nvml"
    port = int(flags["--probe-port"])
    with process(flags, nvml_stub.env) as old:
        assert len(kubelet.wait_for_devices().lists[0]) == 14
        wait_until(lambda: ports.problem(port) == "")
        nvml_stub.set({"driver": "590.10"})
        # The node's library is still the old one: a new process could do nothing either, but the probe tells.
        wait_until(lambda: ports.problem(port) != "")
        nvml_stub.set({"library": "590.10"})
        _, log = old.communicate(timeout=250)
    assert old.returncode == 1
    assert "new process needed" in log
    with process(flags, nvml_stub.env):
        assert set(kubelet.wait_for_devices(2).lists[0].values()) == {"Healthy"}
        wait_until(lambda: ports.problem(port) == "")


def page_of(port: int) -> str:
    """The plugin's metrics; empty while they are not served."""
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=60) as page:
            return str(page.read().decode())
    except OSError:
        return ""


def test_while_the_driver_answers_what_it_lists_is_in_the_metrics_and_a_watchdog_is_a_limit(
    kubelet: FakeKubelet, flags: dict[str, str], nvml_stub: Stub
) -> None:
    nvml_stub.add_gpu()
    nvml_stub.set({"0.compute": f"{os.getpid()} {5 * MIB}", "0.mps": f"{os.getpid()} {7 * MIB}", "0.power": 70500})
    port = free_port()
    flags |= {"--gpu-source": "nvml", "--metrics-port": str(port), "--usage-interval": "0.2"}
    flags["--watchdog"] = "evict"  # which reads usage without being told to
    foreign = f'gpushare_plugin_gpu_foreign_bytes{{UUID="{nvml_stub.keys["0.uuid"]}",gpu="0",node="node-a"}}'
    over = 'gpushare_plugin_containers_over_grant{node="node-a"} 0.0'
    power = f'gpushare_plugin_gpu_power_watts{{UUID="{nvml_stub.keys["0.uuid"]}",gpu="0",node="node-a"}} 70.5'

    def page_has(*texts: str) -> bool:
        page = page_of(port)
        return bool(page) and all(text in page for text in texts)

    with process(flags, nvml_stub.env):
        kubelet.wait_for_devices()
        wait_until(lambda: page_has(f"{foreign} 7.340032e+06", over, power, 'limit="watchdog"', 'reading="on"'))
        nvml_stub.set({"0.fail.nvmlDeviceGetComputeRunningProcesses_v3": stub.GPU_IS_LOST})
        wait_until(lambda: page_has('reading="no-answer"') and not (page_has(foreign) or page_has('limit="watchdog"')))


def test_without_the_processes_of_the_node_it_says_so_and_its_watchdog_is_no_limit(
    kubelet: FakeKubelet, flags: dict[str, str]
) -> None:
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("a process namespace needs root and unshare")
    flags |= {"--watchdog": "kill", "--metrics-port": str(free_port())}
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command(flags)]
    with subprocess.Popen(alone, cwd=ROOT, stderr=subprocess.PIPE, text=True) as plugin:
        try:
            kubelet.wait_for_devices()
            wait_until(lambda: "gpushare_plugin_usage_info" in page_of(int(flags["--metrics-port"])))
            page = page_of(int(flags["--metrics-port"]))
        finally:
            plugin.kill()
            log = plugin.communicate()[1]
    assert 'gpushare_plugin_usage_info{node="node-a",reading="no-host-pid"} 1.0' in page
    assert 'limit="watchdog"' not in page
    assert "usage not read" in log
    assert "hostPID is missing" in log


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

    profile = f"--gpu-source=simulated:{ROOT}/testing/profiles/t4x4.yaml"
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


def test_what_a_claims_container_uses_is_limited_shown_and_watched(
    cluster: Cluster, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid, port = str(cluster.driver.keys["0.uuid"]), free_port()
    mode = {"annotations": {names.ANNOTATION_MODE: f"device-plugin,{uuid}=dra"}}
    cluster.api.edit(NODE, lambda node: node["metadata"].update(mode))
    pod = claiming(running_pod(1, make_grant(0), ids={"main": 11}), {"gpu": "c"}, main="gpu")
    pod["spec"]["containers"][0]["resources"].pop("limits")
    cluster.api.seed("/api/v1/namespaces/default/pods/pod-1", pod)
    share = Share(request="r", device=device_name(GpuUuid(uuid)), memory=3 << 30)
    claim = Claim(uid="u", namespace="default", name="c", shares=(share,), pod=wire_pods.ref(pod))
    checkpoint = directory / "plugins" / names.DRA_DRIVER / "checkpoint.json"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text(claims.encode([claim]))
    group = f"pod{uid(1)}/{container_id(11)}"
    (cluster.cgroups / "kubepods" / group).mkdir(parents=True)
    cluster.driver.set({"0.compute": f"4242 {4000 * MIB}"})
    owned = Process(4242, 1, CgroupOwner(uid(1), container_id(11)))
    monkeypatch.setattr(dra_driver, "_EVERY_S", 0.1)
    monkeypatch.setattr(Procfs, "read", lambda _table, pid: owned if pid == 4242 else None)
    labels = f'UUID="{uuid}",container="main",gpu="0",namespace="default",node="node-a",pod="pod-1"}}'

    def act() -> None:
        wait_until(lambda: cluster.limit(group) == 3072)
        wait_until(lambda: f"gpushare_plugin_container_used_bytes{{{labels} 4.194304e+09" in page_of(port))
        wait_until(lambda: 'gpushare_plugin_containers_over_grant{node="node-a"} 1.0' in page_of(port))

    given = ("--dra=true", f"--kubelet-dir={directory}", "--hand-over=cdi", f"--cdi-dir={tmp_path}")
    usage = ("--usage-interval=0.2", "--watchdog=report", "--watchdog-grace=0.1", f"--metrics-port={port}")
    cluster.run(act, *given, *usage)


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
            labels = f'{place},limit="advisory",node="node-a",reason="DriverTooOld"'
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
