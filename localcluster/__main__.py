"""``python -m localcluster up`` starts a cluster by hand and ends it at Ctrl-C; ``down`` removes abandoned ones."""

import argparse
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from localcluster import leftovers, process, provision
from localcluster.cluster import Cluster


def _up(arguments: argparse.Namespace) -> int:
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            return
        stopped.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        workdir = Path(arguments.workdir) if arguments.workdir else None
        cluster = Cluster(
            workdir, arguments.nodes, cdi=arguments.cdi, audit=arguments.audit, keep=arguments.keep or None, say=_Say()
        )
        with cluster:
            print(f"export KUBECONFIG={cluster.kubeconfig}", flush=True)
            print(f"logs: {cluster.logs}; Ctrl-C ends the cluster", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    return 0


def _down(arguments: argparse.Namespace) -> int:
    with leftovers.exclusive():
        for line in leftovers.remove_abandoned():
            print(line)
        for owned in leftovers.existing():
            if arguments.all:
                leftovers.remove(owned)
                print(f"removed {owned.name}")
            else:
                print(f"{owned.name} belongs to the running process {owned.owner}; --all removes it too")
    return 0


class _Say:
    """Print progress with the time since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"[{time.monotonic() - self._began:5.1f} s] {line}", flush=True)


def main() -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m localcluster", description=__doc__)
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="start a cluster and keep it until Ctrl-C")
    up.add_argument("--nodes", type=int, default=2)
    up.add_argument("--cdi", type=int, nargs="*", default=[], help="numbers of the nodes whose containerd has CDI")
    up.add_argument("--workdir", help="a short path for its files (default: a temporary directory)")
    up.add_argument("--keep", action="store_true", help="keep the logs after the end")
    up.add_argument("--audit", action="store_true", help="log requests for pods and bindings")
    up.set_defaults(run=_up)
    down = commands.add_parser("down", help="remove what crashed runs left")
    down.add_argument("--all", action="store_true", help="remove running clusters too")
    down.set_defaults(run=_down)
    arguments = parser.parse_args()
    try:
        return int(arguments.run(arguments))
    except (process.ClusterError, provision.ProvisionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
