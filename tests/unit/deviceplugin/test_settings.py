"""What an administrator can set, and what he is told when it is wrong."""

from pathlib import Path

import pytest

from deviceplugin import main as program
from deviceplugin.settings import Settings
from gpushare.runtime import options
from gpushare.units import MemoryUnit
from tests.unit.deviceplugin import golden


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUSHARE_NODE_NAME", "GPUSHARE_MEMORY_UNIT", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


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


WRONG = [
    *("--watchdog=Kill", "--watchdog-tolerance-mib=-1", "--node-name=a b", f"--node-name={'a' * 254}", "--node-name="),
    *("--node-name=a,spec.nodeName=b", "--gpu-source=cuda", "--gpu-source=simulated:", "--memory-unit=3GB"),
    *("--gpu-memory=all", "--unified-memory=lots", "--ignored-xids=63;94", "--xid-recovery=-1", "--gpu-percent=maybe"),
    *("--whole-gpus=", "--poll-interval=0", "--poll-interval=soon", "--publish-interval=-1", "--log-level=loud"),
    *("", "--node-name=node-a", "--node-name=node-a --kubeconfig=/none"),
]


def test_a_wrong_setting_ends_the_program_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    for text in WRONG:
        flags = text.split(" --")
        assert program.main([flags[0], *(f"--{flag}" for flag in flags[1:])] if text else []) == 2, text
    golden.compare("settings", capsys.readouterr().err.splitlines())
