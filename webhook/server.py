"""The process that serves: gunicorn with one worker, because the certificate manager and the metrics live in it.

The only module of the webhook that uses gunicorn.
"""

import os
import signal
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from gunicorn.app.base import BaseApplication

from gpushare import names
from gpushare.runtime import serving, worker
from gpushare.runtime.intake import MIB
from gpushare.runtime.process import Signals
from webhook.settings import Settings
from webhook.tls import Contexts

_KEEP_ALIVE_S: Final = 75  # the API server pools connections for 90 s and should seldom find one closed
_DEAD_S: Final = 60  # a worker whose loop stands still for so long is replaced

Wsgi = Callable[..., Any]


def run(settings: Settings, contexts: Contexts, build: Callable[[threading.Event], Wsgi], signals: Signals) -> None:
    """Serve until SIGTERM or SIGINT; then finish what was begun. Ends the process.

    Args:
        settings: address, threads, times.
        contexts: for new connections.
        build: makes the application and starts its threads, which run until the event is set. Called in the worker,
            so that nothing is shared with the parent process.
        signals: what came before gunicorn had handlers of its own; it counts as if it came right after.
    """
    stop = threading.Event()
    _Server(_options(settings, contexts, stop, signals), lambda: build(stop)).run()


def _options(settings: Settings, contexts: Contexts, stop: threading.Event, signals: Signals) -> dict[str, object]:
    def deliver(_server: object) -> None:
        # gunicorn has just replaced the handlers that set this flag, so none is lost in between.
        if signals.number:
            os.kill(os.getpid(), signal.SIGTERM)

    def ssl_context(_config: object, _default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        return contexts.current()

    return {
        "bind": f"{settings.address}:{settings.port}",
        "proc_name": names.WEBHOOK,
        "worker_class": Worker,
        "workers": 1,
        "threads": settings.threads,
        "worker_connections": serving.CONNECTIONS,  # about 100 KiB each while they are idle
        "limit_request_fields": 50,
        "limit_request_field_size": 4096,
        "worker_tmp_dir": settings.worker_tmp_dir,
        "keepalive": _KEEP_ALIVE_S,
        "timeout": _DEAD_S,
        "graceful_timeout": max(1, round(settings.graceful_timeout_s)),
        "control_socket_disable": True,
        # Naming files switches TLS on; they are read by `contexts` only.
        "certfile": f"{settings.cert_dir}/tls.crt",
        "keyfile": f"{settings.cert_dir}/tls.key",
        "ssl_context": ssl_context,
        "logger_class": worker.Logger,
        "when_ready": deliver,
        "worker_exit": lambda _server, _worker: stop.set(),
    }


class Worker(worker.Worker):
    """Reads what `webhook.app` does."""

    most = 16 * MIB
    room = 64 * MIB


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
