"""The controller as it is installed, on a control plane of this machine."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import turns
from bench.control_plane import ControlPlane
from bench.servers import free_port

_READY = b'"ready"'


@dataclass(frozen=True, kw_only=True)
class Started:
    """A controller that leads and has read the cluster."""

    port: int
    pids: Sequence[int]
    """Its supervisor, and the worker that serves."""
    ready_s: float
    """From the start of the process."""
    cpu_s: float
    """Until then."""
    peak_mib: int
    server_cpu_s: float
    """Of the API server meanwhile."""

    @property
    def worker(self) -> int:
        return self.pids[1]


@contextlib.contextmanager
def running(plane: ControlPlane, directory: Path, lease: str = "bench", *flags: str) -> Iterator[Started]:
    """Another `lease` than the last one's need not wait until that has run out."""
    port, log = free_port(), directory / f"controller-{lease}.log"
    argv = [sys.executable, "-m", "controller", f"--kubeconfig={plane.kubeconfig}", "--bind-address=127.0.0.1", *flags]
    argv += [f"--port={port}", f"--probe-port={free_port()}", "--namespace=default", f"--lease={lease}"]
    server_s, began = turns.cpu_s(plane.server.pid), time.monotonic()
    with log.open("wb") as output, subprocess.Popen(argv, stderr=output) as process:
        try:
            while _READY not in log.read_bytes():
                if process.poll() is not None:
                    raise RuntimeError(f"the controller has ended: {log.read_text()[-2000:]}")
                time.sleep(0.05)
            ready_s = time.monotonic() - began
            pids = [process.pid, *turns.children(process.pid)]
            yield Started(
                port=port,
                pids=pids,
                ready_s=ready_s,
                cpu_s=turns.cpu_s(*pids),
                peak_mib=turns.peak_mib(pids[1]),
                server_cpu_s=turns.cpu_s(plane.server.pid) - server_s,
            )
        finally:
            process.terminate()
            process.wait(60)
