"""What a worker does with its lead: read the whole cluster afresh, serve, and end with it.

A follower watches nothing. A new leader starts its watches only after it won, so that its first lists contain every
Binding of the leader before it. A leader whose watches are dead gives up its leadership: what it knows is of the past.
"""

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from controller import watches
from controller.claims import NO_NODES, Claims, ClaimSink
from controller.cluster_table import ClusterTable
from controller.reconcile.claim_templates import ClaimTemplates
from controller.reconcile.loop import HandOverSummary, LeaderLabel, Reconciler
from controller.reconcile.node_requests import OFF, Limits, Refusals
from controller.reconcile.placeholders import Placeholders
from controller.reconcile.waiting import WaitingPods
from controller.reconcile.writer import Writer
from controller.state import ClusterState
from controller.supervisor import Fence
from controller.watches import ASK_AGAIN_S, NodeSink, OptionalWatch, PodSink
from gpushare import names
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.kube.api import KubeApi
from gpushare.kube.watch import Reflector
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import claims as claims_wire

_LOG: Final = logging.getLogger(__name__)
QUIET_S: Final = 5.0  # longest wait for Bindings and patches in flight before the lease is released
# Longer than a stream may be quiet before it is cut and resumed (`gpushare.kube.client`), and some tries to resume it.
DEAD_S: Final = 180.0
LEASE_SILENT_S: Final = 60.0  # about the Lease, longer than a busy API server lets anybody wait
_TICK_S: Final = 0.1  # how late the start and the end of the lead may be noticed; writes look at the fence themselves


@dataclass(kw_only=True, eq=False)
class Leadership:
    api: KubeApi
    clock: Clock
    fence: Fence
    state: ClusterState
    table: ClusterTable
    refusals: Refusals
    claims: Claims | None = None
    node_requests: Limits = OFF
    pod: str = ""  # the name of this one
    namespace: str = names.NAMESPACE
    bind_s: float = 2.0
    claim_templates: bool = False
    quiet_s: float = QUIET_S
    dead_s: float = DEAD_S

    def __post_init__(self) -> None:
        api, clock, state = self.api, self.clock, self.state
        self._chores: threading.Thread | None = None
        self.threads: list[threading.Thread] = []  # of this term; they end soon after `stop`
        dra = self.claims.state.index if self.claims is not None else None
        self.nodes = Reflector(api=api, path="/api/v1/nodes", sink=NodeSink(state.index, dra), clock=clock)
        pods = PodSink(state.index, self.claims.note) if self.claims is not None else PodSink(state.index)
        self.pods = Reflector(api=api, path="/api/v1/pods", sink=pods, clock=clock)
        self.budgets = watches.disruption_budgets(api=api, clock=clock)
        self.unhealthy = watches.unhealthy_gpus(api=api, clock=clock, index=state.index)
        self.namespaces = watches.namespace_policies(api=api, clock=clock, index=state.index)
        self._optional: tuple[OptionalWatch[Any], ...] = (self.budgets, self.unhealthy, self.namespaces)
        self._reflectors = (self.nodes, self.pods)
        self._claims: tuple[Reflector[ClaimRecord], ...] = ()
        self._stop_working = threading.Event()

        def may_write() -> bool:
            return self.leading() and not self._stop_working.is_set()

        writer, table, refusals = Writer(api=api, clock=clock, leading=may_write), self.table, self.refusals
        summary = HandOverSummary(writer=writer, namespace=self.namespace)
        asks = Placeholders(writer=writer, state=state, table=table, refusals=refusals, limits=self.node_requests)
        self.reconciler = Reconciler(writer=writer, state=state, table=table, refusals=refusals, bind_s=self.bind_s)
        self.label = LeaderLabel(writer=writer, namespace=self.namespace, pod=self.pod, timeout_s=self.bind_s)
        self.reconciler.first = self.label.tick
        self.reconciler.others = (summary.tick, asks.tick)
        if self.claim_templates:
            templates = ClaimTemplates(writer=writer)
            self._optional += (templates.watch,)
            self.reconciler.others += (templates.tick,)
        if self.claims is not None:
            self._follow_claims(self.claims, writer)

    def _follow_claims(self, claims: Claims, writer: Writer) -> None:
        index, path = claims.state.index, f"{claims_wire.API}/resourceclaims"
        waiting = WaitingPods(
            writer=writer,
            state=claims.state,
            table=claims.table,
            refusals=Refusals(self.clock),
            nudges=False,  # kube-scheduler knows itself when a claim may fit
            no_nodes=NO_NODES,
        )
        # It keeps no one waiting: it ranks and explains.
        sink = ClaimSink(index)
        self._claims = (Reflector(api=self.api, path=path, sink=sink, clock=self.clock, optional=True),)
        self.reconciler.others = (*self.reconciler.others, lambda _: waiting.tick(claims.snapshot()))
        self.reconciler.waiting_claims = waiting

    def start(self, on_lost: Callable[[], None]) -> None:
        """Wait for the lead in the background, and serve. If it is lost or a part fails, `on_lost` ends the process."""
        self._spawn("lead", lambda: self._wait(on_lost), on_lost)

    def leading(self) -> bool:
        return self.fence.leading()

    def is_read(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def claims_stale_for(self) -> float:
        """Seconds since the server last answered about ResourceClaims; not a number while they are not read."""
        return next((each.stale_for() for each in self._claims if each.synced.is_set()), float("nan"))

    def unready(self) -> str:
        """Why the extender must not be asked; empty if it may."""
        if not self.leading():
            return "this replica of the gpushare controller does not lead"
        unread = [reflector.path for reflector in self._reflectors if not reflector.synced.is_set()]
        unread += [optional.path for optional in self._optional if not optional.settled()]
        return f"the gpushare controller became leader and is still listing {unread[0]}" if unread else ""

    def pod_problem(self) -> str:
        """Why this replica neither serves nor could take over; empty if it does or could."""
        if self.leading():
            return self.unready()
        could_lead = self.fence.lease_silent_s() < LEASE_SILENT_S
        return "" if could_lead else "this replica cannot read its Lease, so it could not lead; its log says why"

    def stop(self) -> None:
        """Begin nothing new. A thread ends with its request to the API server, a watch with its next event."""
        self._stop_working.set()

    def shut_down(self) -> None:
        """Return when nothing that was sent can still take effect. Call after the last answer."""
        self.stop()
        deadline = self.clock.monotonic() + self.quiet_s
        if self._chores is not None:
            self._chores.join(self.quiet_s)  # no new request begins, but one may be on its way
        while self.state.index.unconfirmed() and self.clock.monotonic() < deadline:
            self.clock.wait(threading.Event(), 0.1)

    def _wait(self, on_lost: Callable[[], None]) -> None:
        while not self.leading():
            if self.clock.wait(self._stop_working, _TICK_S):
                return
        watched: tuple[Reflector[Any] | OptionalWatch[Any], ...] = (*self._reflectors, *self._optional, *self._claims)
        for watch in watched:
            self._spawn(f"watch {watch.path}", functools.partial(self._watch, watch), on_lost)
        self._chores = self._spawn("reconcile", self._reconcile, on_lost)
        while self.leading() and not self._dead_watch():
            if self.clock.wait(self._stop_working, _TICK_S):
                return
        on_lost()

    def _watch(self, watch: Reflector[Any] | OptionalWatch[Any]) -> None:
        while not self._stop_working.is_set():
            watch.run(self._stop_working)  # ends early where an older server has no such objects, or a right is missing
            self.clock.wait(self._stop_working, ASK_AGAIN_S)

    def _dead_watch(self) -> bool:
        dead = [(watch.path, stale_s) for watch in self._reflectors if (stale_s := watch.stale_for()) > self.dead_s]
        for path, stale_s in dead:
            logs.event(_LOG, "watch dead", level=logging.ERROR, path=path, stale_s=round(stale_s))
        return bool(dead)

    def _reconcile(self) -> None:
        while self.unready() and not self.clock.wait(self._stop_working, 0.1):
            pass
        logs.event(_LOG, "ready")
        self.reconciler.run(self._stop_working)

    def _spawn(self, name: str, part: Callable[[], None], on_lost: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                part()
            except Exception:  # noqa: BLE001 - the top of a thread: a leader without one of its parts must not go on
                logs.event(_LOG, "part failed", level=logging.ERROR, exc_info=True, part=name)
                on_lost()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread
