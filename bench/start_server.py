"""A new leader's start against a real API server and etcd, without kubelets. Prints a table, asserts nothing.

python -m bench.start_server [NODES [PODS]]

Every fiftieth node has eight GPUs, and every hundredth pod is bound and holds one. Nothing else runs, so the API server
compacts etcd as it does in a cluster.
"""

import concurrent.futures
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bench import start
from bench.cluster import inventory
from bench.control_plane import ControlPlane, running
from gpushare.kube import client
from gpushare.kube.api import JsonObject, KubeError
from testing.builders import make_node

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
CREATORS, STREAMS = 4, 4
SERVER_FIELDS = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences")


def fill(plane: ControlPlane, nodes: int, pods: int) -> None:
    """As many processes as are of use, for one spends its time on TLS and JSON."""
    with concurrent.futures.ProcessPoolExecutor(CREATORS) as pool:
        for part in range(CREATORS):
            pool.submit(create, str(plane.kubeconfig), range(part, nodes, CREATORS), range(part, pods, CREATORS), nodes)
    for path, count in ((NODES, nodes), (PODS, pods)):
        found = plane.api.list_page(path, {"resourceVersion": "0"}, keep=lambda _: True)
        if len(found.items) != count:
            raise RuntimeError(f"{len(found.items)} of {count} objects of {path} were created")


def create(kubeconfig: str, nodes: Iterable[int], pods: Iterable[int], count: int) -> None:
    api = client.connect(kubeconfig)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(lambda number: bool(api.create(NODES, _node(number), timeout_s=60)), nodes))
        list(pool.map(lambda number: bool(api.create(PODS, _pod(number, count), timeout_s=60)), pods))


def _node(number: int) -> JsonObject:
    name = f"node-{number}"
    node = make_node(inventory(name)) if number % 50 == 0 else {"metadata": {"name": name}}
    return {"apiVersion": "v1", "kind": "Node", **_new(node)}


def _pod(number: int, nodes: int) -> JsonObject:
    pod = _new(start.pod(1 if number % 100 == 0 else 2))
    node = f"node-{number % nodes // 50 * 50 if number % 100 == 0 else number % nodes}"
    pod["metadata"] |= {"name": f"pod-{number}", "namespace": "default"}
    pod["spec"] |= {"nodeName": node, "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _new(obj: JsonObject) -> JsonObject:
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in SERVER_FIELDS}}


def measure(plane: ControlPlane, directory: Path) -> str:
    """One row of the table: a controller from its start to its readiness."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        port, probe_port = one.getsockname()[1], two.getsockname()[1]
    argv = [sys.executable, "-m", "controller", f"--kubeconfig={plane.kubeconfig}", "--bind-address=127.0.0.1"]
    argv += [f"--port={port}", f"--probe-port={probe_port}", "--namespace=default"]
    before, server = _requests(plane), _cpu_s(plane.server.pid)
    began = time.monotonic()
    with (directory / "controller.log").open("wb") as log, subprocess.Popen(argv, stderr=log) as process:
        try:
            _wait(lambda: b'"ready"' in (directory / "controller.log").read_bytes(), process)
            took_s = time.monotonic() - began
            [worker] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            own_s, server_s = _cpu_s(process.pid) + _cpu_s(int(worker)), _cpu_s(plane.server.pid) - server
            asked = {key: count - before.get(key, 0) for key, count in _requests(plane).items()}
            lists = ", ".join(f"{count:g} of {key}" for key, count in sorted(asked.items()) if count)
            return f"| {took_s:.1f} s | {own_s:.1f} s | {_rss_mib(int(worker))} MiB | {server_s:.1f} s | {lists} |"
        finally:
            process.terminate()


def _wait(done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not done():
        if process.poll() is not None:
            raise RuntimeError("the controller has ended")
        time.sleep(0.05)


def _requests(plane: ControlPlane) -> dict[str, float]:
    """Lists of nodes and pods that the API server has answered."""
    found = dict[str, float]()
    for line in plane.api.ask("/metrics", timeout_s=30).text.splitlines():
        for resource in ("nodes", "pods"):
            labels = (f'resource="{resource}"', 'verb="LIST"', 'code="200"')
            if line.startswith("apiserver_request_total{") and all(label in line for label in labels):
                found[resource] = found.get(resource, 0) + float(line.rpartition(" ")[2])
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024


def main() -> int:
    nodes, pods = (int(argument) for argument in (*sys.argv[1:], *("5000", "50000")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as name, running(Path(name)) as plane:
        try:
            fill(plane, nodes, pods)
            print(f"{nodes} nodes and {pods} pods, Kubernetes {plane.version}")
            print("| until ready | CPU | memory (VmHWM) | CPU of the API server | lists |\n|---|---|---|---|---|")
            for _ in range(2):
                print(measure(plane, Path(name)), flush=True)
                time.sleep(16)  # the lease of the one before
        except KubeError as error:
            print(f"{error}; see {plane.server.tail()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
