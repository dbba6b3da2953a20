"""Admission reviews over TLS and kept connections, beside the floor. Prints a table, asserts nothing.

python -m bench.webhook [--json FILE]

The webhook is the real process with one worker. The floor is a thread for each connection that parses the same review
with the same parser and writes as many bytes that it had ready. Both take turns.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson

from bench import floor, interleaved, start
from certs import authority
from certs.authority import KeyPair
from certs.contents import Contents
from certs.store import FileStore
from gpushare.kube.api import JsonObject
from testing.builders import make_container

ROUNDS, EACH = 5, 400
JSON = {"Content-Type": "application/json"}
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: none, user: {}}]
"""


@dataclass
class Side:
    """A server, asked over connections that stay."""

    pid: int
    connections: Sequence[http.client.HTTPSConnection]
    times_ms: list[float] = field(default_factory=list)
    cpu_ms: float = 0.0
    size: int = 0

    def ask(self, path: str, body: bytes) -> None:
        """EACH reviews, as many at a time as there are connections."""

        def stream(connection: http.client.HTTPSConnection) -> list[float]:
            times = []
            for _ in range(EACH // len(self.connections)):
                began = time.perf_counter()
                connection.request("POST", path, body, JSON)
                answer = connection.getresponse()
                self.size = len(answer.read())
                times.append((time.perf_counter() - began) * 1000)
                if answer.status != http.HTTPStatus.OK:
                    raise SystemExit(f"{path}: status {answer.status}")
            return times

        before = interleaved.cpu_ms(self.pid)
        with concurrent.futures.ThreadPoolExecutor(len(self.connections)) as pool:
            self.times_ms += [each for times in pool.map(stream, self.connections) for each in times]
        self.cpu_ms += interleaved.cpu_ms(self.pid) - before


@dataclass(frozen=True, slots=True)
class Row:
    """A question to both."""

    question: str
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    floor_p50_ms: float
    floor_cpu_ms: float

    @property
    def reviews_a_second_and_core(self) -> float:
        return 1000 / self.cpu_ms

    def __str__(self) -> str:
        return (
            f"| {self.question} | {self.p50_ms:.2f} | {self.p99_ms:.2f} | {self.cpu_ms:.3f} |"
            f" {self.reviews_a_second_and_core:.0f} | {self.floor_p50_ms:.2f} | {self.floor_cpu_ms:.3f} |"
            f" {self.cpu_ms / self.floor_cpu_ms:.1f} |"
        )


HEAD = (
    "| question | p50 ms | p99 ms | CPU ms | reviews a second and core | floor p50 | floor CPU | CPU / floor |\n"
    "|---|---|---|---|---|---|---|---|"
)


def review(*containers: JsonObject) -> bytes:
    """As an API server sends it: with managedFields, and all that a pod has around its containers."""
    pod = start.pod(2)
    pod["spec"] = {key: value for key, value in pod["spec"].items() if key != "nodeName"} | {"containers": containers}
    del pod["status"]
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "team",
        "name": "pod",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
    }
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def questions() -> Iterator[tuple[str, str, bytes]]:
    plain = {"name": "main", "image": "nginx"}
    yield "a GPU pod", "/mutate", review(make_container(gpu_mem=3))
    yield (
        "a GPU pod with four containers",
        "/mutate",
        review(make_container(gpu_mem=3), *({**plain, "name": f"c{i}"} for i in range(3))),
    )
    yield "another pod, which is kept from GPUs", "/isolate", review(plain)
    yield "a change that is checked", "/validate", review(make_container(gpu_mem=3))


def certificates(directory: Path) -> str:
    """In the directory; the authority that signed them."""
    now = datetime.now(UTC)
    ca = authority.make_ca(now=now, life=timedelta(days=2))
    leaf = authority.make_leaf(ca, names=frozenset({"localhost"}), now=now, life=timedelta(days=1))
    FileStore(directory).save(Contents(leaf=leaf, ca=KeyPair(ca.certificate, b"")))
    return ca.certificate.decode()


@contextlib.contextmanager
def webhook(directory: Path, port: int) -> Iterator[int]:
    """The process; the number of its worker."""
    (directory / "kubeconfig").write_text(KUBECONFIG, encoding="utf-8")
    argv = [sys.executable, "-m", "webhook", "--address=127.0.0.1", f"--port={port}", "--cert-source=files"]
    argv += [f"--cert-dir={directory / 'certs'}", f"--kubeconfig={directory / 'kubeconfig'}"]
    argv += [f"--worker-tmp-dir={directory}", "--runtime-class-mode=always"]
    with (directory / "log").open("wb") as log, subprocess.Popen(argv, stderr=log) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            while not (workers := children.read_text(encoding="ascii").split()):
                time.sleep(0.05)
            yield int(workers[0])
        finally:
            process.terminate()


@contextlib.contextmanager
def least(directory: Path, port: int) -> Iterator[int]:
    """The floor, with TLS; its number."""
    pid = os.fork()
    if pid == 0:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "certs" / "tls.crt", directory / "certs" / "tls.key")
        floor.serve(socket.create_server(("127.0.0.1", port)), lambda sock: context.wrap_socket(sock, server_side=True))
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def connected(port: int, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    for _ in range(200):
        connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
        with contextlib.suppress(OSError):
            connection.connect()
            return connection
        time.sleep(0.05)
    raise SystemExit("the server did not start")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def compare(question: str, path: str, body: bytes, ours: Side, lower: Side) -> Row:
    for side in (ours, lower):
        side.times_ms, side.cpu_ms = [], 0.0
    for _ in range(ROUNDS):
        ours.ask(path, body)
        lower.ask(f"/{ours.size}", body)
    times, count = sorted(ours.times_ms), len(ours.times_ms)
    return Row(
        question=question,
        p50_ms=statistics.median(times),
        p99_ms=times[min(count - 1, int(count * 0.99))],
        cpu_ms=ours.cpu_ms / count,
        floor_p50_ms=statistics.median(lower.times_ms),
        floor_cpu_ms=lower.cpu_ms / len(lower.times_ms),
    )


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory, ports = Path(name), (free_port(), free_port())
        context = ssl.create_default_context(cadata=certificates(directory / "certs"))
        floor_pid = stack.enter_context(least(directory, ports[1]))
        worker = stack.enter_context(webhook(directory, ports[0]))
        for streams in (1, 8):
            ours, lower = (
                Side(pid, [connected(port, context) for _ in range(streams)])
                for pid, port in zip((worker, floor_pid), ports, strict=True)
            )
            for question, path, body in questions():
                ours.ask(path, body)
                yield compare(f"{question}, {streams} at a time", path, body, ours, lower)


def main() -> int:
    parser = argparse.ArgumentParser(description="Admission reviews over TLS, beside the floor.")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    arguments = parser.parse_args()
    print(f"{interleaved.is_quiet()}\n{HEAD}", flush=True)
    found = []
    for row in measure():
        print(row, flush=True)
        found.append(row)
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps([asdict(one) for one in found], option=orjson.OPT_INDENT_2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
