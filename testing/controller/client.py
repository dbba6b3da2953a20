"""Asks the extender as its server does, without a socket."""

import io
from dataclasses import dataclass

from gpushare.runtime.clock import Clock
from gpushare.runtime.pages import Handler, Request, Response


@dataclass(frozen=True)
class Client:
    handler: Handler
    clock: Clock

    def get(self, path: str) -> Response:
        return self._ask("GET", path, b"")

    def post(self, path: str, body: bytes = b"", *, received: float | None = None) -> Response:
        return self._ask("POST", path, body, received=received)

    def _ask(self, method: str, path: str, body: bytes, *, received: float | None = None) -> Response:
        at = self.clock.monotonic() if received is None else received
        return self.handler(Request(method=method, path=path, length=len(body), body=io.BytesIO(body), received=at))
