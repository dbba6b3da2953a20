"""The whole program: supervisor, server and watches in real processes, against a fake API server on a socket."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpushare import names
from gpushare.kube.api import JsonObject
from testing.builders import make_inventory, make_node
from testing.controller.world import NODES, bind_request, path_of
from testing.fakes.kube import Delayed, FakeKube
from testing.fakes.kube_http import kubeconfig, serving
from tests.integration.controller.replicas import add_pod

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/{names.LEASE}"
QUICK = {"LEASE_SECONDS": "3", "RENEW_SECONDS": "1.5", "RETRY_SECONDS": "0.3", "BIND_SECONDS": "0.7"}
PATIENT = """
from controller.extender import bind
from gpushare import launch
bind.BUDGET_S = 500.0
raise SystemExit(launch.controller())
"""  # the program whose binds may take longer than kube-scheduler waits


class Program:
    """One running controller."""

    def __init__(self, config: Path, directory: Path, *argv: str, **settings: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
            self.port, self.probe_port = one.getsockname()[1], two.getsockname()[1]
        self.log = directory / f"{self.port}.log"
        own = {"BIND_ADDRESS": "127.0.0.1", "PORT": str(self.port), "PROBE_PORT": str(self.probe_port)}
        environ = {f"GPUSHARE_{key}": value for key, value in {**QUICK, **settings, **own}.items()}
        command = [sys.executable, *(argv or ("-m", "controller")), "--kubeconfig", str(config)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env={**os.environ, **environ}, stderr=log, start_new_session=True)

    def ask(self, method: str, path: str, body: object = None, *, port: int = 0) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=250)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else orjson.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def post(self, verb: str, body: object) -> Any:
        return orjson.loads(self.ask("POST", f"{names.EXTENDER_PREFIX}/{verb}", body)[1])

    def answers(self, path: str = "/livez") -> bool:
        try:
            return self.probe(path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def is_ready(self) -> bool:
        """Whether it leads and serves: the kubelet's probe says this of a follower too."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("GET", "/readyz")[0] == 200
        return False

    def probe(self, path: str) -> tuple[int, bytes]:
        return self.ask("GET", path, port=self.probe_port)

    def worker(self) -> int:
        """Process number of the worker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def all_processes(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.all_processes(signal.SIGKILL)
        self.process.wait(10)


@pytest.fixture
def api() -> FakeKube:
    api = FakeKube()
    api.seed(NODES, make_node(make_inventory(10, 10)))
    return api


@pytest.fixture
def start(api: FakeKube, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []
    with serving(api) as url:
        config = tmp_path / "config"
        config.write_text(kubeconfig(url))

        def starting(*argv: str, **settings: str) -> Program:
            programs.append(Program(config, tmp_path, *argv, **settings))
            return programs[-1]

        yield starting
        for program in programs:
            program.kill()


@pytest.fixture
def program(start: Callable[..., Program]) -> Program:
    """One that is ready."""
    program = start()
    eventually("ready", program.is_ready)
    return program


def eventually(what: str, check: Callable[[], object], timeout_s: float = 250.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def schedule(program: Program, pod: JsonObject) -> str:
    """What kube-scheduler does for one pod; the error of bind."""
    assert program.post("filter", {"Pod": pod, "NodeNames": ["node-a"]})["NodeNames"] == ["node-a"]
    return bind_error(program, pod)


def bind_error(program: Program, pod: JsonObject) -> str:
    return str(program.post("bind", bind_request(pod))["Error"])


def test_a_program_serves_binds_and_gives_the_lease_back(api: FakeKube, program: Program) -> None:
    pod = add_pod(api, "p")
    assert schedule(program, pod) == ""
    bound = api.read(path_of(pod))
    assert bound["spec"]["nodeName"] == "node-a"
    assert bound["metadata"]["annotations"]["devices.gpushare.dev/main"] == "GPU-0"
    assert b"gpushare_leading 1.0" in program.ask("GET", "/metrics")[1]
    assert [call.path for call in api.calls if "/pods/p" in call.path] == [f"{path_of(pod)}/binding"]
    assert stop(program) == 0
    assert api.read(LEASE)["spec"]["holderIdentity"] == ""
    with pytest.raises(ProcessLookupError):
        program.all_processes(signal.SIGCONT)


def test_another_takes_over_with_the_same_ledger(
    api: FakeKube, program: Program, start: Callable[..., Program]
) -> None:
    first, second = program, start()
    assert schedule(first, add_pod(api, "p")) == ""
    eventually("second follows", second.answers)
    assert second.ask("GET", "/readyz") == (503, b"this replica of the gpushare controller does not lead\n")
    eventually("second could lead", lambda: second.answers("/readyz"))
    assert second.probe("/livez") == (200, b"ok\n")
    first.kill()
    eventually("second is ready", second.is_ready)
    reported = orjson.loads(second.ask("GET", f"{names.EXTENDER_PREFIX}/inspect")[1])
    assert reported["nodes"][0]["devs"][0]["pods"] == [{"name": "p", "namespace": "team", "usedGPU": 3}]
    assert schedule(second, add_pod(api, "q")) == ""


def bindings(api: FakeKube) -> int:
    return api.count("create", "/binding")


def stop(program: Program) -> int:
    program.process.send_signal(signal.SIGTERM)
    return program.process.wait(60)


def test_a_replica_that_does_not_lead_keeps_no_connection(program: Program, start: Callable[..., Program]) -> None:
    """kube-scheduler keeps its connection for as long as it is answered: it would ask this replica forever."""
    follower = start()
    eventually("it follows", follower.answers)
    for asked, closes in ((program, False), (follower, True)):
        connection = http.client.HTTPConnection("127.0.0.1", asked.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", f"{names.EXTENDER_PREFIX}/bind", b"{}")
            answer = connection.getresponse()
            answer.read()
            assert (answer.getheader("Connection"), connection.sock is None) == (
                ("close", True) if closes else (None, False)
            )


def test_a_leader_past_its_lease_writes_nothing(api: FakeKube, program: Program, start: Callable[..., Program]) -> None:
    """As a virtual machine that is paused, with a request of kube-scheduler on its way."""
    first, second = program, start()
    eventually("second follows", second.answers)
    pod = add_pod(api, "p")
    first.all_processes(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        error = pool.submit(bind_error, first, pod)
        eventually("second is ready", second.is_ready)
        sent = bindings(api)
        first.all_processes(signal.SIGCONT)
        # The worker may die before it has answered; a time-out is another OSError.
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            assert "does not lead" in error.result()
    eventually("first follows with a fresh worker", first.answers)
    assert bindings(api) == sent
    assert schedule(second, pod) == ""
    assert first.process.poll() is None


def test_a_worker_that_stands_still_is_replaced(api: FakeKube, program: Program) -> None:
    worker = program.worker()
    os.kill(worker, signal.SIGSTOP)
    eventually("it is killed", lambda: not Path(f"/proc/{worker}").exists())
    eventually("ready again", program.is_ready)
    assert api.read(LEASE)["spec"]["leaseTransitions"] >= 1
    assert stop(program) == 0


def test_a_worker_without_its_supervisor_ends(program: Program) -> None:
    worker = program.worker()
    os.kill(program.process.pid, signal.SIGKILL)
    program.process.wait(60)
    eventually("the worker is gone", lambda: not Path(f"/proc/{worker}").exists())


def test_a_signal_while_the_first_worker_starts_ends_the_program(start: Callable[..., Program]) -> None:
    program = start()
    eventually("a worker", lambda: program.process.poll() is not None or program.worker())
    assert stop(program) == 0


def test_probes_do_not_wait_behind_binds_that_wait(api: FakeKube, start: Callable[..., Program]) -> None:
    program = start("-c", PATIENT, THREADS="4", BIND_SECONDS="500", LEASE_SECONDS="1200")
    eventually("ready", program.is_ready)
    silent = threading.Event()
    held = Delayed(silent)
    api.fail_next(lambda call: call.path.endswith("/binding") or "/pods/" in call.path, held, times=10**6)
    pods = [add_pod(api, f"p{i}") for i in range(12)]
    with ThreadPoolExecutor(len(pods)) as pool:
        binds = [pool.submit(bind_error, program, pod) for pod in pods]
        eventually("the server is full", lambda: bindings(api) >= 1)
        assert program.probe("/readyz") == (200, b"ok\n")
        assert b"gpushare_leading 1.0" in program.probe("/metrics")[1]
        assert not all(bind.done() for bind in binds)
        silent.set()
