"""Pods a second from their creation to their Binding, by a real kube-scheduler with this project and without it.

python -m bench.bound [--json FILE] [--pods 400] [NODES ...]

Two schedulers run on one API server, with the same client limits, and take turns: one with the configuration that
`gpushare scheduler-config` prints, and one without extenders, which counts GPU memory by itself as any resource.
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from bench import control_plane, generated, real_controller, turns
from bench.control_plane import ControlPlane
from bench.results import Results, table
from bench.servers import free_port
from bench.turns import Way
from gpushare import names
from gpushare.kube.watch import Reflector
from gpushare.runtime.clock import SystemClock
from gpushare_cli import scheduler_config
from gpushare_cli.scheduler_config import Options, ServerVersion
from localcluster.process import Process

PLAIN = "plain-scheduler"
CLIENT = {"qps": 1000, "burst": 1000}  # more than either reaches
_STREAMS = 8
_BOUND_S = 300.0

Json = dict[str, Any]


@contextlib.contextmanager
def scheduler(plane: ControlPlane, directory: Path, name: str, extender: str = "") -> Iterator[Process]:
    """A kube-scheduler of this name, with the extender at this address if there is one."""
    version = plane.programs.version
    options = Options(
        server=ServerVersion(version.major, version.minor),
        scheduler_name=name,
        url=extender or scheduler_config.DEFAULT_URL,
    )
    value: Json = yaml.safe_load(scheduler_config.configuration(options))
    # Old versions have plain-text ports, and here are two schedulers.
    value = {key: f"127.0.0.1:{free_port()}" if key.endswith("BindAddress") else part for key, part in value.items()}
    value |= {
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(plane.kubeconfig), **CLIENT},
    }
    if not extender:
        value["extenders"] = []
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(value))
    flags = [f"--config={path}", f"--secure-port={free_port()}"]
    process = Process(name, [str(plane.programs["kube-scheduler"]), *flags], directory / f"{name}.log")
    process.start()
    try:
        yield process
    finally:
        process.stop()


class Bound:
    """The pods of one scheduler that are on nodes, by a watch: a list would cost more, the longer a round takes."""

    def __init__(self, plane: ControlPlane, scheduler_name: str) -> None:
        self.names = set[str]()
        selector = f"spec.schedulerName={scheduler_name},spec.nodeName!="
        self._reflector = Reflector(
            api=plane.api, path=generated.PODS, sink=self, clock=SystemClock(), params={"fieldSelector": selector}
        )

    def watched(self) -> None:
        """From now on, until this process ends."""
        threading.Thread(target=self._reflector.run, args=(threading.Event(),), daemon=True).start()
        self._reflector.synced.wait()

    def read(self, pod: Json) -> str:
        return str(pod["metadata"]["name"])

    def replace(self, found: list[str]) -> None:
        self.names = set(found)

    def upsert(self, found: str) -> None:
        self.names.add(found)

    def remove(self, found: str) -> None:
        self.names.discard(found)


class Pods:
    """Pods of one scheduler: a round creates some, and waits until all are bound."""

    def __init__(self, plane: ControlPlane, name: str, count: int, processes: tuple[Process, ...]) -> None:
        self._plane, self._name, self._count, self._processes = plane, name, count, processes
        self._rounds = itertools.count()
        self._bound = Bound(plane, name)
        self._bound.watched()

    def prepare(self) -> str:
        """Remove all of the last round, so that every round begins with the same cluster."""
        control_plane.remove_all(self._plane, generated.PODS)
        self._wait(0, "gone")
        return f"{self._name}-{next(self._rounds)}"

    def act(self, prefix: object) -> int:
        make = partial(generated.waiting, str(prefix), scheduler=self._name, gib=4)
        with concurrent.futures.ThreadPoolExecutor(_STREAMS) as pool:
            list(
                pool.map(
                    lambda n: bool(self._plane.api.create(generated.PODS, make(n), timeout_s=60)), range(self._count)
                )
            )
        self._wait(self._count, "bound")
        return self._count

    def _wait(self, count: int, what: str) -> None:
        """Until so many are on nodes."""
        limit = time.monotonic() + _BOUND_S
        while len(self._bound.names) != count:
            for process in self._processes:
                process.check_alive()
            if time.monotonic() > limit:
                raise RuntimeError(f"not all pods of {self._name} are {what}: {self._processes[0].tail()}")
            time.sleep(0.01)


def measure(nodes: int, count: int, results: Results) -> None:
    """One size of cluster."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = stack.enter_context(control_plane.running(directory))
        results.note(kubernetes=str(plane.programs.version))
        control_plane.fill(plane, generated.NODES, generated.node, range(nodes))
        started = stack.enter_context(real_controller.running(plane, directory))
        url = f"http://127.0.0.1:{started.port}{names.EXTENDER_PREFIX}"
        plain = stack.enter_context(scheduler(plane, directory, PLAIN))
        ours = stack.enter_context(scheduler(plane, directory, names.SCHEDULER, url))
        ways = []
        for name, process, own in ((PLAIN, plain, ()), (names.SCHEDULER, ours, started.pids)):
            pods = Pods(plane, name, count, (process,))
            pids = {"scheduler": [process.pid], "API server": [plane.server.pid], "controller": own}
            ways.append(Way(name=name, prepare=pods.prepare, act=pods.act, pids=pids))
        rows = [{"key": "bound", "nodes": nodes} | taken.row for taken in turns.take(ways)]
        results.add(rows)
        print("\n".join(table(rows[-1], rows)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.bound", description="Creation to Binding, real kube-scheduler"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument(
        "--pods",
        type=int,
        default=400,
        help="of a round; with fewer, the API server's collector falls into some rounds only",
    )
    parser.add_argument("nodes", type=int, nargs="*", default=[100, 1000])
    arguments = parser.parse_args()
    results = Results("bound", arguments.json)
    for nodes in arguments.nodes:
        measure(nodes, arguments.pods, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
