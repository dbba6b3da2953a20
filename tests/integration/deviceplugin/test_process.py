"""The plugin as a process: its flags, its exit codes, its signals."""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from deviceplugin import ports
from deviceplugin.main import main
from testing.fakes import kube_http
from testing.fakes.http_server import free_port
from testing.fakes.kubelet import FakeKubelet, wait_until
from testing.nvml import stub
from testing.nvml.stub import MIB, Stub

ROOT = Path(__file__).parents[3]


def arguments(directory: Path) -> dict[str, str]:
    """A plugin whose API server does not answer."""
    (directory / "home").mkdir(exist_ok=True)
    profile = directory / "home" / "profile.yaml"
    profile.write_text("gpus:\n  - {model: Tesla T4, memoryMiB: 15109, count: 2}\n")
    (directory / "home" / "config").write_text(kube_http.kubeconfig("http://127.0.0.1:1"))
    return {
        "--node-name": "node-a",
        "--kubeconfig": str(directory / "home" / "config"),
        "--gpu-source": f"simulated:{profile}",
        "--device-plugins-dir": str(directory / "plugins"),
        "--pod-resources-socket": str(directory / "none.sock"),
        "--probe-port": str(free_port()),
        "--poll-interval": "0.1",
    }


def command(flags: dict[str, str], *more: str) -> list[str]:
    return [sys.executable, "-m", "deviceplugin", *more, *(part for flag in flags.items() for part in flag)]


@contextmanager
def process(flags: dict[str, str], env: Mapping[str, str] = MappingProxyType({})) -> Iterator[subprocess.Popen[str]]:
    """Args: env: variables beside those of this process."""
    started = subprocess.Popen(command(flags), cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, **env})
    try:
        yield started
    finally:
        started.terminate()
        started.communicate()


@pytest.fixture
def plugins(directory: Path) -> Iterator[FakeKubelet]:
    (directory / "plugins").mkdir()
    fake = FakeKubelet(directory / "plugins")
    fake.start()
    yield fake
    fake.stop()


def test_it_registers_without_an_api_server_and_ends_cleanly_on_sigterm(
    plugins: FakeKubelet, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in [key for key in os.environ if key.startswith(("GPUSHARE_", "KUBE"))]:
        monkeypatch.delenv(key)
    flags = arguments(directory)
    port = int(flags["--probe-port"])
    with process(flags) as plugin:
        assert len(plugins.wait_for_devices().lists[0]) == 28
        wait_until(lambda: ports.problem(port) == "")
        assert main(["--check", "--probe-port", str(port)]) == 0
        plugin.send_signal(signal.SIGTERM)
        _, log = plugin.communicate(timeout=250)
    assert plugin.returncode == 0
    assert not (directory / "plugins" / "gpushare.sock").exists()
    # Every line is ours: neither the gRPC library nor Python has anything to complain about.
    assert all(line.startswith('{"ts":') for line in log.splitlines()), log
    assert "part did not end" not in log
    assert main(["--check", "--probe-port", str(port)]) == 1
    assert capsys.readouterr().err == (
        f"the plugin is not registered with the kubelet (port {port}: Connection refused); its log says why\n"
    )


def test_a_driver_that_is_replaced_ends_the_process_so_that_a_new_one_reads_it(
    plugins: FakeKubelet, directory: Path, nvml_stub: Stub
) -> None:
    nvml_stub.add_gpu(15360, reserved_mib=300)
    flags = {**arguments(directory), "--gpu-source": "nvml"}
    port = int(flags["--probe-port"])
    with process(flags, nvml_stub.env) as old:
        assert len(plugins.wait_for_devices().lists[0]) == 14
        wait_until(lambda: ports.problem(port) == "")
        nvml_stub.set({"driver": "590.10"})
        # The node's library is still the old one: a new process could do nothing either, but the probe tells.
        wait_until(lambda: ports.problem(port) != "")
        nvml_stub.set({"library": "590.10"})
        _, log = old.communicate(timeout=250)
    assert old.returncode == 1
    assert "new process needed" in log
    with process(flags, nvml_stub.env):
        assert set(plugins.wait_for_devices(2).lists[0].values()) == {"Healthy"}
        wait_until(lambda: ports.problem(port) == "")


def page_of(port: int) -> str:
    """The plugin's metrics; empty while they are not served."""
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=60) as page:
            return str(page.read().decode())
    except OSError:
        return ""


def test_while_the_driver_answers_what_it_lists_is_in_the_metrics_and_a_watchdog_is_a_limit(
    plugins: FakeKubelet, directory: Path, nvml_stub: Stub
) -> None:
    nvml_stub.add_gpu()
    nvml_stub.set({"0.compute": f"{os.getpid()} {5 * MIB}", "0.mps": f"{os.getpid()} {7 * MIB}"})
    port = free_port()
    flags = {**arguments(directory), "--gpu-source": "nvml", "--metrics-port": str(port)}
    flags |= {"--watchdog": "evict", "--usage-interval": "0.2"}  # a watchdog reads usage without being told to
    foreign = f'gpushare_plugin_gpu_foreign_bytes{{UUID="{nvml_stub.keys["0.uuid"]}",gpu="0",node="node-a"}}'
    over = 'gpushare_plugin_containers_over_grant{node="node-a"} 0.0'

    def page_has(*texts: str) -> bool:
        page = page_of(port)
        return bool(page) and all(text in page for text in texts)

    with process(flags, nvml_stub.env):
        plugins.wait_for_devices()
        wait_until(lambda: page_has(f"{foreign} 7.340032e+06", over, 'limit="watchdog"', 'reading="on"'))
        nvml_stub.set({"0.fail.nvmlDeviceGetComputeRunningProcesses_v3": stub.GPU_IS_LOST})
        wait_until(lambda: page_has('reading="no-answer"') and not (page_has(foreign) or page_has('limit="watchdog"')))


def test_without_the_processes_of_the_node_it_says_so_and_its_watchdog_is_no_limit(
    plugins: FakeKubelet, directory: Path
) -> None:
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("a process namespace needs root and unshare")
    flags = arguments(directory) | {"--watchdog": "kill", "--metrics-port": str(free_port())}
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command(flags)]
    with subprocess.Popen(alone, cwd=ROOT, stderr=subprocess.PIPE, text=True) as plugin:
        try:
            plugins.wait_for_devices()
            wait_until(lambda: "gpushare_plugin_usage_info" in page_of(int(flags["--metrics-port"])))
            page = page_of(int(flags["--metrics-port"]))
        finally:
            plugin.kill()
            log = plugin.communicate()[1]
    assert 'gpushare_plugin_usage_info{node="node-a",reading="no-host-pid"} 1.0' in page
    assert 'limit="watchdog"' not in page
    assert "usage not read" in log
    assert "hostPID is missing" in log
