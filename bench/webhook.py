"""Admission reviews over TLS and kept connections, beside the floor (`bench.floor`). Prints a table, asserts nothing.

python -m bench.webhook [--json FILE] [--reviews 400]

The webhook is the real process with one worker. The floor parses the same review with the same parser and writes as
many bytes that it had ready. Both take turns.
"""

import argparse
import contextlib
import http.client
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson

from bench import floor, generated, turns
from bench.results import Results, table
from bench.servers import forked, free_port
from bench.turns import Way
from certs import authority
from certs.authority import KeyPair
from certs.store import FileStore, SecretData
from gpushare.kube.api import JsonObject
from testing.builders import make_container, make_pod
from testing.fakes.kube_http import kubeconfig

STREAMS = (1, 8)
COLUMNS = ("question", "at a time", "way", "a second and core", "CPU ms server", "a second", "ratio")


def review(*containers: JsonObject) -> bytes:
    """As an API server sends it: with managedFields, and all that a pod has around its containers."""
    pod = generated.full(make_pod(*containers))
    managed = {"manager": "m", "fieldsV1": {f"f:{i}": {"f:a": {}, "f:b": {}} for i in range(60)}}
    pod["metadata"]["managedFields"] = [managed] * 2
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
    more = [{**plain, "name": f"c{i}"} for i in range(3)]
    yield "a GPU pod", "/mutate", review(make_container(gpu_mem=3))
    yield "a GPU pod with four containers", "/mutate", review(make_container(gpu_mem=3), *more)
    yield "another pod, which is kept from GPUs", "/isolate", review(plain)
    yield "a change that is checked", "/validate", review(make_container(gpu_mem=3))


def certificates(directory: Path) -> str:
    """In the directory; the authority that signed them."""
    now = datetime.now(UTC)
    ca = authority.make_ca(now=now, life=timedelta(days=2))
    leaf = authority.make_leaf(ca, names=frozenset({"localhost"}), now=now, life=timedelta(days=1))
    FileStore(directory).save(SecretData(leaf=leaf, ca=KeyPair(ca.certificate, b"")))
    return ca.certificate.decode()


@contextlib.contextmanager
def webhook(directory: Path, port: int) -> Iterator[Sequence[int]]:
    """Its processes. Its API server is out of reach."""
    (directory / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:9"), encoding="utf-8")
    argv = [sys.executable, "-m", "webhook", "--address=127.0.0.1", f"--port={port}", "--cert-source=files"]
    argv += [f"--cert-dir={directory / 'certs'}", f"--kubeconfig={directory / 'kubeconfig'}"]
    argv += [f"--worker-tmp-dir={directory}", "--runtime-class-mode=always"]
    with (directory / "log").open("wb") as log, subprocess.Popen(argv, stderr=log) as process:
        try:
            while not (workers := turns.children(process.pid)):
                if process.poll() is not None:
                    raise RuntimeError((directory / "log").read_text())
                time.sleep(0.05)
            yield [process.pid, *workers]
        finally:
            process.terminate()
            process.wait(60)


class Asking:
    """Some kept connections to a server."""

    def __init__(self, port: int, context: ssl.SSLContext, count: int) -> None:
        self._clients = [_connected(port, context) for _ in range(count)]

    def ask(self, path: str, body: bytes, each: int) -> int:
        """So many times over each of them, at the same time. The size of an answer."""

        def stream(client: http.client.HTTPSConnection) -> int:
            size = 0
            for _ in range(each):
                client.request("POST", path, body, {"Content-Type": "application/json"})
                answer = client.getresponse()
                size = len(answer.read())
                if answer.status != http.HTTPStatus.OK:
                    raise RuntimeError(f"{path}: status {answer.status}")
            return size

        with ThreadPoolExecutor(len(self._clients)) as pool:
            return max(pool.map(stream, self._clients))


def _connected(port: int, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    for _ in range(1200):
        connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
        with contextlib.suppress(OSError):
            connection.connect()
            return connection
        time.sleep(0.05)
    raise RuntimeError(f"no server listens on port {port}")


def measure(directory: Path, reviews: int, results: Results) -> None:
    """Every question to both, with one stream and with more."""
    context = ssl.create_default_context(cadata=certificates(directory / "certs"))
    ours_at, floor_at = free_port(), free_port()

    def least(port: int) -> None:
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(directory / "certs/tls.crt", directory / "certs/tls.key")
        floor.serve(socket.create_server(("127.0.0.1", port)), lambda sock: own.wrap_socket(sock, server_side=True))

    with forked(least, floor_at) as floor_pid, webhook(directory, ours_at) as pids:
        for streams in STREAMS:
            ours, lower = (Asking(port, context, streams) for port in (ours_at, floor_at))
            for question, path, body in questions():
                size, each = ours.ask(path, body, 1), max(reviews // streams, 1)
                ways = (
                    Way(
                        name="floor",
                        prepare=lambda: None,
                        act=_act(lower, f"/{size}", body, each, streams),
                        pids={"server": [floor_pid]},
                    ),
                    Way(
                        name="webhook",
                        prepare=lambda: None,
                        act=_act(ours, path, body, each, streams),
                        pids={"server": pids},
                    ),
                )
                rows = [
                    {"key": path, "question": question, "at a time": streams}
                    | taken.row
                    | {"a second and core": round(1000 / taken.cpu_ms["server"])}
                    for taken in turns.take(ways)
                ]
                results.add(rows)
                print("\n".join(list(table(COLUMNS, rows))[2:]), flush=True)


def _act(side: Asking, path: str, body: bytes, each: int, streams: int) -> Callable[[object], int]:
    def run(_: object) -> int:
        side.ask(path, body, each)
        return each * streams

    return run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.webhook", description="Admission reviews over TLS, beside the floor."
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--reviews", type=int, default=400, help="of a round")
    arguments = parser.parse_args()
    results = Results("webhook", arguments.json)
    print("\n".join(table(COLUMNS, [])))
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), arguments.reviews, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
