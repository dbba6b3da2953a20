"""One installation for all end-to-end tests, a fresh namespace for each."""

import contextlib
import os
import sys
import time
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpushare.kube import client
from localcluster import installation
from localcluster.cluster import Cluster
from localcluster.provision import Say, Version
from tests.e2e import disturb
from tests.e2e.system import System

GPUS_PER_NODE = 4
GPU_GIB = 26
"""Two nodes of four GPUs hold 208 GiB: hardly more than the 200 pods of 1 GiB that the soak creates at once."""

LEASE_S = 6
CONFIG = {
    "GPUSHARE_WHOLE_GPUS": "true",
    "GPUSHARE_PLACEHOLDERS": "2",
    # Leaders are killed one after another; the defaults are 15, 10 and 2 s.
    "GPUSHARE_LEASE_SECONDS": str(LEASE_S),
    "GPUSHARE_RENEW_SECONDS": "3",
    "GPUSHARE_RETRY_SECONDS": "0.5",
    "GPUSHARE_BIND_SECONDS": "1",
    # Plugins read the labels of their nodes every five minutes otherwise, or when they start.
    "GPUSHARE_PUBLISH_INTERVAL": "2",
    # A rotation that takes half a minute instead of eleven.
    "GPUSHARE_CERT_CHECK_S": "2",
    "GPUSHARE_CERT_PROPAGATION_S": "5",
    "GPUSHARE_CERT_RETIRE_S": "10",
}
CDI_NODES = [int(number) for number in os.environ.get("E2E_CDI", "1").split()]
"""Numbers of the nodes whose container runtime has CDI; an empty setting: none."""
PLACES = [f"node-{number}" for number in ((1, 2) if len(CDI_NODES) == 1 else (1,))]
"""One node of each way to hand GPUs over."""
CLAIMS_SINCE = Version(1, 36)
REMOVES_AT_ONCE = Version(1, 22)
"""Older kubelets remove a pod up to a minute after its containers have ended: with their next garbage collection."""
PROFILE = f"gpus: [{{model: Simulated, memoryMiB: {GPU_GIB * 1024}, count: {GPUS_PER_NODE}}}]"


HERE = Path(__file__).parent
LONGEST_FIRST = (
    *("test_lifecycle.py", "test_tenant.py", "test_right_gpu.py", "test_migrate.py", "test_handover.py"),
    *("test_outages.py", "test_controller.py", "test_hardware.py", "test_demands.py", "test_requests.py"),
)
"""Files are handed to the clusters one by one, so a long one at the end would leave the other cluster idle."""
ONLY_WHEN_NAMED = ("soak", "release")
"""Marks of tests that run only where `-m` names them."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Put the longest files first, leave out what must be asked for by its mark, and never skip silently in CI.

    Without root or Linux there is no cluster; that is said loudly, and is an error in CI.
    """
    own = [item for item in items if item.path.is_relative_to(HERE)]
    lacking = "" if sys.platform == "linux" and os.geteuid() == 0 else "NO END-TO-END TEST RUNS: it needs root on Linux"
    if own and lacking and os.environ.get("CI"):
        raise pytest.UsageError(lacking)
    for item in own:
        item.add_marker(pytest.mark.e2e)
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))
        if lacking:
            item.add_marker(pytest.mark.skip(reason=lacking))
    yield  # pytest deselects by these marks
    unnamed = [mark for mark in ONLY_WHEN_NAMED if mark not in config.option.markexpr]
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in unnamed)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    name = item.path.name
    if not item.path.is_relative_to(HERE):
        return -1  # `tests/localcluster` has a cluster of its own, which is better gone before the others grow
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Say:
    """Prints a line at once, with the time and, beside other clusters, whose it is."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    worker = getattr(pytestconfig, "workerinput", {}).get("workerid", "")
    began = time.monotonic()

    def write(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"{worker}[{time.monotonic() - began:6.1f} s] {line}", file=sys.stderr, flush=True)

    return write


def components_of(cluster: Cluster) -> list[str]:
    return ["dra"] if cluster.version >= CLAIMS_SINCE else []


@pytest.fixture(scope="session")
def cluster(say: Say) -> Iterator[Cluster]:
    """Two nodes, of which one hands GPUs over by CDI and one by the variable; the logs stay when a test failed."""
    with Cluster(nodes=2, cdi=CDI_NODES, audit=True, kubelet_configuration={"maxPods": 220}, say=say) as running:
        installation.install(running, config=CONFIG, profile=PROFILE, components=components_of(running), say=say)
        yield running


@pytest.fixture(scope="session")
def system(cluster: Cluster) -> Iterator[System]:
    api = client.connect(str(cluster.kubeconfig))
    running = System(cluster, api)
    removing = [partial(disturb.remove_ended, running)] if cluster.version < REMOVES_AT_ONCE else []
    with disturb.Background(*removing):
        yield running
    api.close()


@pytest.fixture
def namespace(system: System, request: pytest.FixtureRequest) -> Iterator[str]:
    with fresh_namespace(system, request.node.nodeid) as name:
        yield name


@pytest.fixture(scope="module")
def shared_namespace(system: System, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for the tests of a module whose pods are small and in no one's way; they stay until its end."""
    with fresh_namespace(system, request.node.nodeid) as name:
        yield name


@contextlib.contextmanager
def fresh_namespace(system: System, what: str) -> Iterator[str]:
    """A new one, in which pods can be created; afterwards none is left, and the controller no longer counts any."""
    name = f"e2e-{zlib.crc32(what.encode()):08x}-{time.time_ns() % 10**6:06}"
    system.create_namespace(name)
    yield name
    system.delete_all(name)
    system.eventually(f"the controller has no pods of {name}", lambda: not counted(system, name))
    system.api.delete(f"/api/v1/namespaces/{name}")


def counted(system: System, namespace: str) -> bool:
    """Whether the controller counts pods of a namespace, or does not answer."""
    try:
        devices = [device for node in system.inspect()["nodes"] for device in node["devs"]]
    except OSError:
        return True
    return any(pod["namespace"] == namespace for device in devices for pod in device["pods"])
