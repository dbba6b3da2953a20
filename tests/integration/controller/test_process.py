"""The whole program: gunicorn, election and watches in real processes, against a fake API server on a socket."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpushare import names
from gpushare.kube.api import JsonObject
from testing.builders import make_inventory, make_node, make_pod
from testing.fakes.kube import FakeKube
from testing.fakes.kube_http import kubeconfig, serving
from tests.unit.controller.world import NODES, path_of

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/{names.LEASE}"
QUICK = {"LEASE_SECONDS": "3", "RENEW_SECONDS": "1.5", "RETRY_SECONDS": "0.3", "BIND_SECONDS": "0.7"}


class Program:
    """One running controller."""

    def __init__(self, config: Path, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = directory / f"{self.port}.log"
        environ = {f"GPUSHARE_{key}": value for key, value in QUICK.items()}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "controller", "--kubeconfig", config, "--port", str(self.port)],
                env={**os.environ, **environ, "GPUSHARE_BIND_ADDRESS": "127.0.0.1"},
                stderr=log,
                start_new_session=True,
            )

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else orjson.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def post(self, verb: str, body: object) -> Any:
        return orjson.loads(self.ask("POST", f"{names.EXTENDER_PREFIX}/{verb}", body)[1])

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@pytest.fixture
def api() -> FakeKube:
    api = FakeKube()
    api.seed(NODES, make_node(make_inventory(10, 10)))
    return api


@pytest.fixture
def start(api: FakeKube, tmp_path: Path) -> Iterator[Callable[[], Program]]:
    programs: list[Program] = []
    with serving(api) as url:
        config = tmp_path / "config"
        config.write_text(kubeconfig(url))

        def starting() -> Program:
            programs.append(Program(config, tmp_path))
            return programs[-1]

        yield starting
        for program in programs:
            program.kill()


def eventually(what: str, check: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def add_pod(api: FakeKube, name: str) -> JsonObject:
    pod = make_pod(name=name)
    del pod["metadata"]["uid"]
    return api.seed("/api/v1/namespaces/team/pods", pod)


def schedule(program: Program, pod: JsonObject) -> str:
    """What kube-scheduler does for one pod; the error of bind."""
    assert program.post("filter", {"Pod": pod, "NodeNames": ["node-a"]})["NodeNames"] == ["node-a"]
    meta = pod["metadata"]
    args = {"PodName": meta["name"], "PodNamespace": "team", "PodUID": meta["uid"], "Node": "node-a"}
    error: str = program.post("bind", args)["Error"]
    return error


def test_a_program_serves_binds_and_gives_the_lease_back(api: FakeKube, start: Callable[[], Program]) -> None:
    program = start()
    eventually("ready", program.is_ready)
    pod = add_pod(api, "p")
    assert schedule(program, pod) == ""
    bound = api.read(path_of(pod))
    assert bound["spec"]["nodeName"] == "node-a"
    assert bound["metadata"]["annotations"]["devices.gpushare.dev/main"] == "GPU-0"
    assert b"gpushare_leading 1.0" in program.ask("GET", "/metrics")[1]
    assert [call.path for call in api.calls if "/pods/p" in call.path] == [f"{path_of(pod)}/binding"]
    program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(20) == 0
    assert api.read(LEASE)["spec"]["holderIdentity"] == ""


def test_connections_are_kept(api: FakeKube, start: Callable[[], Program]) -> None:
    program = start()
    eventually("ready", program.is_ready)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", program.port, timeout=10)) as connection:
        connection.connect()
        first = connection.sock
        for _ in range(5):
            connection.request("POST", f"{names.EXTENDER_PREFIX}/bind", b"{}")
            assert connection.getresponse().read() == b'{"Error":"PodNamespace: expected a text, found nothing"}'
        assert connection.sock is first


def test_the_other_replica_takes_over_from_a_killed_leader_with_the_same_books(
    api: FakeKube, start: Callable[[], Program]
) -> None:
    first = start()
    eventually("first is ready", first.is_ready)
    second = start()
    assert schedule(first, add_pod(api, "p")) == ""
    first.kill()
    eventually("second is ready", second.is_ready)
    books = orjson.loads(second.ask("GET", f"{names.EXTENDER_PREFIX}/inspect")[1])
    assert books["nodes"][0]["devs"][0]["pods"] == [{"name": "p", "namespace": "team", "usedGPU": 3}]
    assert schedule(second, add_pod(api, "q")) == ""


def test_a_leader_whose_lease_was_taken_ends_at_once_with_all_its_processes(
    api: FakeKube, start: Callable[[], Program]
) -> None:
    program = start()
    eventually("ready", program.is_ready)
    api.edit(LEASE, lambda lease: lease["spec"].update(holderIdentity="thief", renewTime="now"))
    assert program.process.wait(20) == 3
    with pytest.raises(ProcessLookupError):
        os.killpg(program.process.pid, 0)
    assert "lead lost" in program.log.read_text()
