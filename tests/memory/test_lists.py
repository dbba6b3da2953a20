"""Controller and device plugin live within the memory of their manifests, whatever pods the API server lists.

Those are of every kind that a tenant can make large. Each has about as many bytes as etcd stores, 1.5 MiB as protobuf,
in the form that takes the most memory once parsed.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import orjson
import pytest

from testing.builders import Json, make_container, make_inventory, make_node
from testing.fakes import http_server, kube_http
from testing.fakes.kube import FakeKube
from tests.memory import groups

LISTED: Final = 120
CHANGED: Final = 12
NODE: Final = "node-a"
PODS: Final = "/api/v1/pods"
_AFTER: Final = "9"


def pods() -> dict[str, Json]:
    """Specs by what is large about them. All ask for GPUs, so that what matters of them is kept."""
    asking = make_container("main", 1)
    variable = {"name": "NVIDIA_VISIBLE_DEVICES"}
    term = {"weight": 1, "podAffinityTerm": {"topologyKey": "a"}}
    return {
        "affinity terms": {"affinity": {"podAffinity": {"preferred": [term] * 150_000}}},
        "pull secrets": {"imagePullSecrets": [{"name": "a"}] * 300_000},
        "variables": {"containers": [asking | {"env": [variable] * 50_000}]},
        "escapes": {"containers": [asking | {"args": ["\u0001" * 1_500_000]}]},
        "containers": {"containers": [make_container(f"c{i}", 1) for i in range(10_000)]},
        "labels": {"labels": {f"k{i}": "" for i in range(100_000)}},
    }


class LargeServer:
    """Serves one page of such pods, and a watch that changes some of them once more."""

    def __init__(self) -> None:
        self.digested = threading.Event()
        """Set when a client has read the list and all changes, and asks for what comes after them."""
        self.end = threading.Event()
        self._kinds = [self._pod(spec) for spec in pods().values()]

    @staticmethod
    def _pod(spec: Json) -> tuple[bytes, bytes]:
        """What stands before and after the number of the pod."""
        spec = {"nodeName": NODE, "containers": [make_container("main", 1)], **spec}
        labels = spec.pop("labels", {})
        metadata = {"name": "pod", "namespace": "team", "uid": "uid-@", "resourceVersion": "7", "labels": labels}
        data = orjson.dumps({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        before, _, after = data.partition(b"uid-@")
        return before, after

    def object(self, number: int) -> bytes:
        """A pod."""
        before, after = self._kinds[number % len(self._kinds)]
        return b"%suid-%d%s" % (before, number, after)

    def list(self) -> Iterator[bytes]:
        """A page as the API server writes it."""
        yield b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":['
        for number in range(LISTED):
            yield (b"," if number else b"") + self.object(number)
        yield b"]}\n"

    def changes(self, version: str) -> Iterator[bytes]:
        """A watch from a version on."""
        if version == _AFTER:
            self.digested.set()
            self.end.wait()
            return
        for number in range(CHANGED):
            yield b'{"type":"MODIFIED","object":%s}\n' % self.object(number)
        yield b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}\n' % _AFTER.encode()


def serving(large: LargeServer) -> contextlib.AbstractContextManager[str]:
    """The server's URL; all but the pods is in memory."""
    api = FakeKube()
    api.seed("/api/v1/nodes", make_node(make_inventory(80, 80, node=NODE)))

    def end() -> None:
        api.close()
        large.end.set()

    class Handler(kube_http.Handler):
        fake = api

        def do_GET(self) -> None:
            target = urlsplit(self.path)
            if target.path != PODS:
                super().do_GET()
                return
            params = dict(parse_qsl(target.query))
            self.stream(large.changes(params.get("resourceVersion", "")) if "watch" in params else large.list())

    return http_server.serving(Handler, before_end=end)


@pytest.fixture
def large() -> LargeServer:
    return LargeServer()


@pytest.fixture
def config(large: LargeServer, tmp_path: Path) -> Iterator[Path]:
    with serving(large) as url:
        file = tmp_path / "config"
        file.write_text(kube_http.kubeconfig(url))
        yield file


def survives(workload: str, container: str, large: LargeServer, argv: list[str], log: Path) -> None:
    with groups.program(workload, container, argv, log) as program:
        while not large.digested.wait(0.5):
            program.check()
        print(program.group.report(), program.group.anonymous() // 2**20)


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
    ports = ["--port", "0", "--probe-port", "0", "--bind-address", "127.0.0.1"]
    argv = ["controller", "--kubeconfig", str(config), *ports]
    assert "GPUSHARE_PORT" not in os.environ
    survives("gpushare-controller", "controller", large, argv, tmp_path / "log")
