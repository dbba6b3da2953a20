"""The controller's process: builds everything and serves until it is stopped or loses the lead."""

import secrets
import socket
import sys
from collections.abc import Sequence

import gpushare
from controller.boards import Boards
from controller.extender.app import Services, create_app
from controller.extender.bind import Binder
from controller.extender.preempt import Preemption
from controller.leadership import Leadership
from controller.metrics import Metrics, Reading
from controller.server import EXIT_LOST, serve
from controller.settings import Settings
from controller.state import ClusterState
from gpushare import names
from gpushare.dialect import Dialect
from gpushare.errors import SettingsError
from gpushare.kube import client
from gpushare.kube.api import KubeApi
from gpushare.kube.lease import Elector
from gpushare.runtime import group, logs, options
from gpushare.runtime.clock import SystemClock


class Controller:
    """Everything of one process, wired together."""

    def __init__(self, settings: Settings, api: KubeApi) -> None:
        clock = SystemClock()
        state = ClusterState(
            dialect=Dialect(unit=settings.memory_unit, whole_gpus=settings.whole_gpus),
            policy=settings.gpu_policy,
            in_doubt_s=settings.in_doubt_seconds,
        )
        boards = Boards(state, clock)
        elector = Elector(
            api=api,
            clock=clock,
            namespace=settings.namespace,
            name=settings.lease,
            # A process that was started anew is another candidate: what its predecessor sent may still be on its way.
            identity=f"{settings.identity or socket.gethostname()}_{secrets.token_hex(4)}",
            lease_s=settings.lease_seconds,
            renew_s=settings.renew_seconds,
            retry_s=settings.retry_seconds,
        )
        self._leadership = Leadership(api=api, clock=clock, elector=elector, state=state, bind_s=settings.bind_seconds)
        metrics = Metrics()
        metrics.watch(state, _readings(self._leadership))
        binder = Binder(
            api=api,
            state=state,
            clock=clock,
            leading=self._leadership.leading,
            deadline_s=settings.bind_seconds,
        )
        budgets = self._leadership.disruptions.budgets
        self.app = create_app(
            Services(
                state=state,
                boards=boards,
                binder=binder,
                preemption=Preemption(state=state, budgets=budgets, clock=clock, metrics=metrics),
                metrics=metrics,
                clock=clock,
                binds=max(1, settings.threads * 3 // 4),
                unready=self._leadership.unready,
                version=gpushare.__version__,
            )
        )

    def start(self) -> None:
        """Compete for the lead."""
        self._leadership.start(lambda: group.exit_now(EXIT_LOST))

    def shut_down(self) -> None:
        """Give the lead back."""
        self._leadership.shut_down()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the controller. The exit code."""
    try:
        settings = options.load(Settings, sys.argv[1:] if argv is None else argv, prog=names.CONTROLLER)
        logs.configure(level=settings.log_level)
        # Credentials are checked before the server starts, so that a wrong path is a message and not a restart loop.
        client.connect(settings.kubeconfig).close()
    except SettingsError as error:
        print(f"{names.CONTROLLER}: {error}", file=sys.stderr)
        return 2
    return serve(settings, lambda: Controller(settings, client.connect(settings.kubeconfig)))


def _readings(leadership: Leadership) -> dict[str, tuple[str, Reading]]:
    return {
        "gpushare_leading": ("1 while this replica leads", lambda: float(leadership.leading())),
        "gpushare_ready": ("1 while kube-scheduler may ask this replica", lambda: float(not leadership.unready())),
        "gpushare_watch_nodes_age_seconds": ("Seconds since the watch of nodes said anything", leadership.nodes.age_s),
        "gpushare_watch_pods_age_seconds": ("Seconds since the watch of pods said anything", leadership.pods.age_s),
        "gpushare_watch_disruption_budgets_age_seconds": (
            "Seconds since the watch of PodDisruptionBudgets said anything; NaN if they must not be read",
            leadership.disruptions.freshness.age_s,
        ),
        "gpushare_watch_unhealthy_gpus_age_seconds": (
            "Seconds since the watch of ConfigMaps unhealthy-gpu-NODE said anything; NaN if they must not be read",
            leadership.unhealthy.freshness.age_s,
        ),
        "gpushare_books_differences": (
            "Nodes on which the books differ from what is computed from the pods alone",
            lambda: float(leadership.reconciler.audit_differences),
        ),
        "gpushare_pods_bound_late_total": (
            "Pods that came to their nodes without GPUs and were given them there",
            lambda: float(leadership.reconciler.strays.bound_late),
        ),
        "gpushare_pods_renewed_total": (
            "Pods deleted because the webhook had not changed them, so that their controllers make them anew",
            lambda: float(leadership.reconciler.strays.renewed),
        ),
        "gpushare_pods_cleared_total": (
            "Failed pods deleted because their node had rejected them for GPUs that were not reported yet",
            lambda: float(leadership.reconciler.strays.cleared),
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
