"""The controller in a process of its own, with an API server in its memory that is fed over the extender's port.

After every change the next question waits until the controller's watch has seen it, so that a run can be repeated.
"""

import contextlib
import gc
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from bench.interleaved import Client, Side
from bench.scheduling import objects
from bench.scheduling.scheduler import UnansweredError
from bench.servers import serving
from controller.main import Controller, Server
from controller.settings import Settings
from controller.supervisor import Fence
from gpushare import names
from gpushare.kube.api import JsonObject, Params
from gpushare.runtime import options
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.pages import PageServer, Request, Response
from testing.fakes.kube import FakeKube

PODS = f"/api/v1/namespaces/{objects.NAMESPACE}/pods"
_SEEN_S = 60.0
_MARK_S = 20.0
CREATE, BIND, DELETE = "/bench/create", "/bench/bind", "/bench/delete"

Json = dict[str, Any]


class Watched(FakeKube):
    """Knows how far its watcher of pods has come."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = threading.Condition()
        self._seen_to = 0

    def watch(self, path: str, params: Params, *, timeout_s: float) -> Iterator[JsonObject]:
        events = super().watch(path, params, timeout_s=timeout_s)
        return self._noting(events) if path.endswith("/pods") else events

    def wait(self, version: int) -> None:
        """Until what is asked now is answered with this version known."""
        with self._seen:
            if not self._seen.wait_for(lambda: self._seen_to >= version, _SEEN_S):
                raise RuntimeError("the controller does not watch")

    def _noting(self, events: Iterator[JsonObject]) -> Iterator[JsonObject]:
        for event in events:
            yield event  # who asks for the next one has used this one
            with self._seen:
                self._seen_to = int(event["object"]["metadata"]["resourceVersion"])
                self._seen.notify_all()
            self.forget(PODS, self._seen_to)
            self.calls.clear()


class Fed(Controller):
    """The controller, and what stands for everyone else in its cluster."""

    def __init__(self, settings: Settings, nodes: Sequence[Json], pods: Sequence[Json]) -> None:
        self._api = Watched()
        for node in nodes:
            self._api.seed(f"/api/v1/nodes/{node['metadata']['name']}", node)
        for pod in pods:
            self._api.seed(f"{PODS}/{pod['metadata']['name']}", pod)
        summary = {"metadata": {"name": names.HAND_OVER, "namespace": names.NAMESPACE}, "data": {}}
        self._api.seed(f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{names.HAND_OVER}", summary)
        fence = Fence(SystemClock())
        fence.lead_until(math.inf)
        super().__init__(settings, self._api, fence, PageServer("127.0.0.1", 0, "bench"))
        self._extender, self.handler = self.handler, self._handle
        self._routes = {CREATE: self._create, BIND: self._bind, DELETE: self._delete}

    def _handle(self, request: Request) -> Response:
        act = self._routes.get(request.path)
        if act is None:
            return self._extender(request)
        act(orjson.loads(request.body.read(request.length)))
        return Response(200, b"{}")

    def start(self) -> None:
        super().start()
        threading.Thread(target=self._mark, daemon=True).start()

    def shut_down(self) -> None:
        super().shut_down()
        self._api.close()

    def _mark(self) -> None:
        """Say that all is well on watches that have nothing to tell, as an API server does: else they count as dead."""
        while True:
            time.sleep(_MARK_S)
            self._api.bookmark()

    def _create(self, pod: Json) -> None:
        made = self._api.seed(f"{PODS}/{pod['metadata']['name']}", pod)
        self._api.wait(int(made["metadata"]["resourceVersion"]))

    def _bind(self, binding: Json) -> None:
        made = self._api.edit(f"{PODS}/{binding['name']}", lambda pod: pod["spec"].update(nodeName=binding["node"]))
        self._api.wait(int(made["metadata"]["resourceVersion"]))

    def _delete(self, pod: Json) -> None:
        self._api.vanish(f"{PODS}/{pod['name']}")


@contextlib.contextmanager
def controller(nodes: Sequence[Json], *flags: str, pods: Sequence[Json] = ()) -> Iterator["Link"]:
    """One that leads and has read these objects."""
    parent = os.getpid()

    def run(port: int) -> None:
        gc.collect()
        gc.freeze()
        settings = options.load(Settings, [f"--port={port}", "--bind-address=127.0.0.1", *flags], prog="bench")
        Server(settings, parent).serve(lambda: Fed(settings, nodes, pods), beat=lambda: None)

    with serving(run) as side:
        side.client.wait_ready()
        yield Link(side)


class Link:
    """The driver's end."""

    def __init__(self, side: Side) -> None:
        self.side = side

    def another(self) -> "Link":
        """Another connection."""
        return Link(Side(self.side.pid, Client(self.side.client.port)))

    def ask(self, path: str, body: bytes) -> bytes:
        answer = self.side.client.post(path, body)
        if self.side.client.status != 200:
            raise UnansweredError(f"{path}: status {self.side.client.status}")
        return answer

    def bind(self, pod: Json, node: str) -> None:
        self._tell(BIND, {"name": pod["metadata"]["name"], "node": node})

    def create(self, pod: Json) -> None:
        self._tell(CREATE, pod)

    def delete(self, name: str) -> None:
        self._tell(DELETE, {"name": name})

    def _tell(self, path: str, body: Json) -> None:
        if self.ask(path, orjson.dumps(body)) != b"{}":
            raise RuntimeError(f"{path}: the controller's process answered otherwise")
