"""The in-memory API server, spoken to over HTTP by another process."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

from gpushare.kube import api as kube
from gpushare.kube.api import PatchKind
from testing.fakes.kube import FakeKube


@contextlib.contextmanager
def served(api: FakeKube) -> Iterator[str]:
    """The server's URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(lambda: api.get(self.path))

        def do_POST(self) -> None:
            body = self._body()
            self._answer(lambda: api.create(self.path, body))

        def do_PUT(self) -> None:
            body = self._body()
            self._answer(lambda: api.replace(self.path, body))

        def do_PATCH(self) -> None:
            body, kind = self._body(), PatchKind(self.headers["Content-Type"])
            self._answer(lambda: api.patch(self.path, body, kind=kind))

        def log_message(self, *_: object) -> None:
            """Nothing: tests read the webhook's log."""

        def _body(self) -> Any:
            return orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, act: Callable[[], Any]) -> None:
            try:
                status, value = 200, act()
            except kube.KubeError as error:
                status, value = error.status, {"kind": "Status", "code": error.status, "message": str(error)}
            data = orjson.dumps(value)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
