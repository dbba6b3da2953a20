"""The fake API server behind a real socket, for tests of whole processes: HTTP/1.1, keep-alive, chunked watches."""

import contextlib
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson

from gpushare.kube import api as kube
from gpushare.kube.api import PatchKind, Reply
from testing.fakes import http_server
from testing.fakes.kube import FakeKube


def serving(api: FakeKube) -> contextlib.AbstractContextManager[str]:
    """Serve on a free port of the loopback interface; the server's URL."""

    class Serving(Handler):
        fake = api

    return http_server.serving(Serving, before_end=api.close)


def kubeconfig(url: str) -> str:
    """A kubeconfig file's text for such a server."""
    return (
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )


class Handler(http_server.Handler):
    fake: FakeKube

    def do_GET(self) -> None:
        path, params = self._target()
        if params.pop("watch", "") == "true":
            self._watch(path, params)
        elif isinstance(reply := self.fake.replies.get(path), Reply):
            self.send(reply.status, reply.text.encode())
        else:
            self._answer(lambda: self.fake.get(path, params))

    def do_POST(self) -> None:
        path, params = self._target()
        body = self._body()
        self._answer(lambda: self.fake.create(path, body, params=params), status=201)

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

    def _target(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path, dict(parse_qsl(parts.query))

    def _body(self) -> Any:
        return orjson.loads(self.body() or b"null")

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
        self.send(status, orjson.dumps(value))

    def _watch(self, path: str, params: dict[str, str]) -> None:
        timeout_s = float(params.pop("timeoutSeconds", "300"))
        try:
            events = self.fake.watch(path, params, timeout_s=timeout_s)
        except kube.KubeError as error:
            self.send(error.status, orjson.dumps({"kind": "Status", "message": str(error)}))
            return
        try:
            self.stream(orjson.dumps(event) + b"\n" for event in events)
        except kube.UnreachableError:
            self.close_connection = True
