"""One installation for all end-to-end tests, a fresh namespace for each."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kube import client
from localcluster import installation
from localcluster.cluster import Cluster
from tests.e2e.system import System

GPUS_PER_NODE = 4
GPU_GIB = 26
"""Two nodes of four GPUs hold 208 GiB: hardly more than the 200 pods of 1 GiB that are created at once."""

LEASE_S = 6
CONFIG = {
    "GPUSHARE_WHOLE_GPUS": "true",
    # Twenty leaders are killed one after another; the defaults are 15, 10 and 2 s.
    "GPUSHARE_LEASE_SECONDS": str(LEASE_S),
    "GPUSHARE_RENEW_SECONDS": "3",
    "GPUSHARE_RETRY_SECONDS": "0.5",
    "GPUSHARE_BIND_SECONDS": "1",
    # A rotation that takes half a minute instead of eleven.
    "GPUSHARE_CERT_CHECK_S": "2",
    "GPUSHARE_CERT_PROPAGATION_S": "5",
    "GPUSHARE_CERT_RETIRE_S": "10",
}
PROFILE = f"gpus: [{{model: Simulated, memoryMiB: {GPU_GIB * 1024}, count: {GPUS_PER_NODE}}}]"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without root or Linux there is no cluster; that is said loudly, and is an error in CI."""
    lacking = "" if sys.platform == "linux" and os.geteuid() == 0 else "NO END-TO-END TEST RUNS: it needs root on Linux"
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        item.add_marker(pytest.mark.e2e)
        if lacking and os.environ.get("CI"):
            raise pytest.UsageError(lacking)
        if lacking:
            item.add_marker(pytest.mark.skip(reason=lacking))


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Two nodes; the logs stay when a test failed."""
    reporter = pytestconfig.pluginmanager.getplugin("terminalreporter")
    began = time.monotonic()

    def say(line: str) -> None:
        if reporter is not None:
            reporter.write_line(f"[{time.monotonic() - began:5.1f} s] {line}")

    with Cluster(nodes=2, audit=True, kubelet_configuration={"maxPods": 220}, say=say) as running:
        installation.install(running, config=CONFIG, profile=PROFILE, say=say)
        yield running


@pytest.fixture(scope="session")
def system(cluster: Cluster) -> Iterator[System]:
    """The installation with a client for it."""
    api = client.connect(str(cluster.kubeconfig))
    yield System(cluster, api)
    api.close()


@pytest.fixture
def namespace(system: System, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own; its pods are gone before the next test."""
    name = f"e2e-{abs(hash(request.node.nodeid)) % 10**8:08}"
    system.cluster.kubectl("create", "namespace", name)
    system.eventually(
        "service account",
        lambda: system.cluster.kubectl("get", "serviceaccount", "default", "-n", name, check=False).returncode == 0,
    )
    yield name
    system.delete_all(name)
    system.cluster.kubectl("delete", "namespace", name, "--wait=false")
