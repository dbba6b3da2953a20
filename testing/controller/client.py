"""Asks the extender as its server does, without a socket."""

import io
from dataclasses import dataclass, replace

from gpushare.runtime.clock import Clock
from gpushare.runtime.http import Head, Request, Response
from gpushare.runtime.http_server import Handler


@dataclass(frozen=True)
class Client:
    handler: Handler
    clock: Clock

    def get(self, path: str) -> Response:
        return self._ask("GET", path, b"")

    def post(self, path: str, body: bytes = b"", *, received: float | None = None, chunked: bool = False) -> Response:
        return self._ask("POST", path, body, received=received, chunked=chunked)

    def _ask(
        self, method: str, path: str, body: bytes, *, received: float | None = None, chunked: bool = False
    ) -> Response:
        head = Head(method=method, path=path, length=len(body), chunked=False, keep=True)
        head = replace(head, chunked=chunked)
        at = self.clock.monotonic() if received is None else received
        return self.handler(Request(head=head, body=io.BytesIO(body), received=at))
