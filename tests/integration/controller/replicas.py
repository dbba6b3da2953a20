"""Replicas of the controller in one process, with threads, each with its own line to one fake API server."""

import collections
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.claims import Claims
from controller.cluster_table import ClusterTable
from controller.extender.bind import Binder
from controller.leadership import Leadership
from controller.reconcile.node_requests import Refusals
from controller.state import ClusterState
from controller.supervisor import Fence, Supervisor
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Params
from gpushare.kube.lease import Elector
from gpushare.units import ResourceConfig
from testing.builders import make_pod
from testing.fakes.kube import FakeKube

LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/lead"


class SharedClock:
    """One time for all replicas, which passes only when a test says so: a thread that does not run misses no lease."""

    def __init__(self) -> None:
        self._at = 1000.0
        self._supervisors: list[threading.Thread] = []
        self._waits = collections.Counter[threading.Thread]()

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._at)

    def monotonic(self) -> float:
        return self._at

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Returns early rather than never: what waits for something else than time has to look at it again."""
        self._waits[threading.current_thread()] += 1
        until, patience = self._at + seconds, time.monotonic() + min(seconds, 0.2)
        while self._at < until and time.monotonic() < patience:
            if stop.wait(0.01):
                return True
        return stop.is_set()

    def tick(self) -> None:
        """Let a supervisor's tick pass, and every supervisor go round: a leader has renewed its lease if it could."""
        self._at += 0.1
        before = dict(self._waits)
        for thread in self._supervisors:
            while thread.is_alive() and self._waits[thread] < before.get(thread, 0) + 2:
                time.sleep(0.002)

    def start(self, supervisor: threading.Thread) -> None:
        self._supervisors.append(supervisor)
        supervisor.start()

    def end(self, supervisor: threading.Thread) -> None:
        """Wait for its end, however long it takes."""
        while supervisor.is_alive():
            self._at += 0.1
            supervisor.join(0.01)


class Line:
    """One replica's connection to the API server; `is_cut` makes every further request fail."""

    def __init__(self, api: FakeKube) -> None:
        self.api, self.is_cut = api, threading.Event()

    def __getattr__(self, verb: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self._check()
            return getattr(self.api, verb)(*args, **options)

        return call

    def watch(self, path: str, params: Params, *, timeout_s: float) -> Iterator[JsonObject]:
        self._check()
        for event in self.api.watch(path, params, timeout_s=min(timeout_s, 0.2)):
            self._check()
            yield event

    def _check(self) -> None:
        if self.is_cut.is_set():
            raise kube.UnreachableError("no route to host")


class Term:
    """A worker with threads in place of a process: it is dead when its line is cut."""

    def __init__(
        self, api: FakeKube, clock: SharedClock, fence: Fence, pod: str, *, quiet_s: float = 0.1, dead_s: float = 60.0
    ) -> None:
        self._fence, self.line, self.state = fence, Line(api), ClusterState(resource_config=ResourceConfig())
        dra = ClusterState(resource_config=ResourceConfig())
        self.leadership = Leadership(
            api=self.line,
            clock=clock,
            fence=fence,
            state=self.state,
            table=ClusterTable(self.state, clock),
            refusals=Refusals(clock),
            claims=Claims(state=dra, table=ClusterTable(dra, clock), clock=clock),
            pod=pod,
            quiet_s=quiet_s,
            dead_s=dead_s,
            claim_templates=True,
        )
        self.binder = Binder(api=self.line, state=self.state, clock=clock, leading=self.leadership.leading)
        self.code: int | None = None

    def start(self) -> None:
        self.leadership.start(lambda: self._end(3))

    def exit_code(self) -> int | None:
        if not self.line.is_cut.is_set():
            self._fence.beat()  # the server's main loop, which this worker has not
        return self.code

    def terminate(self) -> None:
        self.leadership.shut_down()
        self._end(0)

    def kill(self) -> None:
        self._end(-9)

    def join(self) -> None:
        """Wait for the end of its threads, as a process that has ended has none."""
        for thread in self.leadership.threads:
            thread.join()

    def _end(self, code: int) -> None:
        self.line.is_cut.set()
        self.leadership.stop()
        if self.code is None:
            self.code = code


class Replica:
    """One replica: a supervisor in a thread, and its workers."""

    def __init__(self, api: FakeKube, clock: SharedClock, name: str, *, lease_s: float = 0.6, **waits: float) -> None:
        self.line, self.lost = Line(api), threading.Event()
        self._api, self._name, self._lease_s, self._waits = api, name, lease_s, waits
        self._clock, self._stop, self._terms = clock, threading.Event(), itertools.count(1)
        self._fence = Fence(self._clock)
        self.all_terms: list[Term] = []
        self.term = self._make_term()
        self._supervisor = Supervisor(
            clock=self._clock,
            fence=self._fence,
            spawn=self._spawn,
            elector=self._elector,
            told_to_stop=self._stop.is_set,
            retry_s=lease_s / 6,
            stop_s=60.0,
        )
        self._thread = threading.Thread(target=self._supervisor.run, name=name, daemon=True)

    def start(self) -> "Replica":
        self._clock.start(self._thread)
        return self

    def die(self) -> None:
        """SIGKILL to both processes: nothing is sent any more, not even to release the lease."""
        self.line.is_cut.set()
        self._stop.set()
        self.term.kill()

    def stop(self) -> None:
        self._stop.set()
        self._clock.end(self._thread)
        self.die()
        for term in self.all_terms:
            term.join()

    def _make_term(self) -> Term:
        term = Term(self._api, self._clock, self._fence, self._name, **self._waits)
        self.all_terms.append(term)
        return term

    def _spawn(self) -> Term:
        if self.term.code is not None:
            self.term = self._make_term()
            self.lost.set()
        self.term.start()
        return self.term

    def _elector(self) -> Elector:
        return Elector(
            api=self.line,
            clock=self._clock,
            namespace="ns",
            name="lead",
            identity=f"{self._name}_{next(self._terms)}",
            lease_s=self._lease_s,
            renew_s=self._lease_s * 2 / 3,
        )


def add_pod(api: FakeKube, name: str) -> JsonObject:
    pod = make_pod(name=name)
    del pod["metadata"]["uid"]
    return api.seed("/api/v1/namespaces/team/pods", pod)


@contextlib.contextmanager
def stopping(replicas: list[Replica]) -> Iterator[list[Replica]]:
    """Stop all at the end, also those that a test adds to the list."""
    try:
        yield replicas
    finally:
        for replica in replicas:
            replica.stop()
