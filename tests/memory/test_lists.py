"""Controller and device plugin live within the memory of their manifests, whatever pods the API server lists."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.fakes.kube_http import kubeconfig
from tests.memory import groups
from tests.memory.large import NODE, LargeServer, serving

ROOT = Path(__file__).parents[2]


@pytest.fixture
def large() -> LargeServer:
    return LargeServer()


@pytest.fixture
def config(large: LargeServer, tmp_path: Path) -> Iterator[Path]:
    with serving(large) as url:
        file = tmp_path / "config"
        file.write_text(kubeconfig(url))
        yield file


def survives(workload: str, container: str, large: LargeServer, argv: list[str], log: Path) -> None:
    limit = groups.manifest_limit(workload, container)
    with groups.limited(container, limit) as group, log.open("wb") as output:
        process = subprocess.Popen(group.enter([sys.executable, "-m", *argv]), cwd=ROOT, stderr=output)
        try:
            while not large.digested.wait(0.5):
                assert process.poll() is None, f"{group.report()}\n{log.read_text()[-2000:]}"
            assert group.kills() == 0, group.report()
            print(group.report(), group.anonymous() // 2**20)
        finally:
            process.kill()
            process.wait(20)


@pytest.mark.timeout(600)
def test_the_device_plugin_reads_pods_that_are_made_to_be_large(
    large: LargeServer, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "plugins").mkdir()
    profile = tmp_path / "profile.yaml"
    profile.write_text("gpus:\n  - {model: Tesla T4, memoryMiB: 15109, count: 2}\n")
    flags = {
        "--node-name": NODE,
        "--kubeconfig": str(config),
        "--gpu-source": f"simulated:{profile}",
        "--device-plugins-dir": str(tmp_path / "plugins"),
        "--pod-resources-socket": str(tmp_path / "none.sock"),
        "--probe-port": "0",
    }
    argv = ["deviceplugin", *(part for flag in flags.items() for part in flag)]
    survives("gpushare-device-plugin", "device-plugin", large, argv, tmp_path / "log")


@pytest.mark.timeout(600)
def test_the_controller_reads_pods_that_are_made_to_be_large(large: LargeServer, config: Path, tmp_path: Path) -> None:
    argv = [
        "controller",
        "--kubeconfig",
        str(config),
        "--port",
        "0",
        "--probe-port",
        "0",
        "--bind-address",
        "127.0.0.1",
    ]
    assert "GPUSHARE_PORT" not in os.environ
    survives("gpushare-controller", "controller", large, argv, tmp_path / "log")
