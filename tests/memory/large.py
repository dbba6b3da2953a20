"""An API server that has nothing but large objects, and a pod of every kind that a tenant can make large.

Each has about as many bytes as etcd stores, 1.5 MiB as protobuf, in the form that takes the most memory once parsed.
"""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import orjson

from testing.builders import Json, make_container, make_inventory, make_node

LISTED: Final = 120
CHANGED: Final = 12
NODE: Final = "node-a"
PODS: Final = "/api/v1/pods"
_AFTER: Final = "9"


def pods() -> dict[str, Json]:
    """Specs by what is large about them. All ask for GPUs, so that what matters of them is kept."""
    asking = make_container("main", 1)
    variable = {"name": "NVIDIA_VISIBLE_DEVICES"}
    term = {"weight": 1, "podAffinityTerm": {"topologyKey": "a"}}
    return {
        "affinity terms": {"affinity": {"podAffinity": {"preferred": [term] * 150_000}}},
        "pull secrets": {"imagePullSecrets": [{"name": "a"}] * 300_000},
        "variables": {"containers": [asking | {"env": [variable] * 50_000}]},
        "escapes": {"containers": [asking | {"args": ["\u0001" * 1_500_000]}]},
        "containers": {"containers": [make_container(f"c{i}", 1) for i in range(10_000)]},
        "labels": {"labels": {f"k{i}": "" for i in range(100_000)}},
    }


class LargeServer:
    """Serves one page of such pods, and a watch that changes some of them once more."""

    def __init__(self) -> None:
        self.digested = threading.Event()
        """Set when a client has read the list and all changes, and asks for what comes after them."""
        self.end = threading.Event()
        self._kinds = [self._pod(spec) for spec in pods().values()]

    @staticmethod
    def _pod(spec: Json) -> tuple[bytes, bytes]:
        """What stands before and after the number of the pod."""
        spec = {"nodeName": NODE, "containers": [make_container("main", 1)], **spec}
        labels = spec.pop("labels", {})
        metadata = {"name": "pod", "namespace": "team", "uid": "uid-@", "resourceVersion": "7", "labels": labels}
        data = orjson.dumps({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        before, _, after = data.partition(b"uid-@")
        return before, after

    def object(self, number: int) -> bytes:
        """A pod."""
        before, after = self._kinds[number % len(self._kinds)]
        return b"%suid-%d%s" % (before, number, after)

    def list(self) -> Iterator[bytes]:
        """A page as the API server writes it."""
        yield b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":['
        for number in range(LISTED):
            yield (b"," if number else b"") + self.object(number)
        yield b"]}\n"

    def changes(self, version: str) -> Iterator[bytes]:
        """A watch from a version on."""
        if version == _AFTER:
            self.digested.set()
            self.end.wait()
            return
        for number in range(CHANGED):
            yield b'{"type":"MODIFIED","object":%s}\n' % self.object(number)
        yield b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}\n' % _AFTER.encode()


@contextlib.contextmanager
def serving(large: LargeServer) -> Iterator[str]:
    """The server's URL."""

    class Handler(_Handler):
        source = large

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        large.end.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    source: LargeServer

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        params = dict(parse_qsl(target.query))
        if target.path == PODS:
            version = params.get("resourceVersion", "")
            self._send(self.source.changes(version) if "watch" in params else self.source.list())
        elif params.get("watch"):
            self._send(self._nothing())
        elif target.path.startswith("/api/v1/nodes/"):
            self._answer(make_node(make_inventory(80, 80, node=NODE)))
        elif target.path == "/api/v1/nodes":
            self._answer(
                {"metadata": {"resourceVersion": "7"}, "items": [make_node(make_inventory(80, 80, node=NODE))]}
            )
        elif "/leases/" in target.path:
            self._answer({"kind": "Status", "message": "no such Lease"}, status=404)
        else:
            self._answer({"metadata": {"resourceVersion": "7"}, "items": []})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer({"metadata": {"name": "x"}}, status=201)

    do_PUT = do_PATCH = do_POST  # noqa: N815 - the names that the library wants

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""

    def _nothing(self) -> Iterator[bytes]:
        self.source.end.wait()
        yield b""

    def _answer(self, value: Any, *, status: int = 200) -> None:
        body = orjson.dumps(value)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, parts: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for part in parts:
                if part:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
