"""How long the device plugin takes from process start to its registration, and how much memory it holds.

    python bench/plugin_start.py [--runs 10]

A kubelet and an API server are simulated on this machine; the plugin is a real process with eight simulated GPUs of
80 GiB, once in units of GiB and once in the smallest unit that a kubelet can count. "From process start" includes the
start of the interpreter. The API server speaks plain HTTP here, so a TLS handshake is not included.
"""

import argparse
import http.server
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.hand_over import cpu_s
from testing.fakes.kubelet import FakeKubelet, free_port

ROOT = Path(__file__).resolve().parent.parent
PROFILE = ROOT / "testing/profiles/a100x8.yaml"
# As in a pod, except that the address of the API server is given instead of mounted.
CHILD = """
import sys
from gpushare.kube import client, credentials
server = sys.argv.pop(1)
client.connect = lambda *_: client.RestClient(credentials.Credentials(server=server))
from deviceplugin.main import main
sys.exit(main())
"""


class Api(http.server.BaseHTTPRequestHandler):
    """Answers what the plugin asks: an empty list of pods, a quiet watch, every patch."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "watch=true" in self.path:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            time.sleep(30)
            self.close_connection = True
            return
        self._answer({"metadata": {"resourceVersion": "1"}, "items": []})

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"metadata": {"name": "node-a", "resourceVersion": "2"}})

    def _answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


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
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    api = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    api.daemon_threads = True
    threading.Thread(target=api.serve_forever, daemon=True).start()
    server = f"http://127.0.0.1:{api.server_address[1]}"
    print(f"{'unit':>6} {'devices':>8} {'registered p50':>15} {'max':>8} {'listed p50':>11} {'VmRSS':>9} {'CPU':>7}")
    for unit, devices in (("GiB", 640), ("64MiB", 10240)):
        results = [once(server, unit) for _ in range(runs)]
        registered = [result[0] for result in results]
        listed = statistics.median(result[1] for result in results)
        rss = max(result[2] for result in results) / 1024
        print(
            f"{unit:>6} {devices:>8} {statistics.median(registered):>13.2f} s {max(registered):>6.2f} s"
            f" {listed:>9.2f} s {rss:>5.1f} MiB {statistics.median(result[3] for result in results):>5.2f} s"
        )
    for name, address in (("no API", "http://127.0.0.1:1"),):
        results = [once(address, "GiB") for _ in range(max(1, runs // 2))]
        registered = [result[0] for result in results]
        print(
            f"{name:>6} {640:>8} {statistics.median(registered):>13.2f} s {max(registered):>6.2f} s"
            f" {statistics.median(result[3] for result in results):>30.2f} s"
        )


if __name__ == "__main__":
    main()
