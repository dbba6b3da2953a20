"""The controller's processes: one that competes for the lead, and forks one that serves (`controller.supervisor`)."""

import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import gpushare
from controller.claims import Claims
from controller.cluster_table import ClusterTable
from controller.extender.app import WAITING, Extender
from controller.extender.bind import Binder
from controller.leadership import Leadership
from controller.metrics import Metrics, Readings
from controller.outlooks import Outlooks
from controller.preemption import Preemption
from controller.reconcile.node_requests import Limits, Refusals
from controller.settings import Settings
from controller.state import ClusterState
from controller.supervisor import Fence, Forked, Supervisor, fork
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.kube import client
from gpushare.kube.api import KubeApi
from gpushare.kube.lease import Elector
from gpushare.runtime import http, logs, options, process
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.http import HttpServer
from gpushare.runtime.intake import MIB, ByteBudget
from gpushare.runtime.pages import Handler, PageServer, verdict, wsgi
from gpushare.runtime.process import Signals
from gpushare.units import ResourceConfig

_LOST: Final = 3  # a worker's exit code
_STOP_S: Final = 18.0  # requests, then chores; with the release of the lease below a pod's 30 s of grace
_STUCK_S: Final = 60.0  # a supervisor that stands still for so long is restarted by the kubelet
GRACE_S: Final = 8  # every request has an answer by then: a bind's deadline is below the scheduler's 5 s
KEEP_ALIVE_S: Final = 75  # kube-scheduler keeps its connections; closing them first would race with its requests
# How long a thread that computes keeps others waiting: Python's default is ten times as long, longer than most answers
# take. A request waits so long whenever it has waited for bytes, and the background has much to compute.
SWITCH_S: Final = 0.0005
MOST: Final = 64 * MIB  # bytes of the longest body that `controller.extender.app` reads
BUDGET: Final = 128 * MIB  # bytes of all bodies above 64 KiB, while they arrive and are answered


class Controller:
    def __init__(self, settings: Settings, api: KubeApi, fence: Fence, probes: PageServer) -> None:
        clock = SystemClock()
        self._stopping = threading.Event()
        self._fence = fence
        self._probes = probes
        state = ClusterState(
            resource_config=ResourceConfig(unit=settings.memory_unit, whole_gpus=settings.whole_gpus),
            policy=settings.gpu_policy,
            in_doubt_s=settings.in_doubt_seconds,
            reduced=settings.refusal_detail == "reduced",
        )
        table = ClusterTable(state, clock)
        outlooks = Outlooks(state.index, table, clock)
        refusals = Refusals(clock)
        claims = _claims(settings, clock) if settings.dra else None
        self._outlooks = [outlooks]
        if claims is not None:
            self._outlooks.append(Outlooks(claims.state.index, claims.table, clock))
        self._leadership = Leadership(
            api=api,
            clock=clock,
            fence=fence,
            state=state,
            table=table,
            refusals=refusals,
            claims=claims,
            node_requests=Limits(most=settings.placeholders, life_s=settings.placeholder_seconds),
            pod=settings.pod or socket.gethostname(),
            namespace=settings.namespace,
            bind_s=settings.bind_seconds,
            claim_templates=settings.claim_templates,
        )
        metrics = Metrics(clock)
        leads, told = self._leadership, readings(self._leadership, outlooks)
        metrics.watch(state, told, waiting=lambda: leads.reconciler.counts, is_read=leads.is_read)
        self.handler: Handler = Extender(
            state=state,
            table=table,
            binder=Binder(api=api, state=state, clock=clock, leading=leads.leading, deadline_s=settings.bind_seconds),
            preemption=Preemption(state=state, budgets=leads.budgets.values, clock=clock, metrics=metrics),
            metrics=metrics,
            refusals=refusals,
            claims=claims,
            clock=clock,
            unready=leads.unready,
            version=gpushare.__version__,
        ).handle
        probes.pages = {
            "/livez": lambda: verdict(self._stuck()),
            "/readyz": lambda: verdict(leads.pod_problem()),
            "/metrics": metrics.page,
        }

    def start(self) -> None:
        self._probes.start()
        for outlooks in self._outlooks:
            look = partial(outlooks.run, self._stopping, ready=lambda: not self._leadership.unready())
            threading.Thread(target=look, name="outlook", daemon=True).start()
        self._leadership.start(lambda: process.exit_now(_LOST))

    def shut_down(self) -> None:
        """Finish what was begun; called after the last answer."""
        self._stopping.set()
        self._leadership.shut_down()

    def _stuck(self) -> str:
        silent_s = self._fence.supervisor_silent_s()
        return f"the supervisor has not moved for {silent_s:.0f} s" if silent_s > _STUCK_S else ""


def _claims(settings: Settings, clock: Clock) -> Claims:
    # Claims are in bytes, and nodes count them in no unit.
    state = ClusterState(
        resource_config=ResourceConfig(), policy=settings.gpu_policy, reduced=settings.refusal_detail == "reduced"
    )
    return Claims(state=state, table=ClusterTable(state, clock), clock=clock)


class Server:
    """The extender's. Its socket is opened before any worker is forked: requests between two workers wait."""

    def __init__(self, settings: Settings, supervisor_pid: int) -> None:
        """To be made in the supervisor. Raises SettingsError."""
        self._supervisor_pid = supervisor_pid
        self._threads = settings.threads
        address, port = settings.bind_address, settings.port
        self.listener = http.listen(address, port, f"--bind-address {address} --port {port}")

    def serve(self, build: Callable[[], Controller], beat: Callable[[], None]) -> int:
        """Serve until SIGTERM or the supervisor's end, in the worker; `beat` is called each second. The exit code."""
        signals = Signals()
        signals.install()
        sys.setswitchinterval(SWITCH_S)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the supervisor as well
        running, binds = build(), max(1, self._threads * 3 // 4)
        server = HttpServer(
            application=wsgi(running.handler),
            listener=self.listener,
            clock=SystemClock(),
            threads=self._threads - binds,
            waiting=WAITING,
            waiting_threads=binds,
            most=MOST,
            budget=ByteBudget(BUDGET),
            keep_alive_s=KEEP_ALIVE_S,
        )
        running.start()
        server.serve(lambda: bool(signals.number) or os.getppid() != self._supervisor_pid, beat)
        server.finish(beat, grace_s=GRACE_S)
        running.shut_down()
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the controller until it is told to stop. The exit code."""
    signals = Signals()
    previous = signals.install()
    try:
        settings = options.load(Settings, sys.argv[1:] if argv is None else argv, prog=names.CONTROLLER)
        logs.configure(level=settings.log_level)
        # Checked before anything serves, so that a wrong path or port is a message and not a restart loop.
        api = client.connect(settings.kubeconfig)
        supervisor(settings, api, signals).run()
    except SettingsError as error:
        print(f"{names.CONTROLLER}: {error}", file=sys.stderr)
        return 2
    finally:
        Signals.restore(previous)
    return 0


def supervisor(settings: Settings, api: client.RestClient, signals: Signals) -> Supervisor:
    clock = SystemClock()
    fence = Fence(clock)
    address, port = settings.bind_address, settings.probe_port
    # A port of their own: probes never wait behind kube-scheduler's requests.
    probes = PageServer(address, port, f"--bind-address {address} --probe-port {port}")
    server = Server(settings, os.getpid())

    def controller() -> Controller:
        return Controller(settings, client.connect(settings.kubeconfig), fence, probes)

    def spawn() -> Forked:
        api.close()  # a connection is not for two processes
        return fork(lambda: server.serve(controller, beat=fence.beat))

    def elector() -> Elector:
        return Elector(
            api=api,
            clock=clock,
            namespace=settings.namespace,
            name=settings.lease,
            # Another one for every term: what an earlier worker sent may still be on its way.
            identity=f"{settings.identity or socket.gethostname()}_{secrets.token_hex(4)}",
            lease_s=settings.lease_seconds,
            renew_s=settings.renew_seconds,
        )

    return Supervisor(
        clock=clock,
        fence=fence,
        spawn=spawn,
        elector=elector,
        told_to_stop=lambda: bool(signals.number),
        retry_s=settings.retry_seconds,
        stop_s=_STOP_S,
    )


def readings(leadership: Leadership, outlooks: Outlooks) -> Readings:
    optional, age = "; NaN if they must not be read", "Seconds since the last response to the watch of"
    on, chores = leadership, leadership.reconciler
    epoch = "Number of what is known of requests and room in the cluster, by which nodes are ranked; 0 at first"
    seen = "Seconds since the cluster was as nodes are ranked by; infinite before the first look, and on followers"
    serves = "1 while this replica serves, and the Service leads to it"
    differs = "Nodes on which the ledger differs from what is computed from the pods alone"
    late = "Pods that came to their nodes without GPUs and were given them there"
    recreated = (
        "Pods deleted so that their controllers recreate them: the webhook had not changed them, or nodes"
        " hand GPUs over in another way by now"
    )
    rejected = "Failed pods deleted because their node had rejected them for GPUs that were not reported yet"
    evictions, ill = f"{age} PodDisruptionBudgets{optional}", f"{age} ConfigMaps unhealthy-gpu-NODE{optional}"
    return (
        ("gpushare_leading", "1 while this replica leads", on.leading),
        ("gpushare_ready", serves, lambda: not on.unready() and on.label.is_written),
        ("gpushare_watch_nodes_age_seconds", f"{age} nodes", on.nodes.stale_for),
        ("gpushare_watch_pods_age_seconds", f"{age} pods", on.pods.stale_for),
        ("gpushare_watch_disruption_budgets_age_seconds", evictions, on.budgets.stale_for),
        ("gpushare_watch_unhealthy_gpus_age_seconds", ill, on.unhealthy.stale_for),
        ("gpushare_watch_claims_age_seconds", f"{age} ResourceClaims{optional}", on.claims_stale_for),
        ("gpushare_watch_namespaces_age_seconds", f"{age} namespaces{optional}", on.namespaces.stale_for),
        ("gpushare_outlook_epoch", epoch, lambda: outlooks.outlook.epoch),
        ("gpushare_outlook_age_seconds", seen, outlooks.age_s),
        ("gpushare_ledger_differences", differs, lambda: chores.audit_differences),
        ("gpushare_pods_bound_late_total", late, lambda: chores.bypassed.bound_late),
        ("gpushare_pods_recreated_total", recreated, lambda: chores.recreated),
        ("gpushare_rejected_pods_deleted_total", rejected, lambda: chores.bypassed.rejected_deleted),
    )
