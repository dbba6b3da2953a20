"""What an administrator can set, and what he is told when it is wrong."""

from pathlib import Path

import pytest

from deviceplugin import main as program
from deviceplugin.settings import Settings
from deviceplugin.usage.values import WatchdogPolicy
from gpushare.runtime import options
from gpushare.units import GIB, MemoryUnit


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUSHARE_NODE_NAME", "GPUSHARE_MEMORY_UNIT", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    assert options.load(Settings, [], prog="plugin") == Settings(
        node_name="",
        kubeconfig="",
        gpu_source="nvml",
        memory_unit=GIB,
        gpu_memory="usable",
        unified_memory=0,
        ignored_xids=frozenset(),
        xid_recovery=0.0,
        recovery_action=True,
        gpu_percent=True,
        whole_gpus=False,
        device_plugins_dir=Path("/var/lib/kubelet/device-plugins"),
        pod_resources_socket=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        poll_interval=5.0,
        publish_interval=300.0,
        probe_port=12346,
        metrics_port=12347,
        usage=False,
        usage_interval=5.0,
        watchdog=WatchdogPolicy.OFF,
        watchdog_grace=30.0,
        watchdog_tolerance_mib=512,
        simulated_processes="",
        log_level="info",
    )


def test_variables_and_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_NODE_NAME", "node-a.example.com")
    monkeypatch.setenv("GPUSHARE_MEMORY_UNIT", "MiB")
    monkeypatch.setenv("GPUSHARE_GPU_PERCENT", "false")
    flags = ["--memory-unit=256MiB", "--gpu-source=simulated:/etc/gpus.yaml", "--whole-gpus=true"]
    flags += ["--gpu-memory=total", "--unified-memory=96Gi", "--ignored-xids=63, 94", "--xid-recovery=600"]
    flags += ["--mps-shared-memory=/shm", "--cdi-dir=/cdi"]
    found = options.load(Settings, flags, prog="plugin")
    assert (found.gpu_percent, found.whole_gpus) == (False, True)
    assert (found.node_name, found.gpu_source) == ("node-a.example.com", "simulated:/etc/gpus.yaml")
    assert (found.memory_unit, found.gpu_memory, found.unified_memory) == (MemoryUnit(256), "total", 96 * 1024)
    assert options.load(Settings, [f"--node-name={'a' * 253}"], prog="plugin").node_name == "a" * 253
    assert (found.mps_shared_memory, found.cdi_dir) == (Path("/shm"), Path("/cdi"))
    assert (found.ignored_xids, found.xid_recovery) == (frozenset({63, 94}), 600.0)


NODE = "write the name of this machine's Node object; in a pod take it from spec.nodeName"
SOURCE = "write nvml for the node's own GPUs, or simulated:PATH for those of a profile"
LOTS = "'lots' is no amount of memory; write one such as 16Gi or 40000Mi"
XIDS = "write the numbers of Xids with commas between them, such as 63,94"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--watchdog=Kill"], "--watchdog='Kill': write one of off, report, evict, kill"),
        (["--watchdog-tolerance-mib=-1"], "--watchdog-tolerance-mib='-1': write a whole number of MiB"),
        (["--node-name=a b"], f"--node-name='a b': {NODE}"),
        ([f"--node-name={'a' * 254}"], f"--node-name='{'a' * 254}': {NODE}"),
        (["--node-name="], f"--node-name='': {NODE}"),
        (["--node-name=a,spec.nodeName=b"], f"--node-name='a,spec.nodeName=b': {NODE}"),
        (["--gpu-source=cuda"], f"--gpu-source='cuda': {SOURCE}"),
        (["--gpu-source=simulated:"], f"--gpu-source='simulated:': {SOURCE}"),
        (["--memory-unit=3GB"], "--memory-unit='3GB': memory unit '3GB': write GiB, MiB or a multiple such as 256MiB"),
        (["--gpu-memory=all"], "--gpu-memory='all': write one of usable, total"),
        (["--unified-memory=lots"], f"--unified-memory='lots': {LOTS}"),
        (["--ignored-xids=63;94"], f"--ignored-xids='63;94': {XIDS}"),
        (["--xid-recovery=-1"], "--xid-recovery='-1': write a number of seconds, or 0 for never"),
        (["--gpu-percent=maybe"], "--gpu-percent='maybe': write true or false"),
        (["--whole-gpus="], "--whole-gpus='': write true or false"),
        (["--poll-interval=0"], "--poll-interval='0': write a number above 0"),
        (["--poll-interval=soon"], "--poll-interval='soon': could not convert string to float: 'soon'"),
        (["--publish-interval=-1"], "--publish-interval='-1': write a number above 0"),
        (["--log-level=loud"], "--log-level='loud': write one of debug, info, warning, error"),
        ([], "the node's name is missing: set --node-name or GPUSHARE_NODE_NAME; in a pod take it from spec.nodeName"),
        (["--node-name=node-a"], "not in a cluster: KUBERNETES_SERVICE_HOST is not set; give --kubeconfig"),
        (["--node-name=node-a", "--kubeconfig=/none"], "kubeconfig /none: no such file"),
    ],
)
def test_a_wrong_setting_ends_the_program_with_a_message(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(flags) == 2
    assert capsys.readouterr().err == f"gpushare-device-plugin: {message}\n"
