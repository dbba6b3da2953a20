"""The fake API server behind a real socket, for tests of whole processes: HTTP/1.1, keep-alive, chunked watches."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson

from gpushare.kube import api as kube
from gpushare.kube.api import PatchKind
from testing.fakes.kube import FakeKube


@contextlib.contextmanager
def serving(api: FakeKube) -> Iterator[str]:
    """Serve on a free port of the loopback interface; the server's URL."""

    class Handler(_Handler):
        fake = api

    server = _Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        api.close()
        server.shutdown()
        server.server_close()
        thread.join()


def kubeconfig(url: str) -> str:
    """A kubeconfig file's text for such a server."""
    return (
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that reset their connections are no news."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fake: FakeKube

    def do_GET(self) -> None:
        path, params = self._target()
        if params.pop("watch", "") == "true":
            self._watch(path, params)
        else:
            self._answer(lambda: self.fake.get(path, params))

    def do_POST(self) -> None:
        path, params = self._target()
        body = self._body()
        self._answer(lambda: self.fake.create(path, body, params), status=201)

    def do_PUT(self) -> None:
        path, _ = self._target()
        body = self._body()
        self._answer(lambda: self.fake.replace(path, body))

    def do_PATCH(self) -> None:
        path, _ = self._target()
        body, kind = self._body(), PatchKind(self.headers["Content-Type"])
        self._answer(lambda: self.fake.patch(path, body, kind=kind))

    def do_DELETE(self) -> None:
        path, _ = self._target()
        body = self._body()
        self._answer(lambda: self.fake.delete(path, body))

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""

    def _target(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path, dict(parse_qsl(parts.query))

    def _body(self) -> Any:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return orjson.loads(raw) if raw else None

    def _answer(self, act: Any, *, status: int = 200) -> None:
        try:
            value = act()
        except kube.UnreachableError:
            self.close_connection = True  # a lost reply: the connection breaks without a word
            self.connection.close()
            return
        except kube.KubeError as error:
            status = error.status
            value = {"kind": "Status", "status": "Failure", "code": status, "message": str(error)}
        self._send(status, orjson.dumps(value))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, path: str, params: dict[str, str]) -> None:
        timeout_s = float(params.pop("timeoutSeconds", "300"))
        try:
            events = self.fake.watch(path, params, timeout_s=timeout_s)
        except kube.KubeError as error:
            self._send(error.status, orjson.dumps({"kind": "Status", "message": str(error)}))
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in events:
                line = orjson.dumps(event) + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, kube.UnreachableError):
            self.close_connection = True
