"""Binds a second on a real API server and etcd, beside bare Bindings by the same client. Asserts nothing.

python -m bench.bind [--json FILE] [--pods 400] [--nodes 100]

Three ways take turns, each with one stream and with eight: Bindings alone, the controller's `Binder` in this process,
and the controller as a process that is asked over HTTP, as kube-scheduler asks it.
"""

import argparse
import concurrent.futures
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from bench import control_plane, generated, real_controller, turns
from bench.control_plane import ControlPlane
from bench.interleaved import Client
from bench.real_controller import Started
from bench.results import Results, table
from bench.turns import Way
from controller.extender.bind import Binder
from controller.extender.messages import BindArgs
from controller.state import ClusterState
from controller.watches import NodeSink, PodSink
from gpushare import names
from gpushare.cluster import node_records, pod_records
from gpushare.identity import NodeName
from gpushare.kube import client
from gpushare.kube.api import pod_path
from gpushare.runtime.clock import SystemClock
from gpushare.units import ResourceConfig
from gpushare.wire import pods as pods_wire

STREAMS = (1, 8)

Json = dict[str, Any]
Bind = Callable[[BindArgs], object]


class Pods:
    """Pods that no scheduler touches, each to be bound once."""

    def __init__(self, plane: ControlPlane, nodes: int, count: int) -> None:
        self._plane, self._nodes, self._count = plane, nodes, count
        self._prefixes = map("bind-{}".format, itertools.count())

    def made(self) -> list[Json]:
        """As the API server has them; there are no others, so that no round finds fuller nodes than the one before."""
        control_plane.remove_all(self._plane, generated.PODS)
        prefix = next(self._prefixes)
        make = partial(generated.waiting, prefix, scheduler="none")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(
                pool.map(lambda n: self._plane.api.create(generated.PODS, make(n), timeout_s=60), range(self._count))
            )

    def args(self, pods: Sequence[Json]) -> list[BindArgs]:
        """Each to a node."""
        return [
            BindArgs(pod=pods_wire.ref(pod), node=NodeName(generated.name(number % self._nodes)))
            for number, pod in enumerate(pods)
        ]


def measure(plane: ControlPlane, started: Started, nodes: int, count: int, results: Results) -> None:
    """All ways, with one stream and with more."""
    api = client.connect(str(plane.kubeconfig))
    pods = Pods(plane, nodes, count)
    fresh: Binder

    def seen() -> list[BindArgs]:
        nonlocal fresh
        state = ClusterState(resource_config=ResourceConfig())
        NodeSink(state.index).replace([node_records.read(generated.node(number)) for number in range(nodes)])
        fresh = Binder(api=api, state=state, clock=SystemClock(), leading=lambda: True)
        made = pods.made()
        for pod in made:
            if (record := pod_records.read(pod, state.resource_config)) is not None:
                PodSink(state.index).upsert(record)
        return pods.args(made)

    def bare(args: BindArgs) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": args.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": args.pod.name}, "target": target}
        api.create(pod_path(args.pod.namespace, args.pod.name, "binding"), body)

    def bound(args: BindArgs) -> None:
        if error := fresh.bind(args).error:
            raise RuntimeError(error)

    this, server, ours = {"client": [os.getpid()]}, {"API server": [plane.server.pid]}, {"controller": started.pids}
    for streams in STREAMS:
        asked = _Asked(started.port, streams)
        ways = (
            Way(
                name="Bindings alone",
                prepare=lambda: pods.args(pods.made()),
                act=_act(bare, streams),
                pids=this | server,
            ),
            Way(name="Binder", prepare=seen, act=_act(bound, streams), pids=this | server),
            Way(
                name="over HTTP",
                prepare=lambda: pods.args(pods.made()),
                act=_act(asked.bind, streams),
                pids=this | server | ours,
            ),
        )
        rows = [{"key": "bind", "nodes": nodes, "streams": streams} | taken.row for taken in turns.take(ways)]
        results.add(rows)
        print("\n".join(table(rows[-1], rows)), flush=True)
    api.close()


class _Asked:
    """The controller's process, over as many connections as there are streams."""

    def __init__(self, port: int, streams: int) -> None:
        self._free = [Client(port) for _ in range(streams)]

    def bind(self, args: BindArgs) -> None:
        body = {"PodName": args.pod.name, "PodNamespace": args.pod.namespace, "PodUID": args.pod.uid, "Node": args.node}
        own = self._free.pop()
        answer = orjson.loads(own.post(f"{names.EXTENDER_PREFIX}/bind", orjson.dumps(body)))
        self._free.append(own)
        if answer["Error"]:
            raise RuntimeError(answer["Error"])


def _act(bind: Bind, streams: int) -> Callable[[Any], int]:
    def act(work: Any) -> int:
        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            return len(list(pool.map(bind, work)))

    return act


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.bind", description="Binds a second, real API server")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument(
        "--pods",
        type=int,
        default=400,
        help="of a round; with fewer, the API server's collector falls into some rounds only",
    )
    parser.add_argument("--nodes", type=int, default=100)
    arguments = parser.parse_args()
    results = Results("bind", arguments.json)
    with tempfile.TemporaryDirectory() as name, control_plane.running(Path(name)) as plane:
        results.note(kubernetes=str(plane.programs.version))
        control_plane.fill(plane, generated.NODES, generated.node, range(arguments.nodes))
        with real_controller.running(plane, Path(name)) as started:
            before = control_plane.requests(plane)
            measure(plane, started, arguments.nodes, arguments.pods, results)
            calls = {key: count - before.get(key, 0) for key, count in control_plane.requests(plane).items()}
    bindings = calls.get("POST pods/binding", 0)
    others = {
        key: count
        for key, count in calls.items()
        if key.split()[1].startswith("pods") and key.split()[0] in {"GET", "PATCH", "PUT"}
    }
    results.add([{"key": "calls", "Bindings": bindings, "other requests about pods": sum(others.values())}])
    print(f"{bindings:g} Bindings, and of other requests about pods {others or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
