"""Replicas of the controller in one process, with threads, each with its own line to one fake API server."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from controller.extender.bind import Binder
from controller.leadership import Leadership
from controller.state import ClusterState
from gpushare.dialect import Dialect
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Params, PatchKind, Reply
from gpushare.kube.lease import Elector
from gpushare.runtime.clock import SystemClock
from testing.fakes.kube import FakeKube

LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/lead"


@dataclass
class Line:
    """One replica's connection to the API server; `cut` makes every further request fail."""

    api: FakeKube
    is_cut: threading.Event = field(default_factory=threading.Event)

    def _check(self) -> None:
        if self.is_cut.is_set():
            raise kube.UnreachableError("no route to host")

    def get(self, path: str, params: Params | None = None, *, timeout_s: float = 5.0) -> JsonObject:
        self._check()
        return self.api.get(path, params, timeout_s=timeout_s)

    def create(
        self,
        path: str,
        body: JsonObject,
        params: Params | None = None,
        *,
        timeout_s: float = 5.0,
        precondition: kube.Precondition | None = None,
    ) -> JsonObject:
        self._check()
        return self.api.create(path, body, params, timeout_s=timeout_s, precondition=precondition)

    def replace(self, path: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        self._check()
        return self.api.replace(path, body, timeout_s=timeout_s)

    def patch(
        self,
        path: str,
        body: JsonObject | Sequence[JsonObject],
        *,
        kind: PatchKind = PatchKind.MERGE,
        params: Params | None = None,
        timeout_s: float = 5.0,
        precondition: kube.Precondition | None = None,
    ) -> JsonObject:
        self._check()
        return self.api.patch(path, body, kind=kind, params=params, timeout_s=timeout_s, precondition=precondition)

    def delete(
        self,
        path: str,
        body: JsonObject | None = None,
        *,
        timeout_s: float = 5.0,
        precondition: kube.Precondition | None = None,
    ) -> JsonObject:
        self._check()
        return self.api.delete(path, body, timeout_s=timeout_s, precondition=precondition)

    def watch(self, path: str, params: Params, *, timeout_s: float) -> Iterator[JsonObject]:
        self._check()
        for event in self.api.watch(path, params, timeout_s=min(timeout_s, 0.2)):
            self._check()
            yield event

    def ask(self, path: str, *, timeout_s: float = 5.0) -> Reply:
        raise AssertionError("the controller asks nobody for text")


class Replica:
    """One replica. When it loses the lead its line is cut, which is what the end of its process amounts to."""

    def __init__(self, api: FakeKube, name: str, *, lease_s: float = 0.6, quiet_s: float = 0.1) -> None:
        self.line, self.lost = Line(api), threading.Event()
        clock = SystemClock()
        self.state = ClusterState(dialect=Dialect())
        elector = Elector(
            api=self.line,
            clock=clock,
            namespace="ns",
            name="lead",
            identity=name,
            lease_s=lease_s,
            renew_s=lease_s * 2 / 3,
            retry_s=lease_s / 6,
        )
        self.leadership = Leadership(api=self.line, clock=clock, elector=elector, state=self.state, quiet_s=quiet_s)
        self.binder = Binder(api=self.line, state=self.state, clock=clock, leading=self.leadership.leading)

    def start(self) -> "Replica":
        self.leadership.start(self.die)
        return self

    def die(self) -> None:
        """What `exit_now` does to a process: nothing is sent any more."""
        self.line.is_cut.set()
        self.lost.set()

    def stop(self) -> None:
        self.leadership.shut_down()
        self.line.is_cut.set()


@contextlib.contextmanager
def stopping(replicas: list[Replica]) -> Iterator[list[Replica]]:
    """Stop all at the end, also those that a test adds to the list."""
    try:
        yield replicas
    finally:
        for replica in replicas:
            replica.stop()
