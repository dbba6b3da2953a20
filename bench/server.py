"""The controller on a real API server and etcd, without kubelets: its start, and filter and prioritize over HTTP.

python -m bench.server [--json FILE] [--pods 10] [NODES ...]

Objects come from a generator (`bench.generated`): so many pods a node hold a part of a GPU, and as many others hold
none. The questions and their floor are those of `bench.filter`; changes are pods that are created and deleted.
"""

import argparse
import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import changes, control_plane, floor, generated, interleaved, questions, real_controller
from bench.control_plane import ControlPlane
from bench.interleaved import Side
from bench.real_controller import Started
from bench.results import Results, progress, written
from bench.servers import connected, serving
from gpushare.kube import client
from gpushare.kube.api import node_path


def measure(nodes: int, pods: int, results: Results) -> None:
    """One size of cluster, with so many pods of each kind."""
    with tempfile.TemporaryDirectory() as name, control_plane.running(Path(name)) as plane:
        results.note(kubernetes=str(plane.programs.version))
        progress(f"creating {nodes:,} nodes and {pods:,} pods that hold GPUs")
        control_plane.fill(plane, generated.NODES, generated.node, range(nodes))
        control_plane.fill(plane, generated.PODS, partial(generated.gpu_pod, nodes=nodes), range(pods))
        fresh = itertools.count(pods)
        with _started(plane, Path(name), "first", nodes, fresh) as started, serving(floor.answer) as lower:
            _start(nodes, pods, 0, started, results)
            print(interleaved.HEAD)
            ours = Side(started.worker, connected(started.port))
            interleaved.ask_all(questions.quiet(nodes), nodes, ours, lower, results)
            with _changes(plane, nodes, fresh):
                asked = questions.changing(nodes, changes.TEXT)
                interleaved.ask_all(asked, nodes, ours, lower, results)
        progress(f"creating {pods:,} other pods")
        control_plane.fill(plane, generated.PODS, partial(generated.other_pod, nodes=nodes), range(pods))
        with _started(plane, Path(name), "second", nodes, fresh) as started:
            _start(nodes, pods, pods, started, results)


@contextlib.contextmanager
def _started(plane: ControlPlane, directory: Path, lease: str, nodes: int, fresh: Iterator[int]) -> Iterator[Started]:
    """A controller, which starts while pods come and go and nodes report, as they always do in a cluster.

    Where nothing changes at all, API servers on an etcd before 3.4.25 say after 3 s that their cache is not new enough.
    """
    with contextlib.ExitStack() as stack:
        with _changes(plane, nodes, fresh, reporting=True):
            started = stack.enter_context(real_controller.running(plane, directory, lease))
        yield started


def _start(nodes: int, pods: int, others: int, started: Started, results: Results) -> None:
    row = {
        "key": "start",
        "nodes": nodes,
        "GPU pods": pods,
        "other pods": others,
        "ready s": round(started.ready_s, 2),
        "CPU s": round(started.cpu_s, 2),
        "peak MiB": started.peak_mib,
        "API server CPU s": round(started.server_cpu_s, 2),
    }
    results.add([row])
    print(", ".join(f"{key} {written(value)}" for key, value in row.items()), flush=True)


@contextlib.contextmanager
def _changes(plane: ControlPlane, nodes: int, fresh: Iterator[int], *, reporting: bool = False) -> Iterator[None]:
    def create(number: int) -> str:
        if reporting:
            reported = {"metadata": {"annotations": {"reported": str(number)}}}
            api.patch(node_path(generated.name(number % nodes)), reported, timeout_s=60)
        made = api.create(generated.PODS, generated.gpu_pod(number, nodes), timeout_s=60)
        return str(made["metadata"]["name"])

    def delete(name: str) -> None:
        api.delete(f"{generated.PODS}/{name}", {"gracePeriodSeconds": 0}, timeout_s=60)

    with contextlib.closing(client.connect(str(plane.kubeconfig))) as api, changes.going_on(fresh, create, delete):
        yield


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.server", description="Start, filter and prioritize, real API server"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--pods", type=int, default=10, help="of each kind, for every node")
    parser.add_argument("nodes", type=int, nargs="*", default=[100, 1000, 5000])
    arguments = parser.parse_args()
    results = Results("server", arguments.json)
    for nodes in arguments.nodes:
        measure(nodes, nodes * arguments.pods, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
