"""The webhook's process: certificates first, then gunicorn, whose worker serves over TLS."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger as GunicornLogger
from gunicorn.workers.base import Worker as GunicornWorker

from certs import store
from certs.manager import CertificateManager
from gpushare import names
from gpushare.errors import GpuShareError, SettingsError
from gpushare.kube import client
from gpushare.runtime import logs, options
from gpushare.runtime.clock import Backoff, Clock, SystemClock
from gpushare.runtime.http import HttpServer, Wsgi
from gpushare.runtime.intake import MIB, ByteBudget
from gpushare.runtime.process import Signals
from gpushare.runtime.tls import Contexts
from webhook import app
from webhook.metrics import Metrics
from webhook.runtimeclass import RuntimeClass
from webhook.settings import Settings

_LOG: Final = logging.getLogger("webhook")
_LOOK_S: Final = 0.5  # how late a signal may be noticed while there is no certificate
_KEEP_ALIVE_S: Final = 75  # the API server pools connections for 90 s and should seldom find one closed
_DEAD_S: Final = 60  # a worker whose loop stands still for so long is replaced
_MOST: Final = 16 * MIB  # bytes of the longest body that `webhook.app` reads
_BUDGET: Final = 64 * MIB  # for all bodies above 64 KiB, while they arrive and are answered


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. The process's exit status."""
    try:
        settings = options.load(Settings, sys.argv[1:] if argv is None else argv, prog=names.WEBHOOK)
        logs.configure(level=settings.log_level)
        contexts = Contexts(files=partial(store.pair_paths, Path(settings.cert_dir)))
        # Until the server takes them over; the first process of a container has no default handlers.
        signals = Signals()
        signals.install()
        if not _has_certificate(_manager(settings), contexts, signals):
            return 0
    except SettingsError as error:
        sys.stderr.write(f"{names.WEBHOOK}: {error}\n")
        return 2
    stop = threading.Event()
    # The application is made in the worker, which shares nothing with this process; its threads run until the event.
    _Server(_options(settings, contexts, stop, signals), lambda: _build(settings, contexts, stop)).run()
    return 0


def _build(settings: Settings, contexts: Contexts, stop: threading.Event) -> Wsgi:
    manager = _manager(settings)
    threading.Thread(target=manager.run, args=(stop,), name="certificates", daemon=True).start()
    return app.create_app(
        settings,
        clock=manager.clock,
        metrics=Metrics(manager.leaf_left_s, manager.ca_left_s),
        runtime_class=RuntimeClass(
            api=manager.api,
            clock=manager.clock,
            name=settings.runtime_class,
            mode=settings.runtime_class_mode,
            namespace=settings.namespace,
        ),
        not_ready=lambda: _not_ready(contexts, manager),
    )


def _not_ready(contexts: Contexts, manager: CertificateManager) -> str:
    return contexts.problem() or ("the certificate has expired" if manager.leaf_left_s() <= 0 else "")


def _manager(settings: Settings) -> CertificateManager:
    return CertificateManager(api=client.connect(settings.kubeconfig), clock=SystemClock(), settings=settings)


def _has_certificate(manager: CertificateManager, contexts: Contexts, signals: Signals) -> bool:
    """Wait until there is a certificate to serve with; false if the process was told to end meanwhile."""
    backoff = Backoff()
    while not signals.number:
        try:
            manager.ensure_once()
            problem = contexts.problem()
        except (GpuShareError, OSError) as error:
            problem = str(error)
        if not problem:
            break
        delay = backoff.next_s()
        logs.event(_LOG, "no certificate yet", level=logging.WARNING, problem=problem, retry_s=delay)
        _wait(manager.clock, signals, delay)
    return not signals.number


def _wait(clock: Clock, signals: Signals, seconds: float) -> None:
    """In slices, because a signal wakes no one."""
    until, never = clock.monotonic() + seconds, threading.Event()
    while not signals.number and (left := until - clock.monotonic()) > 0:
        clock.wait(never, min(left, _LOOK_S))


def _options(settings: Settings, contexts: Contexts, stop: threading.Event, signals: Signals) -> dict[str, object]:
    def deliver(_server: object) -> None:
        # gunicorn has just replaced the handlers that set this flag, so a signal that came before counts as well.
        if signals.number:
            os.kill(os.getpid(), signal.SIGTERM)

    return {
        "bind": f"{settings.address}:{settings.port}",
        "proc_name": names.WEBHOOK,
        "worker_class": Worker,
        "workers": 1,
        "threads": settings.threads,
        "worker_tmp_dir": settings.worker_tmp_dir,
        "keepalive": _KEEP_ALIVE_S,
        "timeout": _DEAD_S,
        "graceful_timeout": max(1, round(settings.graceful_timeout_s)),
        "control_socket_disable": True,
        "ssl_context": lambda _config, _default: contexts.current(),
        "logger_class": Logger,
        "when_ready": deliver,
        "worker_exit": lambda _server, _worker: stop.set(),
    }


class Worker(GunicornWorker):  # type: ignore[misc]  # gunicorn has no types
    def run(self) -> None:
        server = HttpServer(
            application=self.wsgi,
            listener=self.sockets[0].sock,
            clock=SystemClock(),
            threads=self.cfg.threads,
            most=_MOST,
            budget=ByteBudget(_BUDGET),
            keep_alive_s=self.cfg.keepalive,
            tls=lambda: self.cfg.ssl_context(self.cfg, None),
        )
        server.serve(lambda: not self.alive or os.getppid() != self.ppid, self.notify)
        server.finish(self.notify, grace_s=self.cfg.graceful_timeout)


class Logger(GunicornLogger):  # type: ignore[misc]  # gunicorn has no types
    """Hands everything to the process's own logging."""

    def setup(self, cfg: Any) -> None:
        self.cfg = cfg
        # Its life cycle lines at INFO say nothing about pods.
        self.error_log.setLevel(logging.WARNING)
        self.error_log.propagate = True
        self.access_log.setLevel(logging.CRITICAL)


class _Server(BaseApplication):  # type: ignore[misc] # gunicorn has no type information
    def __init__(self, options: Mapping[str, object], build: Callable[[], Wsgi]) -> None:
        self._options = options
        self._build = build
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Wsgi:
        return self._build()
