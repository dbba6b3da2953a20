"""Filter latency: nodes of 8 GPUs of 80 GiB, about half full with four pods each. Prints a table, asserts nothing.

python -m bench.filter [NODES ...]
"""

import contextlib
import functools
import http.client
import os
import random
import resource
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable

import orjson

from bench.cluster import filled
from controller.disruption import Budgets
from controller.extender.app import Extender, Services
from controller.extender.bind import Binder
from controller.extender.preempt import Preemption
from controller.metrics import Metrics
from controller.node_verdicts import NodeVerdicts
from controller.server import Server
from controller.settings import Settings
from controller.state import ClusterState
from gpushare.identity import NodeName
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.http_server import Handler
from testing.builders import make_container, make_pod, make_shape
from testing.fakes.kube import FakeKube

SAMPLED = 500  # what kube-scheduler asks for at most in large clusters


class Prepared:
    """An extender over a ledger that was filled by hand."""

    def __init__(self, state: ClusterState) -> None:
        clock = SystemClock()
        self.node_verdicts = NodeVerdicts(state, clock)
        binder = Binder(api=FakeKube(), state=state, clock=clock, leading=lambda: True)
        metrics = Metrics()
        self.handler: Handler = Extender(
            Services(
                state=state,
                node_verdicts=self.node_verdicts,
                binder=binder,
                preemption=Preemption(state=state, budgets=Budgets(), clock=clock, metrics=metrics),
                metrics=metrics,
                clock=clock,
                unready=lambda: "",
                version="bench",
            )
        ).handle

    def start(self) -> None: ...

    def shut_down(self) -> None: ...


def body(gib: int, names: list[str]) -> bytes:
    return orjson.dumps({"Pod": make_pod(make_container(gpu_mem=gib)), "NodeNames": names})


def times_ms(act: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        act()
        times.append((time.perf_counter() - started) * 1000)
    return times


def row(what: str, times: list[float], size: int) -> None:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    print(f"  {what:<52} p50 {statistics.median(ordered):8.2f} ms   p99 {p99:8.2f} ms   {size:>9,} bytes")


class Client:
    """One kept-alive connection, as kube-scheduler has."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.size = 0

    def post(self, data: bytes) -> None:
        self._connection.request("POST", "/gpushare-scheduler/filter", data)
        self.size = len(self._connection.getresponse().read())

    def close(self) -> None:
        self._connection.close()


def measure(count: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    state, churn = filled(count)
    took = time.perf_counter() - started
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{count} nodes, {count * 4} pods: ledger filled in {took:.2f} s, {(rss - before) / 1024:.0f} MiB")
    names = [f"node-{i}" for i in range(count)]
    nodes = [NodeName(name) for name in names]
    sample = random.Random(1).sample(names, min(SAMPLED, count))
    prepared = Prepared(state)

    shapes = iter(range(1, 80))
    row(
        "decide, first of its kind, all nodes",
        times_ms(lambda: prepared.node_verdicts.filter(make_shape(next(shapes)), nodes), 20),
        0,
    )
    kept = make_shape(10)

    def changed() -> None:
        churn()
        prepared.node_verdicts.filter(kept, nodes)

    row("decide, after one node changed", times_ms(changed, 200), 0)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pid = os.fork()
    if pid == 0:
        server = Server(Settings(port=port, bind_address="127.0.0.1", threads=16), os.getppid())
        os._exit(server.serve(lambda: prepared, beat=lambda: None))
    try:
        client = connected(port)
        for what, asked in (("all names", names), (f"{len(sample)} names", sample)):
            for gib, kind in ((10, "fits everywhere"), (81, "fits nowhere")):
                data = body(gib, asked)
                client.post(data)
                row(f"HTTP, {what}, {kind}", times_ms(functools.partial(client.post, data), 200), client.size)
        client.close()
        streams(port, body(10, sample))
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def connected(port: int) -> Client:
    for _ in range(100):
        with contextlib.suppress(OSError):
            client = Client(port)
            client.post(body(1, []))
            return client
        time.sleep(0.1)
    raise SystemExit("the server did not start")


def streams(port: int, data: bytes, *, count: int = 8, each: int = 100) -> None:
    times: list[float] = []

    def work() -> None:
        client = Client(port)
        times.extend(times_ms(lambda: client.post(data), each))
        client.close()

    started = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row(f"HTTP, {count} streams, sampled names", times, 0)
    print(f"  {'':<52} {count * each / (time.perf_counter() - started):8.0f} a second")


if __name__ == "__main__":
    for argument in sys.argv[1:] or ["1000", "5000"]:
        measure(int(argument))
