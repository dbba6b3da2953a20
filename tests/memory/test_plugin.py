"""The device plugin's real process under the manifest's limit: a full node of 16 GPUs, and clients that attack it."""

import contextlib
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import names
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.ledger import Allocation
from gpushare.wire import allocations
from testing.builders import Json, make_container, make_grant, make_node, make_pod
from testing.fakes import kube_http
from testing.fakes.http_server import free_port
from testing.fakes.kube import FakeKube
from testing.nvml.stub import MIB, Stub
from tests.memory import groups

NODE = NodeName("node-a")
GPUS, PODS, PROCESSES = 16, 110, 10_000
FIRST_PID = 2_000_000_000  # of no process
CLIENTS = 200


def pod_of(number: int, uuids: list[str]) -> Json:
    """One that holds a part of every GPU."""
    ref = PodRef(namespace="default", name=f"pod-{number}", uid=PodUid(f"00000000-0000-4000-8000-{number:012x}"))
    allocation = Allocation(pod=ref, node=NODE, grants=(make_grant(*uuids, gib=1),))
    annotations = {names.ANNOTATION_ALLOCATION: allocations.encode(allocation)}
    pod = make_pod(make_container("main", GPUS), name=ref.name, node=NODE, annotations=annotations, phase="Running")
    pod["metadata"]["uid"] = ref.uid
    report = {"name": "main", "containerID": f"containerd://{number:064x}", "state": {"running": {}}}
    pod["status"]["containerStatuses"] = [report]
    return pod


@pytest.fixture
def node(nvml_stub: Stub) -> Iterator[str]:
    """An API server with the pods, and the driver's lists; its address."""
    for _ in range(GPUS):
        number = nvml_stub.add_gpu(143771)
        nvml_stub.set({f"{number}.compute.many": f"{FIRST_PID} {PROCESSES} {MIB}"})
    api = FakeKube()
    api.seed(f"/api/v1/nodes/{NODE}", make_node(name=NODE))
    uuids = [str(nvml_stub.keys[f"{number}.uuid"]) for number in range(GPUS)]
    for number in range(PODS):
        api.seed(f"/api/v1/namespaces/default/pods/pod-{number}", pod_of(number, uuids))
    with kube_http.serving(api) as url:
        yield url


def flags(url: str, directory: Path, port: int) -> list[str]:
    (directory / "plugins").mkdir()
    (directory / "config").write_text(kube_http.kubeconfig(url))
    given = {
        "node-name": NODE,
        "kubeconfig": directory / "config",
        "device-plugins-dir": directory / "plugins",
        "pod-resources-socket": directory / "none.sock",
        "cdi-dir": directory / "cdi",
        "probe-port": 0,
        "metrics-port": port,
        "usage": "true",
        "usage-interval": 1,
        "watchdog": "report",
    }
    return [f"--{name}={value}" for name, value in given.items()]


def page(port: int) -> str:
    """The metrics; empty while there are none."""
    url = f"http://127.0.0.1:{port}/metrics"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())
    return ""


def foreign(text: str) -> list[str]:
    return re.findall(r"^gpushare_plugin_gpu_foreign_bytes\{.*\} (\S+)$", text, flags=re.MULTILINE)


def attack(port: int) -> None:
    """Headers that are large and never end, and pages that are asked for and not read."""
    head = b"GET /metrics HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 60_000) for i in range(90))
    with contextlib.ExitStack() as clients:
        for number in range(CLIENTS):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            client.settimeout(0.2)
            with contextlib.suppress(OSError):  # it hangs up
                client.sendall(head if number % 2 else b"GET /metrics HTTP/1.0\r\n\r\n")
        assert page(port)


@pytest.mark.timeout(900)
def test_a_full_node_with_usage_and_a_watchdog_stays_below_the_limit(
    node: str, nvml_stub: Stub, tmp_path: Path
) -> None:
    port = free_port()
    argv = ["deviceplugin", *flags(node, tmp_path, port)]
    with groups.program("gpushare-device-plugin", "device-plugin", argv, tmp_path / "log", **nvml_stub.env) as program:
        while not (found := foreign(text := page(port))) or float(found[0]) != PROCESSES * MIB:
            program.check()
            time.sleep(0.5)
        assert len(found) == GPUS
        assert len(re.findall(r"^gpushare_plugin_container_used_bytes", text, flags=re.MULTILINE)) == GPUS * PODS
        group, before = program.group, program.group.anonymous()
        attack(port)
        program.check()
        print(f"{group.report()}, {before // MIB} MiB before the attack, {group.anonymous() // MIB} MiB after it")
