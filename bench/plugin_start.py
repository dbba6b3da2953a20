"""How long the device plugin takes from process start to its registration, and how much memory it holds.

    python -m bench.plugin_start [--runs 5] [--json FILE]

A kubelet and an API server are simulated on this machine; the plugin is a real process with eight simulated GPUs of
80 GiB, once in units of GiB and once in the smallest unit that a kubelet can count. "From process start" includes the
start of the interpreter. The API server speaks plain HTTP here, so a TLS handshake is not included.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.results import Results, table
from bench.turns import cpu_s
from testing.fakes import http_server
from testing.fakes.http_server import free_port
from testing.fakes.kubelet import FakeKubelet

ROOT = Path(__file__).resolve().parent.parent
PROFILE = ROOT / "testing/profiles/a100x8.yaml"
COLUMNS = (
    "memory unit",
    "devices",
    "API server",
    "registered s, median",
    "slowest",
    "devices listed s",
    "CPU s",
    "VmRSS MiB",
)
# As in a pod, except that the address of the API server is given instead of mounted.
CHILD = """
import sys
from gpushare.kube import client, credentials
server = sys.argv.pop(1)
client.connect = lambda *_: client.RestClient(credentials.Credentials(server=server))
from deviceplugin.main import main
sys.exit(main())
"""


class Api(http_server.Handler):
    """Answers what the plugin asks: an empty list of pods, a quiet watch, every patch."""

    def do_GET(self) -> None:
        if "watch=true" in self.path:
            self.stream(iter(_quiet, None))
        else:
            self.send(200, b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    def do_PATCH(self) -> None:
        self.body()
        self.send(200, b'{"metadata":{"name":"node-a","resourceVersion":"2"}}')


def _quiet() -> bytes | None:
    time.sleep(30)
    return None


class TimedKubelet(FakeKubelet):
    """Notes when a registration arrives."""

    registered_at = 0.0

    def _register(self, request: Any, context: Any) -> Any:
        self.registered_at = time.monotonic()
        return super()._register(request, context)


def once(server: str, unit: str) -> tuple[float, float, int, float]:
    """Seconds to the registration and to the list of devices, memory in KiB two seconds later, CPU until the list."""
    with tempfile.TemporaryDirectory(prefix="gs") as path:
        kubelet = TimedKubelet(Path(path))
        kubelet.start()
        flags = ["--node-name=node-a", f"--gpu-source=simulated:{PROFILE}", f"--device-plugins-dir={path}"]
        flags += [f"--memory-unit={unit}", f"--probe-port={free_port()}"]
        started = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", CHILD, server, *flags], cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            kubelet.wait_for_devices()
            listed, cpu = time.monotonic(), cpu_s(process.pid)
            time.sleep(2.0)
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        finally:
            process.terminate()
            process.wait(20)
            kubelet.stop()
        return kubelet.registered_at - started, listed - started, rss, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    results = Results("plugin_start", options.json)
    print("\n".join(table(COLUMNS, [])))
    with http_server.serving(Api) as server:
        measure(server, options.runs, results)


def measure(server: str, runs: int, results: Results) -> None:
    """Every row of the table."""
    away = "http://127.0.0.1:1"
    for unit, devices, address in (("GiB", 640, server), ("64MiB", 10240, server), ("GiB", 640, away)):
        found = [once(address, unit) for _ in range(runs)]
        registered, listed, rss, cpu = (list(column) for column in zip(*found, strict=True))
        row = {
            "memory unit": unit,
            "devices": devices,
            "API server": "there" if address == server else "away",
            "registered s, median": round(statistics.median(registered), 2),
            "slowest": round(max(registered), 2),
            "devices listed s": round(statistics.median(listed), 2),
            "CPU s": round(statistics.median(cpu), 2),
            "VmRSS MiB": round(max(rss) / 1024),
        }
        results.add([row])
        print(list(table(COLUMNS, [row]))[-1], flush=True)


if __name__ == "__main__":
    main()
