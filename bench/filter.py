"""Filter and prioritize over HTTP, beside the floor (`bench.floor`). Prints a table, asserts nothing.

python -m bench.filter [--json FILE] [NODES ...]

Nodes of 8 GPUs of 80 GiB, about half full with four pods each. Both servers are processes of their own and take turns.
"""

import argparse
import gc
import itertools
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from bench import floor, interleaved
from bench.cluster import GPU_GIB, filled
from bench.interleaved import Compared, compare
from bench.servers import serving
from controller.boards import Boards
from controller.disruption import Budgets
from controller.extender.app import Extender, Services
from controller.extender.bind import Binder
from controller.extender.preempt import Preemption
from controller.metrics import Metrics
from controller.node_verdicts import NodeVerdicts
from controller.server import Server
from controller.settings import Settings
from controller.state import ClusterState
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.http_server import Handler
from testing.builders import make_container, make_pod
from testing.fakes.kube import FakeKube

SAMPLED = 500  # what kube-scheduler asks for at most in large clusters
FILTER, PRIORITIZE = "/gpushare-scheduler/filter", "/gpushare-scheduler/prioritize"
CHURN_S = 0.05  # between pods that are bound and go
EACH = 40  # requests of a round


class Prepared:
    """An extender over a ledger that was filled by hand."""

    def __init__(self, state: ClusterState, churn: Callable[[], None] | None = None) -> None:
        clock, metrics, self._churn = SystemClock(), Metrics(), churn
        self._node_verdicts = NodeVerdicts(state, clock)
        self.handler: Handler = Extender(
            Services(
                state=state,
                node_verdicts=self._node_verdicts,
                boards=Boards(state, clock),
                binder=Binder(api=FakeKube(), state=state, clock=clock, leading=lambda: True),
                preemption=Preemption(state=state, budgets=Budgets(), clock=clock, metrics=metrics),
                metrics=metrics,
                clock=clock,
                unready=lambda: "",
                version="bench",
            )
        ).handle

    def start(self) -> None:
        background = self._node_verdicts.background
        threading.Thread(target=background.run, args=(threading.Event(),), daemon=True).start()
        if self._churn is not None:
            threading.Thread(target=self._change, args=(self._churn,), daemon=True).start()

    def shut_down(self) -> None: ...

    def _change(self, churn: Callable[[], None]) -> None:
        while True:
            churn()
            time.sleep(CHURN_S)


def body(gib: int, names: Sequence[str], core: int = 0) -> bytes:
    container = make_container(gpu_mem=gib)
    if core:
        container["resources"]["limits"]["aliyun.com/gpu-core.percentage"] = str(core)
    return orjson.dumps({"Pod": make_pod(container), "NodeNames": names})


def measure(count: int, say: Callable[[str], None]) -> list[Compared]:
    state, churn = filled(count)
    gc.collect()
    gc.freeze()
    parent = os.getpid()

    def ours(changes: Callable[[], None] | None) -> Callable[[int], None]:
        def run(port: int) -> None:
            server = Server(Settings(port=port, bind_address="127.0.0.1"), parent)
            server.serve(lambda: Prepared(state, changes), beat=lambda: None)

        return run

    def least(port: int) -> None:
        floor.serve(socket.create_server(("127.0.0.1", port)))

    found = []
    with serving(least) as lower:
        for changes, questions in ((None, quiet(count)), (churn, changing(count))):
            with serving(ours(changes)) as upper:
                for question, path, bodies in questions:
                    upper.ask(path, list(bodies())[:3])
                    found.append(compare(f"{count:,} nodes: {question}", upper, lower, path, bodies))
                    say(found[-1].row)
    return found


Question = tuple[str, str, Callable[[], Iterator[bytes]]]


def quiet(count: int) -> list[Question]:
    """While nothing changes."""
    names = [f"node-{i}" for i in range(count)]
    sample = random.Random(1).sample(names, min(SAMPLED, count))
    cores, parts = itertools.count(1), itertools.count(1)

    def same(gib: int, asked: Sequence[str]) -> Callable[[], Iterator[bytes]]:
        data = body(gib, asked)
        return lambda: itertools.repeat(data, EACH)

    def new_kinds() -> Iterator[bytes]:
        return (body(1, sample, core=next(cores)) for _ in range(5))

    def new_parts() -> Iterator[bytes]:
        limits = ({"nano-gpu/gpu-percent": str(next(parts))} for _ in range(5))
        pods = (make_pod({"name": "main", "resources": {"limits": each}}) for each in limits)
        return (orjson.dumps({"Pod": pod, "NodeNames": sample}) for pod in pods)

    def sizes() -> Iterator[bytes]:
        return (body(1 + i % 30, names) for i in range(EACH))

    return [
        ("all names, fits everywhere", FILTER, same(10, names)),
        ("all names, can never fit", FILTER, same(GPU_GIB + 1, names)),
        ("all names, another size each time", FILTER, sizes),
        (f"{len(sample)} names", FILTER, same(10, sample)),
        (f"{len(sample)} names, memory and compute never asked before", FILTER, new_kinds),
        (f"{len(sample)} names, a part of a GPU never asked before", FILTER, new_parts),
        ("prioritize, all names", PRIORITIZE, same(10, names)),
    ]


def changing(count: int) -> list[Question]:
    """While pods are bound and go."""
    names = [f"node-{i}" for i in range(count)]

    def sizes() -> Iterator[bytes]:
        return (body(1 + i % 30, names) for i in range(EACH))

    return [(f"all names, sizes in turn, {1 / CHURN_S:.0f} changes a second", FILTER, sizes)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Filter and prioritize over HTTP, beside the floor.")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("nodes", type=int, nargs="*", default=[100, 1000, 5000])
    arguments = parser.parse_args()
    print(f"{interleaved.is_quiet()}\n{interleaved.HEAD}", flush=True)
    found = [one for count in arguments.nodes for one in measure(count, lambda row: print(row, flush=True))]
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps([asdict(one) for one in found], option=orjson.OPT_INDENT_2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
