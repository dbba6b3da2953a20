"""The webhook's process: certificates first, then the server."""

import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from certs.manager import CertificateManager
from gpushare import names
from gpushare.errors import GpuShareError, SettingsError
from gpushare.kube import client
from gpushare.runtime import logs, options
from gpushare.runtime.clock import Backoff, Clock, SystemClock
from gpushare.runtime.http import Wsgi
from gpushare.runtime.process import Signals
from webhook import app, server
from webhook.metrics import Metrics
from webhook.runtimeclass import RuntimeClass
from webhook.server import Contexts
from webhook.settings import Settings

_LOG: Final = logging.getLogger("webhook")
_LOOK_S: Final = 0.5  # how late a signal may be noticed while there is no certificate


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. The process's exit status."""
    try:
        settings = options.load(Settings, sys.argv[1:] if argv is None else argv, prog=names.WEBHOOK)
        logs.configure(level=settings.log_level)
        contexts = Contexts(directory=Path(settings.cert_dir))
        # Until the server takes them over; the first process of a container has no default handlers.
        signals = Signals()
        signals.install()
        if not _has_certificate(_manager(settings), contexts, signals):
            return 0
    except SettingsError as error:
        sys.stderr.write(f"{names.WEBHOOK}: {error}\n")
        return 2
    server.run(settings, contexts, lambda stop: _build(settings, contexts, stop), signals)
    return 0


def _build(settings: Settings, contexts: Contexts, stop: threading.Event) -> Wsgi:
    manager = _manager(settings)
    clock = SystemClock()
    services = app.Services(
        clock=clock,
        metrics=Metrics(manager.leaf_left_s, manager.ca_left_s),
        runtime_class=RuntimeClass(
            api=manager.api,
            clock=clock,
            name=settings.runtime_class,
            mode=settings.runtime_class_mode,
            namespace=settings.namespace,
        ),
        not_ready=lambda: _not_ready(contexts, manager),
    )
    threading.Thread(target=manager.run, args=(stop,), name="certificates", daemon=True).start()
    return app.create_app(settings, services)


def _not_ready(contexts: Contexts, manager: CertificateManager) -> str:
    if problem := contexts.problem():
        return problem
    left_s = manager.leaf_left_s()
    return "the certificate has expired" if left_s is not None and left_s <= 0 else ""


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
    until = clock.monotonic() + seconds
    never = threading.Event()
    while not signals.number and (left := until - clock.monotonic()) > 0:
        clock.wait(never, min(left, _LOOK_S))
